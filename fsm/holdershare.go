package fsm

import "github.com/quotad/quotad/fsm/fixed"

// Single holders may have shares instead of the classes. A holder's share is kept from its own class and those below
// (docs/policy.md).

// shareOf returns ppm millionths of the usable amount.
func (q *quota) shareOf(ppm int64) int64 { return fixed.MulDivFloor(q.rule.Usable, ppm, fixed.Million) }

// ownShare is a holder's share of a window and its use of it.
type ownShare struct{ share, used int64 }

// sharesOfOthers returns the shares that are kept from a holder: those of other holders of its class and above. In
// quiet times nothing is kept for classes above background.
func (rq *request) sharesOfOthers(q *quota, quiet bool) (others []ownShare) {
	for _, h := range q.rule.Policy.Shares.Holders {
		own := rq.rules.classOfSharer(h.Holder)
		if h.Holder == rq.req.Holder || own > rq.rank || quiet && own < rq.class {
			continue
		}
		others = append(others, ownShare{share: q.shareOf(int64(h.SharePpm)), used: rq.holders.usedBy(q, h.Holder)})
	}
	return others
}

// keptFor names, in a message, the holders or class for which something is kept.
func (q *quota) keptFor() string {
	if len(q.rule.Policy.Shares.Holders) > 0 {
		return "holders with a share"
	}
	return "a higher class"
}
