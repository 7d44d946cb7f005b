// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-muster/muster/placer/ledger"
)

// takenWithin is how long a leading placer may take to act on an order, a change of leader included.
const takenWithin = 20 * time.Second

const orderHelp = `
Ledger Options:

  -region=<name>
    The Nomad region of the gang. Default: NOMAD_REGION, else global.

  Consul is found by the usual variables: CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN,
  CONSUL_CACERT and so on. The token needs to read muster/<region>/ and to write
  muster/<region>/orders/, nothing else.
`

// refusedOrder is why the leader does not carry an order out.
type refusedOrder struct{ text string }

func (e *refusedOrder) Error() string { return e.text }

// give hands an order to the leader and waits until it has been carried out. One that nobody takes in time, or that the
// user gives up, is withdrawn, so that it never takes effect when nobody expects it any more.
func (m Meta) give(l *ledger.Ledger, o ledger.Order) error {
	o.By, o.At = m.By, m.Now().UTC()
	ctx, cancel := context.WithTimeout(m.Context, takenWithin)
	defer cancel()
	written, err := l.PutOrder(ctx, o)
	if err != nil {
		return forbidden(err)
	}
	answer, err := l.AwaitOrder(ctx, written)
	switch {
	case answer != nil:
		return &refusedOrder{text: answer.Text}
	case err == nil:
		return nil
	}
	after, stop := context.WithTimeout(context.WithoutCancel(m.Context), readTimeout)
	defer stop()
	withdrawn, withdrawErr := l.WithdrawOrder(after, written)
	switch {
	case withdrawErr != nil:
		return fmt.Errorf("%w; the order may still be carried out: %w", err, withdrawErr)
	case !withdrawn: // it was carried out or answered at the last moment
		answer, err := l.AwaitOrder(after, written)
		if answer != nil {
			return &refusedOrder{text: answer.Text}
		}
		return err
	case m.Context.Err() != nil:
		return errors.New("interrupted; the order was withdrawn")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no placer has taken the order within %s, so it was withdrawn; 'muster status' tells whether one leads", takenWithin)
	}
	return fmt.Errorf("%w; the order was withdrawn", err)
}

// forbidden adds the mend to a refusal of Consul's.
func forbidden(err error) error {
	if errors.Is(err, ledger.ErrForbidden) {
		return fmt.Errorf("%w: the token must be allowed to write muster/<region>/orders/", err)
	}
	return err
}

// gang reads a gang's document as it is now.
func (m Meta) gang(l *ledger.Ledger, name string) (ledger.Gang, error) {
	ctx, cancel := context.WithTimeout(m.Context, readTimeout)
	defer cancel()
	g, err := l.GetGang(ctx, name)
	if errors.Is(err, ledger.ErrNotFound) {
		err = fmt.Errorf("no gang named %q; 'muster gangs' lists all", name)
	}
	return g.Doc, err
}
