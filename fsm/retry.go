package fsm

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// retryWindow is when a class comes back after a cooldown: from and to after its end (nanoseconds).
type retryWindow struct{ from, to int64 }

// retryWindows do not overlap, so that callers that poll come back in the order of their classes, in whatever language. They are those
// of client/pacing, which a test holds equal.
var retryWindows = [ledger.Classes]retryWindow{
	{0, 500 * fixed.Millisecond},
	{500 * fixed.Millisecond, 3500 * fixed.Millisecond},
	{3500 * fixed.Millisecond, 9500 * fixed.Millisecond},
}

// RetryWindow returns when a class (0 to 2) comes back after a cooldown, from and to after its end (nanoseconds).
func RetryWindow(class int32) (from, to int64) {
	return retryWindows[class].from, retryWindows[class].to
}

// coolingRefusal refuses what a cooldown keeps from everybody. It says when to come back inside the window of the class, spread by
// who asks, for what, and in which request: so that the calls of one holder do not come together, and nobody is always the last.
// Where a ramp lets so much through later, at reopens, the window is after that.
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

// spreadOf returns a number that is the same on every node, and another one for each holder, quota, cooldown and request. A request is
// named by where its entry has it, one that waits by its ticket.
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
