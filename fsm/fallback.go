package fsm

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// A quota may name the next one of its fallback chain, such as another model's quota. Calls that allow it are granted
// that quota if their own will soon be used up, or is refused.

// instead returns a Reserve of the next quotas of the chains; nil: the chains have ended. All items that have a
// fallback move together, because requests and tokens belong to one model.
func (m *Machine) instead(req *logpb.Reserve) *logpb.Reserve {
	items, moved := make([]*logpb.Item, len(req.Items)), false
	for i, item := range req.Items {
		items[i] = item
		q := m.quotas.named(item.Quota)
		if q == nil || q.definition.Fallback == "" || m.quotas.named(q.definition.Fallback) == nil {
			continue
		}
		items[i], moved = &logpb.Item{Quota: q.definition.Fallback, Amount: item.Amount}, true
	}
	if !moved || namesTwice(items) {
		return nil
	}
	other := proto.CloneOf(req)
	other.Items, other.Resume = items, false
	return other
}

// fallBack tries the next quotas of the chains, and grants the first that can be granted now; nil: none.
func (m *Machine) fallBack(req *logpb.Reserve, needs []need) *logpb.Result {
	if !req.Fallback {
		return nil
	}
	other := m.instead(req)
	for depth := 0; other != nil && depth < maxDepth; depth++ {
		if result := m.grantElsewhere(req, other); result != nil {
			if forecast, granted := m.judge.forecastOf(needs), result.GetGranted(); forecast != nil && granted != nil {
				granted.Forecast = forecast
			}
			return result
		}
		other = m.instead(other)
	}
	return nil
}

// grantElsewhere grants a Reserve of other quotas than those requested, if that is possible now.
func (m *Machine) grantElsewhere(req, other *logpb.Reserve) *logpb.Result {
	needs, failure := m.judge.needs(other)
	if failure != nil {
		return nil
	}
	rq := m.judge.request(other, needs)
	recordDemand(needs, rq.priority, m.clock.Now)
	if rq.reject(needs) != nil || m.holders.remembering(other.Holder, needs) != accounts.MayTake {
		return nil
	}
	result, _ := m.grantNow(&rq, needs)
	for i, item := range result.GetGranted().GetItems() {
		if i < len(req.Items) && item.Quota != req.Items[i].Quota && item.Pool != req.Items[i].Quota {
			item.InsteadOf = req.Items[i].Quota
		}
	}
	return result
}

func namesTwice(items []*logpb.Item) bool {
	for i, item := range items {
		if slices.ContainsFunc(items[:i], func(other *logpb.Item) bool { return other.Quota == item.Quota }) {
			return true
		}
	}
	return false
}

// checkFallback checks that a definition's fallbacks exist, form no cycle, and are slots only for slots.
func (m *Machine) checkFallback(definition *logpb.Quota, defined map[string]*logpb.Quota, kinds map[string]ledger.Kind) *logpb.Failure {
	isSlots := kinds[definition.Name] == ledger.KindSlots
	name := definition.Fallback
	for depth := 1; name != ""; depth++ {
		if name == definition.Name || depth > maxDepth {
			return ledger.Impossible(definition, "its fallbacks form a cycle or are too many", fmt.Sprintf("at most %d", maxDepth))
		}
		next, kind := defined[name], kinds[name]
		if next == nil {
			q := m.quotas.named(name)
			if q == nil {
				return ledger.Impossible(definition, fmt.Sprintf("its fallback %q does not exist", name), "define it in the same file")
			}
			next, kind = q.definition, q.rule.Kind
		}
		if kind == ledger.KindPool {
			return ledger.Impossible(definition, fmt.Sprintf("its fallback %q is a pool", name),
				"name the next one among the pool's members, or reserve the pool")
		}
		if (kind == ledger.KindSlots) != isSlots {
			return ledger.Impossible(definition, fmt.Sprintf("it and its fallback %q are not both slots, or both not", name),
				"slots stand in for slots")
		}
		name = next.Fallback
	}
	return nil
}

// standsIn returns the first quota, by number, that has q as its fallback; empty: none.
func (qs *quotaTable) standsIn(q *quota) (name string) {
	qs.fallbacks.Ascend(standIn{fallback: q.name}, func(in standIn) bool {
		if in.fallback == q.name {
			name = qs.get(in.quota).name
		}
		return false
	})
	return name
}

// setDefinition sets a quota's definition and indexes its fallback; a nil definition: the quota is deleted.
func (qs *quotaTable) setDefinition(q *quota, definition *logpb.Quota) {
	if was := q.definition.GetFallback(); was != "" {
		qs.fallbacks.Delete(standIn{fallback: was, quota: q.number})
	}
	if now := definition.GetFallback(); now != "" {
		qs.fallbacks.Set(standIn{fallback: now, quota: q.number})
	}
	q.definition = definition
}
