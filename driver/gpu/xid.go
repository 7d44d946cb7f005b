// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package gpu

// XIDEvent is an error report of the NVIDIA driver about one GPU. An empty UUID means that NVML did not say which GPU it
// is about, only that something happened: look at all of them again.
type XIDEvent struct {
	UUID string
	XID  uint64
}

// XIDMeaning returns what an XID says about the hardware, or false for one that does not make a GPU unfit for the next gang: a
// fault of the application (13, 31, 43, 45 and the like) or a mere notice. Unfit are those for which NVIDIA's catalogue asks for
// a reset of the GPU, a reboot or service, and 94, since the memory at fault is set aside at the next reset only.
func XIDMeaning(xid uint64) (meaning string, unfit bool) {
	switch xid {
	case 46:
		return "the GPU stopped processing", true
	case 48:
		return "double-bit memory error", true
	case 62:
		return "the power management unit halted", true
	case 64:
		return "a faulty memory row could not be set aside", true
	case 74, 144, 145, 146, 147, 148, 149, 150, 155:
		return "NVLink error", true
	case 79:
		return "the GPU has fallen off the bus", true
	case 94:
		return "contained memory error", true
	case 95:
		return "uncontained memory error", true
	case 109:
		return "context switch timed out", true
	case 110:
		return "security fault", true
	case 119, 120:
		return "the GPU system processor failed", true
	case 136:
		return "link training failed", true
	case 140:
		return "unrecovered memory error", true
	case 143:
		return "the GPU could not be initialized", true
	case 156:
		return "a hardware resource was retired", true
	case 158:
		return "fatal timeout", true
	case 171, 172:
		return "uncorrectable memory error", true
	}
	return "", false
}
