package fsm

import (
	"fmt"
	"strings"

	"github.com/quotad/quotad/fsm/logpb"
)

// Single holders may have shares in place of the classes: what is kept for a holder is kept against its own class and those
// below (docs/policy.md).

// maxHolderShares bounds how many holders have a share of one quota: each Reserve of it looks at all.
const maxHolderShares = 64

// sumOfHolders adds the shares of single holders up, or says what is wrong with them.
func sumOfHolders(def *logpb.Quota, holders []*logpb.HolderShare) (sum int64, failure *logpb.Failure) {
	if len(holders) > maxHolderShares {
		return 0, impossible(def, fmt.Sprintf("%d holders have a share", len(holders)), fmt.Sprintf("at most %d; give shares to classes", maxHolderShares))
	}
	for i, h := range holders {
		switch {
		case h.Holder == "" || strings.Contains(h.Holder, "*"):
			return 0, impossible(def, fmt.Sprintf("%q is no single holder's name", h.Holder), "a pattern has no share; name holders, or give shares to classes")
		case h.SharePpm <= 0 || h.SharePpm > million:
			return 0, impossible(def, "a share must be above 0 and at most 1", "such as 0.1")
		}
		for _, other := range holders[:i] {
			if other.Holder == h.Holder {
				return 0, impossible(def, fmt.Sprintf("holder %q has two shares", h.Holder), "add them up")
			}
		}
		sum += int64(h.SharePpm)
	}
	return sum, nil
}

// holder returns the share of one holder, in millionths of usable; 0: it has none.
func (s *shares) holder(name string) int64 {
	for _, h := range s.holders {
		if h.Holder == name {
			return int64(h.SharePpm)
		}
	}
	return 0
}

// shareOf returns so many millionths of usable.
func (q *quota) shareOf(ppm int64) int64 { return mulDivFloor(q.rule.usable, ppm, million) }

// ownShare is a holder's share of a window and what it has used of it.
type ownShare struct{ share, used int64 }

// sharesOfOthers returns the shares that are kept from a holder: those of other holders of its class and above. In quiet
// times nothing is kept for classes above background.
func (m *Machine) sharesOfOthers(q *quota, name string, as priority, quiet bool) (others []ownShare) {
	for _, h := range q.rule.policy.shares.holders {
		own := m.classOfSharer(h.Holder)
		if h.Holder == name || own > as.rank || quiet && own < as.class {
			continue
		}
		others = append(others, ownShare{share: q.shareOf(int64(h.SharePpm)), used: m.usedBy(q, h.Holder)})
	}
	return others
}

// classOfSharer returns the class of a holder with a share: each judgement asks for all of them, and there may be many rules.
func (m *Machine) classOfSharer(name string) int32 {
	class, known := m.sharers[name]
	if !known {
		class, _ = m.byRules(name)
		m.sharers[name] = class
	}
	return class
}

// keptFor says, for people, for whom something is kept.
func (q *quota) keptFor() string {
	if len(q.rule.policy.shares.holders) > 0 {
		return "holders with a share"
	}
	return "a higher class"
}
