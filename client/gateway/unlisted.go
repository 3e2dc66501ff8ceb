package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/rpc/quotav1"
)

// A gateway that starts while the cluster is away knows no quotas, and so cannot tell which of them a model draws on. A call to a model
// waits for the list as long as a call waits for an unresponsive cluster. Then it is refused, or passes as far as fail_open allows; its
// use is charged once its quotas are known.

// setCatalog adopts a list of quotas.
func (g *Gateway) setCatalog(list []*quotav1.QuotaStatus) {
	g.catalog.Set(list)
	g.listOnce.Do(func() { close(g.listed) })
}

// awaitList waits until the cluster's quotas are known, at most as long as a call waits for an absent cluster.
func (c *call) awaitList(ctx context.Context) error {
	g := c.gateway
	if g.catalog.Loaded() {
		return nil
	}
	timer := time.NewTimer(min(awayAfter, max(time.Until(c.until), 0)))
	defer timer.Stop()
	select {
	case <-g.listed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-g.ctx.Done():
		return errStopping
	case <-timer.C:
	}
	if why := g.unlisted.Load(); why != nil {
		return fmt.Errorf("%w: %w", errNotListed, *why)
	}
	return errNotListed
}

// listKnown waits for the cluster's quotas. Without them it returns a refusal, or lets the call pass ungoverned.
func (c *call) listKnown(ctx context.Context) (refusal dialect.Refusal, refused bool) {
	err := c.awaitList(ctx)
	switch {
	case err == nil:
		return dialect.Refusal{}, false
	case errors.Is(err, errStopping):
		refusal, _ = c.refusalOf(err)
		return refusal, true
	case ctx.Err() != nil:
		return dialect.Refusal{Status: statusGone}, true
	}
	if code := connect.CodeOf(err); code == connect.CodePermissionDenied || code == connect.CodeUnauthenticated {
		return dialect.Refusal{
			Status: http.StatusForbidden, Final: true, Message: "quotad: the gateway's own token does not let it list quotas: " + err.Error(),
		}, true
	}
	c.gateway.foundAway()
	c.target.Model = ""
	c.aim(false)
	c.estimate()
	if c.passOpen() {
		return dialect.Refusal{}, false
	}
	return c.awayRefusal(err), true
}

// statusGone is the logged status of a call whose client left before its answer.
const statusGone = 499

// spends returns the draws of a call that passes without the cluster. If its quotas are unknown, they are all parts that its model may
// have.
func (c *call) spends() map[spentKey]int64 {
	out := map[spentKey]int64{}
	key := ""
	if c.key != nil {
		key = c.key.Name
	}
	for _, d := range c.draws {
		out[spentKey{holder: c.caller.Holder, quota: d.quota.Name, part: d.part, key: key}] = max(d.amount, 1)
	}
	if len(out) > 0 || !c.op.Generates() {
		return out
	}
	for _, part := range config.Parts {
		if part != "streams" {
			out[spentKey{holder: c.caller.Holder, prefix: c.prefixOfQuotas, model: c.model, part: part, key: key}] = c.amountOf(part)
		}
	}
	return out
}

// chargedTo returns the quota of a spent amount, whose name may have been unknown then; ok is false if there is none to charge.
func (c *call) chargedTo(key spentKey) (name string, ok bool) {
	if key.quota != "" {
		q, known := c.gateway.catalog.Get(key.quota)
		return key.quota, !known || !q.Slots
	}
	q, ok := c.find(key.prefix, key.model).Parts[key.part]
	if !ok {
		// The key has no quotas of its own, but perhaps a member of that name in the upstream's pools.
		q, ok = c.find(c.upstream.config.Quotas, key.model).Parts[key.part]
		ok = ok && q.Has(key.key)
	}
	return q.Name, ok
}
