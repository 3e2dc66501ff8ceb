package workload

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// operator raises and lowers limits while leases exist, overrides one for a while, reopens a quota, applies pools, and revokes leases.
func operator(ctx context.Context, w *worker, number int) {
	c := w.caller(number)
	var changed []*quotav1.Quota
	for _, quota := range Quotas() {
		if quota.GetRate() != nil && quota.Policy == nil && quota.Name != "renewed" && quota.Name != "provider/rate" {
			changed = append(changed, quota)
		}
	}
	pooled := false
	for w.rest(ctx, c.rand) {
		c.at = c.rand.IntN(len(c.services))
		if !pooled {
			_, err := attempt(ctx, c, service.ApplyQuotas, &quotav1.ApplyQuotasRequest{RequestId: c.id(ctx), Quotas: pools()}, 0)
			pooled = err == nil
			continue
		}
		switch c.rand.IntN(4) {
		case 0:
			c.revokeOne(ctx)
		case 1:
			c.override(ctx)
		default:
			quota := changed[c.rand.IntN(len(changed))]
			rate := &quotav1.Rate{Limit: quota.GetRate().Limit * int64(2+c.rand.IntN(9)) / 6, Per: quota.GetRate().Per}
			_, _ = attempt(ctx, c, service.ApplyQuotas, &quotav1.ApplyQuotasRequest{
				RequestId: c.id(ctx),
				Quotas:    []*quotav1.Quota{{Name: quota.Name, Parent: quota.Parent, Rule: &quotav1.Quota_Rate{Rate: rate}}},
			}, 0)
		}
	}
}

// revokeOne revokes one lease.
func (c *caller) revokeOne(ctx context.Context) {
	list, err := attempt(ctx, c, service.ListLeases, &quotav1.ListLeasesRequest{Quota: "many/007"}, 0)
	if err != nil || len(list.Leases) == 0 {
		return
	}
	lease := list.Leases[c.rand.IntN(len(list.Leases))]
	_, _ = attempt(ctx, c, service.RevokeLease, &quotav1.RevokeLeaseRequest{RequestId: c.id(ctx), Lease: lease.Id}, 0)
}

// override overrides a quota's limit for some seconds, sometimes with 0, or ends the override.
func (c *caller) override(ctx context.Context) {
	if c.rand.IntN(4) == 0 {
		_, _ = call(ctx, c, service.ReopenQuota, &quotav1.ReopenQuotaRequest{RequestId: c.id(ctx), Name: overridden}, 0)
	}
	request := &quotav1.OverrideQuotaRequest{RequestId: c.id(ctx), Name: overridden}
	if c.rand.IntN(5) > 0 {
		limit := max(c.rand.Int64N(120)-20, 0)
		request.Limit, request.Duration = &limit, durationpb.New(time.Duration(1000+c.rand.IntN(3000))*time.Millisecond)
	}
	_, _ = call(ctx, c, service.OverrideQuota, request, 0)
}
