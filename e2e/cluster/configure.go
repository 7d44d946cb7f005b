// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

//go:embed config/*.tmpl
var configFiles embed.FS

// configure fills the template of a kind of program ("consul", "client", ...) and writes it as the configuration of one
// program of that kind, whose path it returns. The configurations lie beside the logs.
func (c *Cluster) configure(kind, name string, values any) (string, error) {
	parsed, err := template.New(kind+".hcl.tmpl").Option("missingkey=error").ParseFS(configFiles, "config/"+kind+".hcl.tmpl")
	if err != nil {
		return "", fmt.Errorf("configuration of %s: %w", name, err)
	}
	var text bytes.Buffer
	if err := parsed.Execute(&text, values); err != nil {
		return "", fmt.Errorf("configuration of %s: %w", name, err)
	}
	path := filepath.Join(c.Logs, name+".hcl")
	if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
		return "", fmt.Errorf("configuration of %s: %w", name, err)
	}
	return path, nil
}
