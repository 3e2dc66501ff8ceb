package hostile

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// atOps is what the caller and strangers do at the port for operators, which serves no takes: they read, and hold what they can.
var atOps = []string{"watch", "health", "read", "bomb", "silent", "slow"}

// served tells whether the port that is attacked serves something to do.
func (a *Caller) served(name string) bool {
	if a.atOps {
		return slices.Contains(atOps, name)
	}
	return name != "read" // the API's port is busy enough
}

// beginAtOps attacks the port for operators as well, where it is known.
func (a *Caller) beginAtOps(ctx context.Context, working *sync.WaitGroup) {
	if a.Ops == "" {
		return
	}
	a.ops = &Caller{Name: a.Name, Address: a.Ops, Token: a.Token, Dial: a.Dial, Bundle: a.Bundle, Only: a.Only, atOps: true}
	working.Go(func() { a.ops.Attack(ctx) })
}

// pages are what a stranger may ask a node for.
var pages = []string{"/livez", "/readyz", "/healthz", "/metrics", "/"}

// read asks for what a node shows, with the token and as a stranger.
func (a *Caller) read(ctx context.Context, n int) {
	admin := quotav1connect.NewAdminServiceClient(a.api, a.url())
	quota := quotav1connect.NewQuotaServiceClient(a.api, a.url())
	_, err := admin.GetStatus(ctx, &quotav1.GetStatusRequest{})
	a.told(err)
	_, err = quota.ListQuotas(ctx, &quotav1.ListQuotasRequest{PageSize: 1000})
	a.told(err)
	_, err = admin.SetLimits(ctx, &quotav1.SetLimitsRequest{Limits: &quotav1.Limits{}}) // which it may not
	a.told(err)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url()+pages[n%len(pages)], http.NoBody)
	if err != nil {
		return
	}
	response, err := a.stranger.Do(request)
	if err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
		_ = response.Body.Close()
	}
	a.told(err)
}
