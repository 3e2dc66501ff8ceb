package fsm

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// retryWindow is when a class retries after a cooldown: from and to after its end (nanoseconds).
type retryWindow struct{ from, to int64 }

// retryWindows do not overlap, so that callers in any language that poll retry in the order of their classes. A test
// checks that they equal those of client/pacing.
var retryWindows = [ledger.Classes]retryWindow{
	{0, 500 * fixed.Millisecond},
	{500 * fixed.Millisecond, 3500 * fixed.Millisecond},
	{3500 * fixed.Millisecond, 9500 * fixed.Millisecond},
}

// RetryWindow returns when a class (0 to 2) retries after a cooldown, from and to after its end (nanoseconds).
func RetryWindow(class int32) (from, to int64) {
	return retryWindows[class].from, retryWindows[class].to
}

// coolingRefusal refuses a need because of a cooldown. Its retry time lies in the window of the class, spread by
// holder, quota and request: calls of one holder do not retry together, and no holder is always the last. If a ramp
// lets the amount through later, at reopens, the window begins then.
func (j *judge) coolingRefusal(q *quota, holder string, class int32, reopens int64) *logpb.Refusal {
	refusal := j.refusal(logpb.Reason_REASON_COOLDOWN, q, reopens, "the provider closed it")
	if j.featureLevel < levels.Reports {
		return refusal
	}
	window := retryWindows[class]
	width := uint64(window.to - window.from)
	refusal.ReopensAtNs = q.cooldown
	offset := window.from + int64(j.spreadOf(holder, q)%width)
	refusal.RetryAtNs = fixed.AddSaturated(max(q.cooldown, reopens), offset)
	if j.featureLevel < levels.Spread {
		refusal.RetryAtNs = max(fixed.AddSaturated(q.cooldown, offset), reopens)
	}
	return refusal
}

// spreadOf returns a number that is equal on every node, and differs by holder, quota, cooldown and request. A request
// is identified by its entry's index and its position in the entry, a waiter by its ticket instead of the position.
func (j *judge) spreadOf(holder string, q *quota) uint64 {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(holder))
	_, _ = hash.Write([]byte{0})
	_, _ = hash.Write([]byte(q.name))
	var numbers [16]byte
	binary.BigEndian.PutUint64(numbers[:8], uint64(q.cooldown))
	binary.BigEndian.PutUint64(numbers[8:], j.index)
	_, _ = hash.Write(numbers[:])
	return scatter(hash.Sum64(), j.asker)
}
