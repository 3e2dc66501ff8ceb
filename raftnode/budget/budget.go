// Package budget divides what a process has only so much of among those who ask for it.
package budget

import (
	"fmt"
	"sync"
)

// Budget is something of a process that callers share. A caller may take of it while what it has stays below
// max(minimum, half of what is free of capacity - kept - what others have), so that there is room for the next one. kept is for operators
// alone. It may be used by several goroutines.
type Budget struct {
	name                    string
	capacity, kept, minimum int64

	mu   sync.Mutex
	used int64
	by   map[string]int64
}

// New makes a budget of so many, of which kept are for operators alone. A caller may have minimum of it as long as there is room at all.
func New(name string, capacity, kept, minimum int64) *Budget {
	return &Budget{name: name, capacity: capacity, kept: kept, minimum: minimum, by: map[string]int64{}}
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

// Take takes n for a caller, or says why not. Who has nothing of it yet may take more than its part at once.
func (b *Budget) Take(caller string, n int64, operator bool) *FullError {
	b.mu.Lock()
	defer b.mu.Unlock()
	room := b.capacity - b.kept
	if operator {
		room = b.capacity
	}
	own := b.by[caller]
	switch {
	case !operator && own > 0 && own+n > b.mostLocked(own):
		return &FullError{b.name, true}
	case b.used+n > room:
		return &FullError{b.name, false}
	}
	b.used += n
	b.by[caller] = own + n
	return nil
}

// Charge takes n for a caller whatever room there is: for what is there already. Until it is given back, others find less.
func (b *Budget) Charge(caller string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += n
	b.by[caller] += n
}

// mostLocked returns how much a caller may have that has so much.
func (b *Budget) mostLocked(own int64) int64 {
	return max(b.minimum, (b.capacity-b.kept-(b.used-own))/2)
}

// Give gives back what a caller took.
func (b *Budget) Give(caller string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.by[caller] -= n; b.by[caller] <= 0 {
		delete(b.by, caller)
	}
}

// Has tells whether a caller has any of it.
func (b *Budget) Has(caller string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.by[caller] > 0
}

// InUse returns how much is taken, and by how many callers.
func (b *Budget) InUse() (used int64, callers int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used, len(b.by)
}

// View is a budget at one moment.
type View struct {
	Name                          string
	Capacity, Kept, Minimum, Used int64
	// Uses are those who have some of it, in any order.
	Uses []Use
}

// Use is what one caller has of a budget, and the most that it may have now.
type Use struct {
	Caller     string
	Used, Most int64
}

// View returns the budget as it is now.
func (b *Budget) View() View {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := View{Name: b.name, Capacity: b.capacity, Kept: b.kept, Minimum: b.minimum, Used: b.used, Uses: make([]Use, 0, len(b.by))}
	for caller, own := range b.by { // in any order
		v.Uses = append(v.Uses, Use{Caller: caller, Used: own, Most: b.mostLocked(own)})
	}
	return v
}
