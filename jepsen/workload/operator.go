package workload

import (
	"context"
	"net/http"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// operator changes limits up and down while leases are out, and revokes leases.
func operator(ctx context.Context, w *worker, number int) {
	c := w.caller(number)
	recorder := &history.Recorder{Next: w.cluster, Client: w.holder(number), To: w.calls}
	admins := make([]quotav1connect.AdminServiceClient, len(w.Nodes))
	for i, node := range w.Nodes {
		admins[i] = quotav1connect.NewAdminServiceClient(&http.Client{Transport: recorder}, "http://"+node)
	}
	var changed []*quotav1.Quota
	for _, quota := range Quotas() {
		if quota.GetRate() != nil && quota.Name != "renewed" && quota.Name != "provider/rate" {
			changed = append(changed, quota)
		}
	}
	for w.rest(ctx, c.rand) {
		admin := admins[c.rand.IntN(len(admins))]
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
		if c.rand.IntN(4) == 0 {
			c.revokeOne(attempt, admin)
		} else {
			quota := changed[c.rand.IntN(len(changed))]
			rate := &quotav1.Rate{Limit: quota.GetRate().Limit * int64(2+c.rand.IntN(9)) / 6, Per: quota.GetRate().Per}
			_, _ = admin.ApplyQuotas(attempt, &quotav1.ApplyQuotasRequest{
				RequestId: c.id(ctx),
				Quotas:    []*quotav1.Quota{{Name: quota.Name, Parent: quota.Parent, Rule: &quotav1.Quota_Rate{Rate: rate}}},
			})
		}
		cancel()
	}
}

// revokeOne ends some lease on an operator's word.
func (c *caller) revokeOne(ctx context.Context, admin quotav1connect.AdminServiceClient) {
	list, err := attempt(ctx, c, service.ListLeases, &quotav1.ListLeasesRequest{Quota: "many/007"}, 0)
	if err != nil || len(list.Leases) == 0 {
		return
	}
	lease := list.Leases[c.rand.IntN(len(list.Leases))]
	_, _ = admin.RevokeLease(ctx, &quotav1.RevokeLeaseRequest{RequestId: c.id(ctx), Lease: lease.Id})
}
