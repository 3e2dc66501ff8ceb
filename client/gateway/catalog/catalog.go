// Package catalog has the quotas of the cluster, and finds those that a model draws on. Its caller refreshes it; a look-up takes no
// lock.
package catalog

import (
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/rpc/quotav1"
)

// AnyModel stands for the model in quotas for all models without their own.
const AnyModel = "@any"

// Quota is the part of a quota's definition and state that calls need.
type Quota struct {
	Name   string
	Parent string
	// Slots: it counts calls in flight.
	Slots bool
	// Returns: an amount that a call did not use returns. Actual: the definition says so itself (settle: actual); it is the default.
	Returns, Actual bool
	// ChargedLater: the provider charges during or at the end of a call, so the call counts until it is settled.
	ChargedLater bool
	// Daily: its window lasts a day or more.
	Daily bool
	// Limit is the provider's limit, Usable the usable part of it.
	Limit, Usable int64
	// MaxHold is the largest amount of one hold that is consumed at once, MaxCritical that of a critical call.
	MaxHold, MaxCritical int64
	// Members are the members of a pool; nil: it is no pool. A pool has the kind of its members.
	Members []Member
	// Available is the available amount when the list was read.
	Available int64
	// DefaultEstimate is the amount of an item without one.
	DefaultEstimate int64
	// Transit is how long a call may take to reach the provider.
	Transit time.Duration
	// Open: it was in no cooldown when the list was read.
	Open bool
}

// Member is a member of a pool.
type Member struct{ Name, Quota string }

// Has reports whether a pool has a member of that name.
func (q Quota) Has(member string) bool {
	return slices.ContainsFunc(q.Members, func(m Member) bool { return m.Name == member })
}

// Catalog has the cluster's quotas as last listed.
type Catalog struct {
	list atomic.Pointer[list]
}

// list is what one listing said; both parts change together.
type list struct {
	quotas map[string]Quota
	// parts has the parts of the models that were asked for so far, by the beginning of their quotas' names.
	parts sync.Map
}

// Set replaces the list.
func (c *Catalog) Set(all []*quotav1.QuotaStatus) {
	quotas := make(map[string]Quota, len(all))
	for _, status := range all {
		q := quotaOf(status)
		quotas[q.Name] = q
	}
	for name, q := range quotas {
		if len(q.Members) > 0 {
			quotas[name] = likeMembers(q, quotas)
		}
	}
	c.list.Store(&list{quotas: quotas})
}

// likeMembers returns a pool with its members' properties, and the sum of their available amounts.
func likeMembers(pool Quota, quotas map[string]Quota) Quota {
	pool.Available, pool.Returns = 0, false
	for _, member := range pool.Members {
		its := quotas[member.Quota]
		pool.Slots, pool.Actual, pool.Daily = pool.Slots || its.Slots, pool.Actual || its.Actual, pool.Daily || its.Daily
		pool.Returns, pool.ChargedLater = pool.Returns || its.Returns, pool.ChargedLater || its.ChargedLater
		pool.Available += its.Available
		pool.DefaultEstimate = max(pool.DefaultEstimate, its.DefaultEstimate)
	}
	return pool
}

func quotaOf(status *quotav1.QuotaStatus) Quota {
	definition := status.GetDefinition()
	q := Quota{
		Name: definition.GetName(), Parent: definition.GetParent(), Slots: definition.GetSlots() != nil,
		Returns: definition.GetSettle() != quotav1.SettleMode_SETTLE_MODE_MAX,
		Actual:  definition.GetSettle() == quotav1.SettleMode_SETTLE_MODE_ACTUAL, Usable: status.GetUsable(),
		Available: status.GetAvailableWithParents(), DefaultEstimate: definition.GetDefaultEstimate(), Open: status.GetCooldownLeft() == nil,
	}
	q.ChargedLater = definition.GetCharged() == quotav1.Charged_CHARGED_END || definition.GetCharged() == quotav1.Charged_CHARGED_DURING
	q.Transit = time.Second
	if transit := definition.GetTransit(); transit != nil {
		q.Transit = transit.AsDuration()
	} else if spendBy := definition.GetSpendBy(); spendBy != nil {
		q.Transit = min(q.Transit, spendBy.AsDuration()/2)
	}
	q.MaxHold = maxHold(definition, q.Usable)
	q.MaxCritical = min(q.MaxHold, capOf(definition, q.Usable))
	switch rule := definition.GetRule().(type) {
	case *quotav1.Quota_Window:
		q.Limit, q.Daily = rule.Window.GetLimit(), daily(rule.Window.GetEvery())
	case *quotav1.Quota_Rate:
		q.Limit, q.Daily = rule.Rate.GetLimit(), rule.Rate.GetPer().AsDuration() >= day
	case *quotav1.Quota_Slots:
		q.Limit = rule.Slots.GetLimit()
	case *quotav1.Quota_Pool:
		for _, member := range rule.Pool.GetMembers() {
			q.Members = append(q.Members, Member{member.GetName(), member.GetQuota()})
		}
	}
	return q
}

// day is the length from which a window counts as daily: tools treat such limits as final.
const day = 24 * time.Hour

// daily reports whether a window, by its text (hour, day, month, or a duration), lasts a day or more.
func daily(every string) bool {
	length, err := time.ParseDuration(every)
	return every == "day" || every == "month" || err == nil && length >= day
}

// maxHold returns the largest amount of one hold.
func maxHold(definition *quotav1.Quota, usable int64) int64 {
	most := usable
	if definition.GetClampHold() {
		most = max(1, (usable+1)/2)
	}
	if definition.MaxHold != nil {
		most = min(most, definition.GetMaxHold())
	}
	if rate := definition.GetRate(); rate.GetBurst() > 0 && usable > 0 {
		most = min(most, rate.GetBurst()-piledUp(definition, usable))
	}
	return most
}

// piledUp returns the part of a rate's burst that is never granted: all amounts consumed within one spend-by may reach the provider
// together.
func piledUp(definition *quotav1.Quota, usable int64) int64 {
	rate := definition.GetRate()
	period, n := big.NewInt(int64(rate.GetPer().AsDuration())), big.NewInt(usable)
	spendBy := int64(definition.GetSpendBy().AsDuration())
	if spendBy == 0 {
		spendBy = int64(min(max(rate.GetPer().AsDuration()/30, 250*time.Millisecond), 2*time.Second))
		longest := new(big.Int).Mul(big.NewInt(rate.GetBurst()), period)
		if longest.Quo(longest, new(big.Int).Lsh(n, 1)); longest.IsInt64() {
			spendBy = min(spendBy, longest.Int64())
		}
	}
	piled := n.Mul(n, big.NewInt(spendBy))
	piled.Quo(piled.Add(piled, new(big.Int).Sub(period, big.NewInt(1))), period) // rounded up
	return piled.Int64()
}

// defaultCap is the part of a quota with shares that critical calls may use, if its shares have no cap.
const defaultCap = 0.9

// capOf returns the most that critical calls may ever use at the same time.
func capOf(definition *quotav1.Quota, usable int64) int64 {
	shares := definition.GetPolicy().GetShares()
	if shares == nil {
		return usable
	}
	part := shares.GetCap()
	if part == 0 {
		part = defaultCap
	}
	return int64(float64(usable) * part)
}

// Most returns the largest amount of a quota that a single grant can ever have for a class, by its own bounds and its ancestors'. For a
// pool it is the largest of its members; 0: unknown. A call without a class may be critical.
func (c *Catalog) Most(name string, class config.Class) int64 {
	q, known := c.Get(name)
	if len(q.Members) > 0 {
		most := int64(0)
		for _, member := range q.Members {
			if its, ok := c.Get(member.Quota); ok && len(its.Members) == 0 {
				most = max(most, c.Most(member.Quota, class))
			}
		}
		return most
	}
	bound := func(q Quota) int64 {
		if class > config.Critical {
			return q.MaxHold
		}
		return q.MaxCritical
	}
	most := bound(q)
	for depth := 0; known && q.Parent != "" && depth < 16; depth++ {
		if q, known = c.Get(q.Parent); known {
			most = min(most, bound(q))
		}
	}
	return most
}

// Loaded reports whether the list was ever read.
func (c *Catalog) Loaded() bool { return c.list.Load() != nil }

// quotas returns the quotas by name; empty: the list was never read.
func (c *Catalog) quotas() map[string]Quota {
	if known := c.list.Load(); known != nil {
		return known.quotas
	}
	return nil
}

// Get returns a quota.
func (c *Catalog) Get(name string) (Quota, bool) {
	q, ok := c.quotas()[name]
	return q, ok
}

// Open reports whether a quota and its ancestors are in no cooldown.
func (c *Catalog) Open(q Quota) bool {
	for depth := 0; q.Open && q.Parent != "" && depth < 16; depth++ {
		above, known := c.Get(q.Parent)
		if !known {
			break
		}
		q = above
	}
	return q.Open
}

// Target is the quotas of a model.
type Target struct {
	// Model is the model's name in quotas.
	Model string
	// Parts are its quotas by part.
	Parts map[string]Quota
}

// Has reports whether the model has a quota.
func (t Target) Has() bool { return len(t.Parts) > 0 }

// Pooled reports whether any of the quotas is a pool.
func (t Target) Pooled() bool {
	for _, q := range t.Parts {
		if len(q.Members) > 0 {
			return true
		}
	}
	return false
}

// Rule returns the first rule of the configuration for a model of an upstream.
func Rule(rules []config.Model, upstream, model string) (config.Model, bool) {
	plain := Plain(model)
	for _, rule := range rules {
		if (rule.Upstream == "" || rule.Upstream == upstream) && (config.Match(rule.Match, model) || config.Match(rule.Match, plain)) {
			return rule, true
		}
	}
	return config.Model{}, false
}

// Find returns the quotas of a model of an upstream below a prefix: by the rules of the configuration, the exact name, the canonical
// name, or the quotas for all models without their own.
func (c *Catalog) Find(rules []config.Model, upstream, prefix, model string) Target {
	names := make([]string, 0, 4)
	plain := Plain(model)
	if rule, ok := Rule(rules, upstream, model); ok && rule.As != "" {
		names = append(names, rule.As)
	}
	if model != "" {
		names = append(names, Name(plain), Name(Canonical(model)))
	}
	for _, name := range append(names, AnyModel) {
		if name == AnyModel && model != "" && plain == AnyModel {
			continue // no model has that name
		}
		if parts := c.parts(prefix + "/" + name); len(parts) > 0 {
			return Target{Model: name, Parts: parts}
		}
	}
	return Target{Model: Name(Canonical(model))}
}

// parts returns the quotas of a model by part. It omits a quota that is an ancestor of another one: naming both would charge it twice.
// For pools, their first members decide. Calls share the result.
func (c *Catalog) parts(base string) map[string]Quota {
	known := c.list.Load()
	if known == nil {
		return nil
	}
	stored, _ := known.parts.Load(base)
	if parts, ok := stored.(map[string]Quota); ok {
		return parts
	}
	parts := c.findParts(base)
	if len(parts) > 0 { // so callers' names of models do not fill the memory
		known.parts.Store(base, parts)
	}
	return parts
}

func (c *Catalog) findParts(base string) map[string]Quota {
	parts := map[string]Quota{}
	for _, part := range config.Parts {
		if q, ok := c.Get(base + "/" + part); ok {
			parts[part] = q
		}
	}
	for _, q := range parts {
		for parent := c.first(q).Parent; parent != ""; {
			for part, other := range parts {
				if c.first(other).Name == parent {
					delete(parts, part)
				}
			}
			above, _ := c.Get(parent)
			parent = above.Parent
		}
	}
	return parts
}

// first returns the quota of a pool's first member, or the quota itself.
func (c *Catalog) first(q Quota) Quota {
	if len(q.Members) > 0 {
		q, _ = c.Get(q.Members[0].Quota)
	}
	return q
}

// Pools returns the pools below a prefix, by name.
func (c *Catalog) Pools(prefix string) []Quota {
	var out []Quota
	for name, q := range c.quotas() {
		if len(q.Members) > 0 && strings.HasPrefix(name, prefix+"/") {
			out = append(out, q)
		}
	}
	slices.SortFunc(out, func(a, b Quota) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Models returns the models below a prefix that have quotas, by name.
func (c *Catalog) Models(prefix string) []string {
	var out []string
	for name := range c.quotas() {
		rest, below := strings.CutPrefix(name, prefix+"/")
		at := strings.LastIndexByte(rest, '/')
		if below && at > 0 && slices.Contains(config.Parts, rest[at+1:]) && !slices.Contains(out, rest[:at]) {
			out = append(out, rest[:at])
		}
	}
	slices.Sort(out)
	return out
}
