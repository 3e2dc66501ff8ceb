// Package budget divides a bounded resource of a process among its callers.
package budget

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
)

// Budget is a bounded resource that callers share. A caller may take more while its use stays below max(minimum, half of capacity - kept -
// use of others), so that the next caller finds room. kept is for operators alone: an operator may have half of capacity - use of others. A
// Budget is safe for concurrent use.
type Budget struct {
	name string

	mu                      sync.Mutex
	capacity, kept, minimum int64
	// used is the sum of all counted parts. It never exceeds capacity. Callers other than operators find no room above capacity - kept.
	used int64
	// excess is the sum of all parts' excess.
	excess int64
	by     map[string]part
}

// part is one caller's use. over is what it was charged beyond its part: hidden from other callers, but the caller gets nothing more while
// it is above 0. excess is what exceeded its part when the budget changed its size: hidden from operators, visible to all others.
type part struct{ counted, over, excess int64 }

func (p part) all() int64 { return p.counted + p.over + p.excess }

// seen returns how much of the part counts against an operator, or against others.
func (p part) seen(operator bool) int64 {
	if operator {
		return p.counted
	}
	return p.counted + p.excess
}

// New makes a budget with the given capacity, of which kept is for operators alone. A caller may have minimum of it while there is room at
// all.
func New(name string, capacity, kept, minimum int64) *Budget {
	return &Budget{name: name, capacity: capacity, kept: kept, minimum: minimum, by: map[string]part{}}
}

// Name returns the budget's name, for refusals and metrics.
func (b *Budget) Name() string { return b.name }

// FullError says that a budget has no room for a caller.
type FullError struct {
	// Budget is the name of the budget.
	Budget string
	// Own: the caller has used up its own part; otherwise no caller finds room.
	Own bool
}

// Error implements error.
func (e *FullError) Error() string {
	if e.Own {
		return fmt.Sprintf("the caller has used up its part of the budget %s", e.Budget)
	}
	return fmt.Sprintf("the budget %s of this node is used up", e.Budget)
}

// Take takes n for a caller, or returns why it cannot. A caller that has none of the budget yet may take more than its part in one call.
func (b *Budget) Take(caller string, n int64, operator bool) *FullError {
	b.mu.Lock()
	defer b.mu.Unlock()
	has := b.by[caller]
	switch {
	case has.over > 0 && !operator: // an address's debt from calls without tokens does not block its operator
		return &FullError{b.name, true}
	case has.seen(operator) > 0 && has.seen(operator)+n > b.mostLocked(has, operator):
		return &FullError{b.name, true}
	}
	return b.takeLocked(caller, n, b.leftLocked(part{}, operator))
}

// TakeForAll takes n for work on behalf of all callers: from the whole capacity, without the bound of a caller's part.
func (b *Budget) TakeForAll(name string, n int64) *FullError {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.takeLocked(name, n, b.capacity-b.used-b.excess)
}

func (b *Budget) takeLocked(caller string, n, room int64) *FullError {
	if n > room {
		return &FullError{b.name, false}
	}
	has := b.by[caller]
	has.counted += n
	b.used += n
	b.by[caller] = has
	return nil
}

// Charge takes n for a caller regardless of room, for what exists already. The amount beyond the caller's part, or beyond the room, is
// counted separately: it blocks that caller alone.
func (b *Budget) Charge(caller string, n int64, operator bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	has := b.by[caller]
	fits := min(b.mostLocked(has, operator)-has.seen(operator), b.leftLocked(part{}, operator))
	counted := max(0, min(n, fits))
	has.counted += counted
	has.over += n - counted
	b.used += counted
	b.by[caller] = has
}

// Resize changes the capacity, the amount kept for operators, and a caller's minimum. Callers keep what they have. If that exceeds the new
// size, callers other than operators get nothing more until it fits. Operators find the kept amount at once, whatever others have, so they
// can enlarge the budget again.
func (b *Budget) Resize(capacity, kept, minimum int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.capacity, b.kept, b.minimum = capacity, kept, minimum
	level := b.levelLocked()
	b.used, b.excess = 0, 0
	for caller, has := range b.by { // in any order
		taken := has.seen(false)
		has.counted = min(taken, level)
		has.excess = taken - has.counted
		b.used += has.counted
		b.excess += has.excess
		b.by[caller] = has
	}
}

// levelLocked returns the highest use of one caller that counts against operators. It lowers the largest users to a common level, so that
// an equal share stays free.
func (b *Budget) levelLocked() (level int64) {
	all, rest := make([]int64, 0, len(b.by)), int64(0)
	for _, has := range b.by { // in any order
		all = append(all, has.seen(false))
		rest += has.seen(false)
	}
	slices.SortFunc(all, func(x, y int64) int { return cmp.Compare(y, x) })
	for i, taken := range all {
		rest -= taken
		level = max(0, b.capacity-b.kept-rest) / int64(i+2) // equal shares: one for each of the largest so far, and a free one
		if i == len(all)-1 || level >= all[i+1] {
			break
		}
	}
	return level
}

// Alone returns the most that a sole caller may have.
func (b *Budget) Alone() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mostOf(b.capacity - b.kept)
}

// leftLocked returns the capacity that the parts of all callers except one leave, for an operator or for others.
func (b *Budget) leftLocked(but part, operator bool) int64 {
	if operator {
		return b.capacity - (b.used - but.counted)
	}
	return b.capacity - b.kept - (b.used + b.excess - but.seen(false))
}

// mostLocked returns the most that a caller with this part may have.
func (b *Budget) mostLocked(has part, operator bool) int64 {
	return b.mostOf(b.leftLocked(has, operator))
}

// mostOf returns the most that a caller may have of what others leave.
func (b *Budget) mostOf(left int64) int64 { return max(b.minimum, left/2) }

// Give returns n of a caller's use, first what is beyond its part.
func (b *Budget) Give(caller string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	has := b.by[caller]
	over := min(n, has.over)
	has.over -= over
	excess := min(n-over, has.excess)
	has.excess -= excess
	b.excess -= excess
	has.counted -= n - over - excess
	b.used -= n - over - excess
	if has.all() <= 0 {
		delete(b.by, caller)
		return
	}
	b.by[caller] = has
}

// Has tells whether a caller has any of the budget.
func (b *Budget) Has(caller string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.by[caller].all() > 0
}

// InUse returns how much is taken, without what callers were charged beyond their parts, and by how many callers.
func (b *Budget) InUse() (used int64, callers int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used + b.excess, len(b.by)
}

// View is a budget at one moment.
type View struct {
	Name                          string
	Capacity, Kept, Minimum, Used int64
	// Uses are the callers that have some of the budget, in any order.
	Uses []Use
}

// Use is one caller's use of a budget, and the most that it may have now. Used exceeds Most after a charge beyond the caller's part.
type Use struct {
	Caller     string
	Used, Most int64
}

// View returns the budget as it is now.
func (b *Budget) View() View {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := View{Name: b.name, Capacity: b.capacity, Kept: b.kept, Minimum: b.minimum, Used: b.used + b.excess, Uses: make([]Use, 0, len(b.by))}
	for caller, has := range b.by { // in any order
		v.Uses = append(v.Uses, Use{Caller: caller, Used: has.all(), Most: b.mostLocked(has, false)})
	}
	return v
}
