// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package pluginconf

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"
)

func TestChecksNameTheOption(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"path":           {Path("state_dir", "x"), `state_dir = "x": give an absolute path`},
		"region":         {Region(""), `region is empty: give the Nomad agent's region ("global" is Nomad's default)`},
		"no duration":    {second(Duration("term_grace", "soon", 0)), `term_grace: time: invalid duration "soon"`},
		"short duration": {second(Duration("term_grace", "1s", time.Minute)), `term_grace = "1s": give at least 1m0s`},
		"negative":       {second(Duration("term_grace", "-1s", 0)), `term_grace = "-1s": give at least 0s`},
	} {
		t.Run(name, func(t *testing.T) { must.EqError(t, c.err, c.want) })
	}
	must.NoError(t, Path("state_dir", "/x"))
	must.NoError(t, Region("global"))
}

func TestReadID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boot_id")
	_, err := ReadID(file)
	must.ErrorIs(t, err, os.ErrNotExist)
	must.NoError(t, os.WriteFile(file, []byte(" \n"), 0o600))
	_, err = ReadID(file)
	must.EqError(t, err, file+" is empty")
	must.NoError(t, os.WriteFile(file, []byte("a-b\n"), 0o600))
	id, err := ReadID(file)
	must.NoError(t, err)
	must.Eq(t, "a-b", id)
}

func second[T any](_ T, err error) error { return err }

func TestConsulBlock(t *testing.T) {
	var config struct {
		Consul Consul `codec:"consul"`
	}
	hclutils.NewConfigParser(hclspec.NewObject(map[string]*hclspec.Spec{"consul": ConsulBlock()})).ParseHCL(t, `config {
		consul {
			address         = "a"
			token           = "b"
			token_file      = "c"
			datacenter      = "d"
			ca_file         = "e"
			cert_file       = "f"
			key_file        = "g"
			tls_server_name = "h"
		}
	}`, &config)
	must.Eq(t, Consul{"a", "b", "c", "d", "e", "f", "g", "h"}, config.Consul)
	must.Eq(t, []any{"consul_address", "a", "consul_token", "given", "consul_token_file", "c"}, config.Consul.Describe())
}

// What the block says goes before what the environment says, and a token before a file with one.
func TestConsulClient(t *testing.T) {
	var tokens []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		tokens = append(tokens, r.Header.Get("X-Consul-Token"))
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "token")
	must.NoError(t, os.WriteFile(file, []byte("from the file"), 0o600))
	t.Setenv("CONSUL_HTTP_ADDR", server.URL)
	t.Setenv("CONSUL_HTTP_TOKEN", "")
	t.Setenv("CONSUL_HTTP_TOKEN_FILE", file)
	for _, c := range []Consul{{}, {Token: "from the block"}, {Address: "http://127.0.0.1:1"}} {
		client, err := c.Client()
		must.NoError(t, err)
		_, err = client.Agent().Self()
		must.Error(t, err, must.Sprint("it answers nothing"))
	}
	must.Eq(t, "[from the file from the block]", fmt.Sprint(tokens))
}
