package hostile

import (
	"context"
	"slices"
	"sync"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// atOps are the parts of the attack on the port for operators, which serves no Reserve: they read, and hold connections.
var atOps = []string{"watch", "health", "read", "bomb", "silent", "slow"}

// served says whether the attacked port serves a part of the attack.
func (a *Caller) served(name string) bool {
	if a.atOps {
		return slices.Contains(atOps, name)
	}
	return name != "read" // the API's port is busy enough
}

// beginAtOps attacks the port for operators too, if it is known.
func (a *Caller) beginAtOps(ctx context.Context, working *sync.WaitGroup) {
	if a.Ops == "" {
		return
	}
	a.ops = &Caller{Name: a.Name, Address: a.Ops, Token: a.Token, Dial: a.Dial, Bundle: a.Bundle, Only: a.Only, atOps: true}
	working.Go(func() { a.ops.Attack(ctx) })
}

// pages are the pages that an anonymous caller may request from a node.
var pages = []string{"/livez", "/readyz", "/healthz", "/metrics", "/"}

// read requests the status of a node, with the token and as an anonymous caller.
func (a *Caller) read(ctx context.Context, n int) {
	admin := quotav1connect.NewAdminServiceClient(a.api, a.url())
	quota := quotav1connect.NewQuotaServiceClient(a.api, a.url())
	_, err := admin.GetStatus(ctx, &quotav1.GetStatusRequest{})
	a.reported(err)
	_, err = quota.ListQuotas(ctx, &quotav1.ListQuotasRequest{PageSize: 1000})
	a.reported(err)
	_, err = admin.SetLimits(ctx, &quotav1.SetLimitsRequest{Limits: &quotav1.Limits{}}) // the token does not allow it
	a.reported(err)
	a.reported(get(ctx, a.anonymous, a.url()+pages[n%len(pages)]))
}
