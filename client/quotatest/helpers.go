package quotatest

import (
	"context"
	"fmt"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/rpc/quotav1"
)

// lifeOfHelpers is the ttl of the helpers' leases.
const lifeOfHelpers = 24 * time.Hour

// Apply creates or changes quotas.
func (c *Cluster) Apply(quotas ...*quotav1.Quota) {
	if len(quotas) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if _, err := c.admin.ApplyQuotas(ctx, &quotav1.ApplyQuotasRequest{Quotas: quotas}); err != nil {
		c.fail(fmt.Errorf("quotatest: apply quotas: %w", err))
	}
}

// Quota returns a quota's current state.
func (c *Cluster) Quota(name string) client.Quota {
	quota, err := c.own.Quota(context.Background(), name)
	if err != nil {
		c.fail(err)
	}
	return quota
}

// Available returns the amount of a quota that can be reserved now.
func (c *Cluster) Available(name string) int64 { return c.Quota(name).Available }

// Exhaust uses up the available amount of a quota, like other programs: the next request is refused with [client.ReasonExhausted].
// Slots are held until the returned function is called; for other quotas it does nothing.
func (c *Cluster) Exhaust(name string) (free func()) {
	quota := c.Quota(name)
	if quota.Available <= 0 {
		return func() {}
	}
	lease := c.reserve(name, quota.Available, quota.Kind != client.KindSlots)
	if quota.Kind == client.KindSlots {
		return func() {
			if _, err := lease.Release(context.Background()); err != nil {
				c.fail(err)
			}
		}
	}
	return func() {}
}

// Cooldown closes a quota like a provider's refusal with Retry-After. It consumes one unit of the quota, for the refused call.
func (c *Cluster) Cooldown(name string, d time.Duration) {
	lease := c.reserve(name, 1, c.Quota(name).Kind != client.KindSlots)
	report := client.Signal{Quota: name, Cause: client.CauseSaturated, RetryAfter: &d}
	if op := lease.Operation(); op != nil {
		if _, err := op.Report(context.Background(), report); err != nil {
			c.fail(err)
		}
		return
	}
	if _, err := lease.Report(context.Background(), report); err != nil {
		c.fail(err)
	}
	if _, err := lease.Release(context.Background()); err != nil {
		c.fail(err)
	}
}

func (c *Cluster) reserve(name string, amount int64, consume bool) *client.Lease {
	lease, err := c.own.Reserve(context.Background(), client.ReserveRequest{
		Items: []client.Item{{Quota: name, Amount: amount}}, TTL: lifeOfHelpers, Consume: consume,
	})
	if err != nil {
		c.fail(fmt.Errorf("quotatest: reserve %d of %s: %w", amount, name, err))
	}
	return lease
}
