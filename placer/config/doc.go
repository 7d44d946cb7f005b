// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package config reads placer.hcl. It decides what each option means, what it is when nobody sets it, and how a wrong
// one is reported: with file and line and with the mend. It opens no connection and starts nothing. The placer's
// service and its command line import it.
package config
