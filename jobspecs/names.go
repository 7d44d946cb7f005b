// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"fmt"

	"github.com/agext/levenshtein"
	psstructs "github.com/hashicorp/nomad/plugins/shared/structs"
)

// CheckName says why a text can't name a gang, a group of a gang or a queue: at most 63 characters of
// [a-z][a-z0-9._-]*, and nothing that Nomad reads as a number, a bool or a size, since a constraint on such a value
// never matches the attribute's text.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("it is empty")
	case !isNameText(name):
		return fmt.Errorf("it must start with a letter a-z and go on with a-z, 0-9, dot, underscore or hyphen")
	case len(name) > MaxNameLength:
		return fmt.Errorf("it has %d characters, the most is %d", len(name), MaxNameLength)
	}
	if _, isText := psstructs.ParseAttribute(name).GetString(); !isText {
		return fmt.Errorf("Nomad reads it as a number, a bool or a size, so it would never match") //nolint:staticcheck // Nomad is a name
	}
	return nil
}

// shown is a name as a message quotes it: as much of it as could be a name.
func shown(name string) string {
	if runes := []rune(name); len(runes) > MaxNameLength {
		return string(runes[:MaxNameLength]) + "..."
	}
	return name
}

func isNameText(name string) bool {
	for i, r := range []byte(name) {
		letter := r >= 'a' && r <= 'z'
		other := r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
		if !letter && (i == 0 || !other) {
			return false
		}
	}
	return true
}

// suggest is a hint at the known word nearest to one that is not known, or nothing if none is near.
func suggest(word string, known []string) string {
	const nearest = 3 // edits
	best, distance := "", nearest+1
	for _, k := range known {
		if d := levenshtein.Distance(word, k, nil); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %s?", best)
}
