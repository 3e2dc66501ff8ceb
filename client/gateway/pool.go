package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/catalog"
	"github.com/quotad/quotad/client/gateway/keys"
)

// A quota of kind pool connects the keys of an upstream with the cluster: its members have the names of the keys. The gateway reserves
// on the pool, and sends the call with the key of the granted member. So the cluster chooses, a call waits for all keys at once, and
// all items of a Reserve belong to one key. docs/decisions/0037-pools-of-keys.md has the reasons.

// maxPoolItems bounds the quotas of a Reserve that names a pool.
const maxPoolItems = 8

// PoolError reports a mismatch between a pool of the cluster and the keys of an upstream.
type PoolError struct {
	// Upstream and Pool are names.
	Upstream, Pool string
	// Message is the problem, Hint the way out.
	Message, Hint string
}

// Error implements error.
func (e *PoolError) Error() string { return "upstreams." + e.Upstream + ": " + e.Message }

// isPool reports whether a quota is a pool.
func (c *call) isPool(quota string) bool {
	q, _ := c.gateway.catalog.Get(quota)
	return len(q.Members) > 0
}

// onPool reports whether the call draws on a pool.
func (c *call) onPool() bool {
	return slices.ContainsFunc(c.draws, func(d draw) bool { return len(d.quota.Members) > 0 })
}

// member returns the pool member that the call must draw on; empty: any, or the call draws on no pool.
func (c *call) member() string {
	if c.key == nil || !c.onPool() {
		return ""
	}
	return c.key.Name
}

// checkPools returns why the call's pools do not match the keys that it may use; nil: they match, or there are none.
func (c *call) checkPools() error {
	if !c.onPool() {
		return nil
	}
	for _, d := range c.draws {
		if len(d.quota.Members) == 0 {
			continue
		}
		if len(c.draws) > maxPoolItems {
			message := fmt.Sprintf("the call draws on %d quotas, among them the pool %s: at most %d can be reserved with a pool", len(c.draws),
				d.quota.Name, maxPoolItems)
			return &PoolError{c.upstream.name, d.quota.Name, message, "Shorten also: of the upstream in gateway.yaml"}
		}
		usable := c.keys
		if c.key != nil {
			usable = []*keys.Key{c.key}
			if !d.quota.Has(c.key.Name) {
				return c.upstream.noMember(d.quota, c.key)
			}
		}
		for _, member := range d.quota.Members {
			if c.key != nil && member.Name != c.key.Name {
				continue
			}
			if err := c.upstream.fits(d.quota, member, usable); err != nil {
				return err
			}
		}
	}
	return nil
}

// noMember reports that a pool has no member for a key.
func (u *upstream) noMember(pool catalog.Quota, k *keys.Key) error {
	return &PoolError{
		u.name, pool.Name, fmt.Sprintf("the pool %s has no member for the key %s: %s", pool.Name, k.Name, memberNames(pool)),
		"Members have the names of keys: add the member, or remove the key from pool: in gateway.yaml",
	}
}

// fits checks that a pool member has a key, and that both draw on the same quotas.
func (u *upstream) fits(pool catalog.Quota, member catalog.Member, usable []*keys.Key) error {
	k := keys.Named(usable, member.Name)
	if k == nil {
		return &PoolError{
			u.name, pool.Name, fmt.Sprintf("the member %s of the pool %s has no key that the call may use", member.Name, pool.Name),
			"Members have the names of keys: add the key to keys: and pool: in gateway.yaml, with the for: of the others, or remove the member",
		}
	}
	if k.Quotas != u.config.Quotas && !strings.HasPrefix(member.Quota, k.Quotas+"/") {
		return &PoolError{
			u.name, pool.Name, fmt.Sprintf("the member %s of the pool %s is the quota %s, but the key %s has the quotas %s/...", member.Name,
				pool.Name, member.Quota, k.Name, k.Quotas), "Give the member the key's own quota, or leave quotas: of the key out",
		}
	}
	return nil
}

func memberNames(pool catalog.Quota) string {
	names := make([]string, len(pool.Members))
	for i, member := range pool.Members {
		names[i] = member.Name
	}
	return "its members are " + strings.Join(names, ", ")
}

// granted returns the permission of a lease, of the call's own or of a batch: to send the call with the granted member's key.
func (c *call) granted(lease *client.Lease, taken *client.Taken) (*grant, error) {
	granted := &grant{call: c, lease: lease, taken: taken, key: c.key}
	if c.upstream == nil || c.upstream.keys == nil && lease.Member() == "" {
		return granted, nil
	}
	if lease.Member() != "" {
		granted.key = keys.Named(c.keys, lease.Member())
	}
	if granted.key != nil && (c.key == nil || granted.key == c.key) {
		return granted, nil
	}
	// The pools have changed since the quotas were listed.
	granted.settle(settlement{unsent: true})
	c.gateway.refreshCatalog()
	return nil, &PoolError{
		c.upstream.name, "", fmt.Sprintf("the cluster granted the member %q of a pool, but no key of that name is allowed for the call",
			lease.Member()),
		"Members have the names of keys: quotad gateway check --cluster compares them",
	}
}

// moves reports whether another pool member may serve the call.
func (p *grant) moves() bool { return p.lease != nil && p.lease.Member() != "" && p.call.key == nil }

// authorize sets the credential of an attempt: the granted key, and no other.
func (c *call) authorize(attempt *http.Request, granted *grant) {
	if len(c.keys) == 0 {
		return
	}
	attempt.Header = attempt.Header.Clone()
	c.inject(attempt.Header, granted.key)
	c.usedKey(c.caller.Holder, granted.key)
	c.record(func(o *outcome) { o.key = granted.key.Name })
}

// CheckPools checks the cluster's pools against the keys of the configuration. The error joins every *PoolError, or reports that the
// cluster did not list its quotas.
func (g *Gateway) CheckPools(ctx context.Context) error {
	return g.checkUpstreams(ctx, func(u *upstream) (all error) {
		for _, pool := range g.poolsOf(u) {
			all = errors.Join(all, u.compare(pool))
		}
		return all
	})
}

// checkUpstreams lists the cluster's quotas and checks each upstream against them.
func (g *Gateway) checkUpstreams(ctx context.Context, check func(*upstream) error) error {
	if err := g.readCatalog(ctx); err != nil {
		return err
	}
	s := g.state.Load()
	var all error
	for _, name := range slices.Sorted(maps.Keys(s.upstreams)) {
		all = errors.Join(all, check(s.upstreams[name]))
	}
	return all
}

// poolsOf returns the pools that calls of an upstream may draw on: those below its prefix, and those that its rules name.
func (g *Gateway) poolsOf(u *upstream) []catalog.Quota {
	pools := g.catalog.Pools(u.config.Quotas)
	var named []string
	for _, rule := range u.config.Rules {
		named = slices.AppendSeq(named, maps.Keys(rule.Use))
	}
	for _, also := range u.config.Also {
		named = slices.AppendSeq(named, maps.Keys(also.Use))
	}
	slices.Sort(named)
	for _, name := range slices.Compact(named) {
		pool, _ := g.catalog.Get(name)
		if len(pool.Members) > 0 && !slices.ContainsFunc(pools, func(q catalog.Quota) bool { return q.Name == name }) {
			pools = append(pools, pool)
		}
	}
	return pools
}

// compare returns all mismatches between a pool and the keys of the upstream's pool.
func (u *upstream) compare(pool catalog.Quota) (all error) {
	var pooled []*keys.Key
	if u.keys != nil {
		pooled = slices.DeleteFunc(slices.Clone(u.keys.Keys()), func(k *keys.Key) bool { return !k.Pooled })
	}
	for _, member := range pool.Members {
		all = errors.Join(all, u.fits(pool, member, pooled))
	}
	for _, k := range pooled {
		if !pool.Has(k.Name) {
			all = errors.Join(all, u.noMember(pool, k))
		}
	}
	return all
}
