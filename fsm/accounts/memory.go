package accounts

import "github.com/quotad/quotad/fsm/fixed"

// costs is the memory of one unit of each budget, in hundredths of a byte: of its most expensive object, as tests measure. Reports take
// none.
var costs = [Budgets]int64{
	Sessions: 440_00, Keys: 780_00, Results: 1_30, Waiters: 950_00, Tasks: 1130_00, Leases: 470_00, Holders: 1_27, Operations: 1_36,
}

// accountBytes is the memory of an account with a long name.
const accountBytes = 400

// MemoryOf returns the memory of this many units of a budget, in bytes.
func MemoryOf(b Budget, units int64) int64 { return fixed.MulDivFloor(units, costs[b], 100) }

// Memory returns the memory that the state takes with every budget full and as many accounts as there can be, in bytes. A waiting Reserve
// also counts as a lease, and takes only its own memory.
func (l *Limits) Memory() (bytes int64) {
	const most = 1 << 59 // the sum of all budgets is no overflow
	for b := range Budget(Budgets) {
		units := l.Of(b)
		if b == Leases {
			units = max(0, units-l.Waiters)
		}
		bytes += min(MemoryOf(b, units), most)
	}
	return bytes + MaxAccounts*accountBytes
}

// DefaultMemory is the Memory of the default limits, rounded up.
const DefaultMemory = 1_600_000_000

// LimitsFor returns the default limits with each budget lowered in proportion, so that all of them together take no more memory than this
// many bytes. Reports, times and the limits of each node stay.
func LimitsFor(bytes int64) Limits {
	l := DefaultLimits()
	if bytes >= DefaultMemory {
		return l
	}
	const fixedPart = MaxAccounts * accountBytes
	whole := l.Memory() - fixedPart
	for _, budget := range []*int64{
		&l.Sessions, &l.Keys, &l.ResultBytes, &l.Waiters, &l.Tasks, &l.Leases, &l.HolderBytes, &l.OperationBytes,
	} {
		*budget = max(1, fixed.MulDivFloor(*budget, max(0, bytes-fixedPart), whole))
	}
	return l
}
