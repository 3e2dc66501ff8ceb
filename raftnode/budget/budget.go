// Package budget divides what a process has only so much of among those who ask for it.
package budget

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
)

// Budget is something of a process that callers share. A caller may take of it while what it has stays below
// max(minimum, half of what is free of capacity - kept - what others have), so that there is room for the next one. kept is for operators
// alone: an operator may have half of what others leave of the whole capacity. It may be used by several goroutines.
type Budget struct {
	name string

	mu                      sync.Mutex
	capacity, kept, minimum int64
	// used is the sum of all counted parts. It never exceeds capacity, and others than operators find no room above capacity - kept.
	used int64
	// excess is the sum of all parts' excess.
	excess int64
	by     map[string]part
}

// part is what one caller has. over is what it was charged beyond its part: others do not see it, and as long as there is any the caller
// gets nothing more. excess is what it had beyond its part when the budget changed its size: operators do not see it, all others do.
type part struct{ counted, over, excess int64 }

func (p part) all() int64 { return p.counted + p.over + p.excess }

// seen returns what operators, or others, see of it.
func (p part) seen(operator bool) int64 {
	if operator {
		return p.counted
	}
	return p.counted + p.excess
}

// New makes a budget of so many, of which kept are for operators alone. A caller may have minimum of it as long as there is room at all.
func New(name string, capacity, kept, minimum int64) *Budget {
	return &Budget{name: name, capacity: capacity, kept: kept, minimum: minimum, by: map[string]part{}}
}

// Name returns the budget's name, for refusals and metrics.
func (b *Budget) Name() string { return b.name }

// FullError says that a budget has no room for a caller.
type FullError struct {
	// Budget is its name.
	Budget string
	// Own is true where the caller has its part, and false where there is no room for anybody.
	Own bool
}

// Error implements error.
func (e *FullError) Error() string {
	if e.Own {
		return fmt.Sprintf("the caller has used up its part of the budget %s", e.Budget)
	}
	return fmt.Sprintf("the budget %s of this node is used up", e.Budget)
}

// Take takes n for a caller, or says why not. A caller that has nothing of it yet may take more than its part at once.
func (b *Budget) Take(caller string, n int64, operator bool) *FullError {
	b.mu.Lock()
	defer b.mu.Unlock()
	has := b.by[caller]
	switch {
	case has.over > 0 && !operator: // what an address owes without tokens does not keep its operator out
		return &FullError{b.name, true}
	case has.seen(operator) > 0 && has.seen(operator)+n > b.mostLocked(has, operator):
		return &FullError{b.name, true}
	}
	return b.takeLocked(caller, n, b.leftLocked(part{}, operator))
}

// TakeForAll takes n for work that the process does for all callers: of the whole capacity, without a part of its own.
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

// Charge takes n for a caller whatever room there is: for what is there already. What is beyond the caller's part, or beyond the room that
// there is, is counted apart: it keeps out that caller alone.
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

// Resize changes how much there is, how much of it is for operators alone, and a caller's minimum. What callers have stays. Where that is
// more than there is now, others than operators get nothing more until it fits. Operators find what is kept for them at once, however much
// others have: so they can make the budget larger again.
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

// levelLocked returns up to how much of what a caller took operators see, so that it leaves room: those who have most count as many as
// each may have next to the others.
func (b *Budget) levelLocked() (level int64) {
	all, rest := make([]int64, 0, len(b.by)), int64(0)
	for _, has := range b.by { // in any order
		all = append(all, has.seen(false))
		rest += has.seen(false)
	}
	slices.SortFunc(all, func(x, y int64) int { return cmp.Compare(y, x) })
	for i, taken := range all {
		rest -= taken
		level = max(0, b.capacity-b.kept-rest) / int64(i+2) // one part for each so far, and a free one
		if i == len(all)-1 || level >= all[i+1] {
			break
		}
	}
	return level
}

// Alone returns the most that a caller may have where there is no other.
func (b *Budget) Alone() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mostOf(b.capacity - b.kept)
}

// leftLocked returns what of the capacity a caller may take from is left, next to what all have except one part.
func (b *Budget) leftLocked(but part, operator bool) int64 {
	if operator {
		return b.capacity - (b.used - but.counted)
	}
	return b.capacity - b.kept - (b.used + b.excess - but.seen(false))
}

// mostLocked returns how much a caller may have that has so much.
func (b *Budget) mostLocked(has part, operator bool) int64 {
	return b.mostOf(b.leftLocked(has, operator))
}

// mostOf returns how much a caller may have of what others leave.
func (b *Budget) mostOf(left int64) int64 { return max(b.minimum, left/2) }

// Give returns what a caller took, first what is beyond its part.
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

// Has tells whether a caller has any of it.
func (b *Budget) Has(caller string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.by[caller].all() > 0
}

// InUse returns how much is taken, apart from what callers have beyond their parts, and by how many callers.
func (b *Budget) InUse() (used int64, callers int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used + b.excess, len(b.by)
}

// View is a budget at one moment.
type View struct {
	Name                          string
	Capacity, Kept, Minimum, Used int64
	// Uses are the callers that have some of it, in any order.
	Uses []Use
}

// Use is what one caller has of a budget, above Most where it was charged beyond its part, and the most that it may have now.
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
