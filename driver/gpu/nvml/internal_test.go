// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"errors"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"
)

// One GPU that does not answer, in whatever words, costs the others nothing; NVML that does not answer does.
func TestCheck(t *testing.T) {
	for ret, lost := range map[nvml.Return]bool{
		nvml.ERROR_GPU_IS_LOST: true, nvml.ERROR_RESET_REQUIRED: true, nvml.ERROR_UNKNOWN: true, nvml.ERROR_INSUFFICIENT_POWER: true,
		nvml.ERROR_UNINITIALIZED: false, nvml.ERROR_DRIVER_NOT_LOADED: false, nvml.ERROR_NO_PERMISSION: false,
	} {
		err := check(3, "name", ret)
		var asLost lostError
		if lost {
			must.True(t, errors.As(err, &asLost))
		} else {
			must.ErrorContains(t, err, "ask GPU 3 for its name: ")
			must.ErrorIs(t, err, ret)
		}
	}
	must.NoError(t, check(3, "name", nvml.SUCCESS))
}
