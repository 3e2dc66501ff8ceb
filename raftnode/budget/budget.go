// Package budget divides what a process has only so much of among those who ask for it.
package budget

import (
	"fmt"
	"sync"
)

// Budget is something of a process that callers share. A caller may take of it while what it has stays below
// max(minimum, half of what is free of capacity - kept - what others have), so that there is room for the next one. kept is for operators
// alone: an operator may have half of what others leave of the whole capacity. It may be used by several goroutines.
type Budget struct {
	name                    string
	capacity, kept, minimum int64

	mu sync.Mutex
	// used is the sum of all counted parts. It never exceeds capacity, and others than operators find no room above capacity - kept.
	used int64
	by   map[string]part
}

// part is what one caller has. over is what it was charged beyond its part: others do not see it, and as long as there is any the caller
// gets nothing more.
type part struct{ counted, over int64 }

func (p part) all() int64 { return p.counted + p.over }

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
	case has.counted > 0 && has.counted+n > b.mostLocked(has, operator):
		return &FullError{b.name, true}
	}
	return b.takeLocked(caller, n, b.open(operator))
}

// TakeForAll takes n for work that the process does for all callers: of the whole capacity, without a part of its own.
func (b *Budget) TakeForAll(name string, n int64) *FullError {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.takeLocked(name, n, b.capacity)
}

func (b *Budget) takeLocked(caller string, n, open int64) *FullError {
	if b.used+n > open {
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
	fits := min(b.mostLocked(has, operator)-has.counted, b.open(operator)-b.used)
	counted := max(0, min(n, fits))
	has.counted += counted
	has.over += n - counted
	b.used += counted
	b.by[caller] = has
}

// Alone returns the most that a caller may have where there is no other.
func (b *Budget) Alone() int64 { return max(b.minimum, b.open(false)/2) }

// open returns what of the capacity a caller may take from.
func (b *Budget) open(operator bool) int64 {
	if operator {
		return b.capacity
	}
	return b.capacity - b.kept
}

// mostLocked returns how much a caller may have that has so much.
func (b *Budget) mostLocked(has part, operator bool) int64 {
	return max(b.minimum, (b.open(operator)-(b.used-has.counted))/2)
}

// Give returns what a caller took, first what is beyond its part.
func (b *Budget) Give(caller string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	has := b.by[caller]
	over := min(n, has.over)
	has.over -= over
	has.counted -= n - over
	b.used -= n - over
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
	return b.used, len(b.by)
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
	v := View{Name: b.name, Capacity: b.capacity, Kept: b.kept, Minimum: b.minimum, Used: b.used, Uses: make([]Use, 0, len(b.by))}
	for caller, has := range b.by { // in any order
		v.Uses = append(v.Uses, Use{Caller: caller, Used: has.all(), Most: b.mostLocked(has, false)})
	}
	return v
}
