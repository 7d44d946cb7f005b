// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	consul "github.com/hashicorp/consul/api"
	nomad "github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/e2e/agents"
)

// Token is what somebody shows to Nomad and to Consul; without ACL both are empty.
type Token struct{ Nomad, Consul string }

// Environ makes a command show the token.
func (t Token) Environ() []string {
	return []string{"NOMAD_TOKEN=" + t.Nomad, "CONSUL_HTTP_TOKEN=" + t.Consul}
}

// tokens are those of one cluster.
type tokens struct {
	management Token // of the test itself
	placer     Token
	user       Token
	devices    map[string]Token // by node
	drivers    map[string]Token
}

// User is the token of somebody who runs jobs and looks at gangs.
func (c *Cluster) User() Token { return c.tokens.user }

// newUUID makes a token's secret.
func newUUID() (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("secret of a token: %w", err)
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), nil
}

// grantRights makes a token with the project's own policies for each part, and one that may do everything for the test.
func (c *Cluster) grantRights(ctx context.Context) (err error) {
	if !c.config.ACL {
		return nil
	}
	if c.tokens.management.Nomad, err = newUUID(); err != nil {
		return err
	}
	if _, _, err := c.Nomad.ACLTokens().BootstrapOpts(c.tokens.management.Nomad, nil); err != nil {
		return fmt.Errorf("Nomad's first token: %w", err) //nolint:staticcheck // Nomad is a name
	}
	c.Nomad.SetSecretID(c.tokens.management.Nomad)
	if c.tokens.placer, err = c.token(ctx, "placer", "placer", "placer"); err != nil {
		return err
	}
	if c.tokens.user, err = c.token(ctx, "user", "user", "user"); err != nil {
		return err
	}
	c.tokens.devices, c.tokens.drivers = map[string]Token{}, map[string]Token{}
	for _, node := range c.config.Nodes {
		if c.tokens.devices[node.Name], err = c.token(ctx, "device", "device", node.Name); err != nil {
			return err
		}
		if c.tokens.drivers[node.Name], err = c.token(ctx, "", "driver", node.Name); err != nil {
			return err
		}
	}
	return nil
}

// token makes a token with the policies for a part; without the name of one of Nomad there is no token of Nomad.
func (c *Cluster) token(ctx context.Context, nomadPart, consulPart, owner string) (t Token, err error) {
	if nomadPart != "" {
		if t.Nomad, err = c.nomadToken(ctx, nomadPart, owner); err != nil {
			return Token{}, err
		}
	}
	t.Consul, err = c.consulToken(ctx, consulPart, owner)
	return t, err
}

func (c *Cluster) nomadToken(ctx context.Context, part, owner string) (string, error) {
	rules, err := Policy("nomad-" + part)
	if err != nil {
		return "", err
	}
	write := (&nomad.WriteOptions{}).WithContext(ctx)
	if _, err := c.Nomad.ACLPolicies().Upsert(&nomad.ACLPolicy{Name: part, Rules: rules}, write); err != nil {
		return "", fmt.Errorf("Nomad's policy of the %s: %w", part, err) //nolint:staticcheck // Nomad is a name
	}
	token, _, err := c.Nomad.ACLTokens().Create(&nomad.ACLToken{Name: part + " " + owner, Type: "client", Policies: []string{part}}, write)
	if err != nil {
		return "", fmt.Errorf("Nomad's token of the %s: %w", part, err) //nolint:staticcheck // Nomad is a name
	}
	return token.SecretID, nil
}

func (c *Cluster) consulToken(ctx context.Context, part, owner string) (string, error) {
	rules, err := Policy("consul-" + part)
	if err != nil {
		return "", err
	}
	rules = onThisAgent(rules, owner)
	write := (&consul.WriteOptions{}).WithContext(ctx)
	policy, _, err := c.Consul.ACL().PolicyCreate(&consul.ACLPolicy{Name: part + "-" + owner, Rules: rules}, write)
	if err != nil {
		return "", fmt.Errorf("Consul's policy of the %s: %w", part, err) //nolint:staticcheck // Consul is a name
	}
	token, _, err := c.Consul.ACL().TokenCreate(&consul.ACLToken{Description: part, Policies: []*consul.ACLLink{{ID: policy.ID}}}, write)
	if err != nil {
		return "", fmt.Errorf("Consul's token of the %s: %w", part, err) //nolint:staticcheck // Consul is a name
	}
	return token.SecretID, nil
}

// onThisAgent makes a policy one of a node of a cluster. The files are of a node n1 and a placer's host p1, each with a
// Consul agent of the same name; here all use one agent.
func onThisAgent(rules, node string) string {
	return strings.NewReplacer(`session "n1"`, `session "consul"`, `"p1"`, `"consul"`, `/n1"`, `/`+node+`"`, `/n1/`, `/`+node+`/`).Replace(rules)
}

// Policy reads one of the project's policies, for example "nomad-placer".
func Policy(name string) (string, error) {
	root, err := agents.Root()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root, "placer", "doc", "policies", name+".hcl"))
	if err != nil {
		return "", fmt.Errorf("policy: %w", err)
	}
	return string(text), nil
}
