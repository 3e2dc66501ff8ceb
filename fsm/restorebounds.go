package fsm

import (
	"fmt"
	"io"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// Anybody who may restore a backup can supply a snapshot, so its checksum proves nothing. Restore accepts only values
// within the bounds of Apply. Otherwise Apply would panic on every node, or reach a state that cannot be restored.

const (
	// MaxEpoch is the last epoch of fences: an epoch has 16 bits of a fence.
	MaxEpoch = 1<<16 - 1
	// maxGrants bounds the grants of an epoch, which have 48 bits of a fence.
	maxGrants = 1<<48 - 1
	// mostNumbered and mostNumbered32 bound the counters of a backup, of 64 and of 32 bits, such as that of leases:
	// enough numbers stay free for everything later.
	mostNumbered, mostNumbered32 = 1 << 62, 1 << 31
)

// RestoreBackup is Restore for a snapshot from an untrusted source. It also refuses a snapshot after which the cluster
// would run out of numbers.
func RestoreBackup(r io.Reader) (*Machine, error) {
	m, err := Restore(r)
	switch {
	case err != nil:
		return nil, err
	case m.epoch >= MaxEpoch:
		return nil, fmt.Errorf("%w: its epoch is %d, and no other can follow", ErrCorruptSnapshot, m.epoch)
	case max(m.index, m.term, m.lastLease, m.queue.lastTicket, m.requests.Last, m.accounts.Last) > mostNumbered,
		max(m.quotas.last, m.queue.lastWaitSet) > mostNumbered32:
		return nil, fmt.Errorf("%w: one of its counters is too high", ErrCorruptSnapshot)
	}
	return m, nil
}

// checkHead checks the parts of a fence, clocks and limits.
func (r *restoring) checkHead() error {
	s := r.m.state
	c := &s.clock
	switch {
	case s.epoch > MaxEpoch, s.grants > maxGrants:
		return fmt.Errorf("fence %d of epoch %d, which there cannot be", s.grants, s.epoch)
	case c.Now < 0, c.Now > fixed.MaxTime, c.WallEarly < 0, c.WallEarly > fixed.MaxTime, c.WallLate < c.WallEarly, c.Shift < 0,
		c.Shift > fixed.MaxTime:
		return fmt.Errorf("a time that there cannot be: %+v", *c)
	}
	if failure := checkLimits(s.encodeLimits()); failure != nil {
		return fmt.Errorf("%s", failure.Message)
	}
	return nil
}

// takeRule enters a holder rule.
func (r *restoring) takeRule(rule *logpb.HolderRule) error {
	m := r.m
	m.rules.list = append(m.rules.list, rule)
	if failure := checkRules(m.rules.list[len(m.rules.list)-1:]); failure != nil || len(m.rules.list) > maxRules {
		return fmt.Errorf("holder rule %d is malformed, or one too many", len(m.rules.list))
	}
	return nil
}
