// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package version says which build this is. Anybody may import it.
package version

// Version is the release, in the form that Nomad's plugin loader parses.
const Version = "0.1.0"

// Commit is set by the linker; a build without it says so.
var Commit = "" //nolint:gochecknoglobals // the linker's -X sets variables only

// String is the version with the commit where it is known.
func String() string {
	if Commit == "" {
		return Version
	}
	return Version + "+" + Commit
}
