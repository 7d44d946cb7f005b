// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package words

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestFew(t *testing.T) {
	must.Eq(t, "", Few(nil))
	must.Eq(t, "a", Few([]string{"a"}))
	must.Eq(t, "a, b and c", Few([]string{"a", "b", "c"}))
	must.Eq(t, "a, b and 2 more", Few([]string{"a", "b", "c", "d"}))
	must.Eq(t, "2 gangs are", Count(2, "gang")+" "+Verb(2, "is", "are"))
}
