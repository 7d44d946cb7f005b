// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// account is who a command runs as.
type account struct {
	credential *syscall.Credential // nil: as ourselves
	name, home string
}

// lookUp finds the account of "user", "user:group", "uid" or "uid:gid". Numbers need no entry in the user database, and
// then have no supplementary groups. An empty name is ourselves.
func lookUp(name string) (account, error) {
	if name == "" {
		return account{}, nil
	}
	userName, groupName, _ := strings.Cut(name, ":")
	found, err := user.Lookup(userName)
	if err != nil {
		found, err = user.LookupId(userName)
	}
	if err != nil {
		return byNumber(userName, groupName, err)
	}
	uid, err := number("user", found.Uid)
	if err != nil {
		return account{}, err
	}
	gid, err := groupNumber(groupName, found.Gid)
	if err != nil {
		return account{}, err
	}
	ids, err := found.GroupIds()
	if err != nil {
		return account{}, fmt.Errorf("groups of user %s: %w", name, err)
	}
	groups := make([]uint32, 0, len(ids))
	for _, id := range ids {
		if n, err := number("group", id); err == nil {
			groups = append(groups, n)
		}
	}
	return account{credential: credential(uid, gid, groups), name: found.Username, home: found.HomeDir}, nil
}

func byNumber(userName, groupName string, cause error) (account, error) {
	uid, err := number("user", userName)
	if err != nil {
		return account{}, fmt.Errorf("user %q: %w", userName, cause)
	}
	gid, err := groupNumber(groupName, userName)
	if err != nil {
		return account{}, err
	}
	return account{credential: credential(uid, gid, nil), name: userName, home: "/"}, nil
}

func groupNumber(name, fallback string) (uint32, error) {
	if name == "" {
		return number("group", fallback)
	}
	if found, err := user.LookupGroup(name); err == nil {
		return number("group", found.Gid)
	}
	return number("group", name)
}

func number(what, text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s %q is unknown: %w", what, text, err)
	}
	return uint32(n), nil
}

// credential is nil where nothing would change: an unprivileged process may not even set its own groups.
func credential(uid, gid uint32, groups []uint32) *syscall.Credential {
	if os.Geteuid() != 0 && int(uid) == os.Geteuid() && int(gid) == os.Getegid() {
		return nil
	}
	return &syscall.Credential{Uid: uid, Gid: gid, Groups: groups}
}
