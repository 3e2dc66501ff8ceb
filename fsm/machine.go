package fsm

import (
	"io"

	"github.com/quotad/quotad/fsm/logpb"
)

// Machine is the replicated state machine.
type Machine struct{ state *State }

// State is the replicated state for reading.
type State struct{}

// New returns the state at the cluster's birth.
func New() *Machine { return &Machine{state: &State{}} }

// Apply applies one log entry, an encoded logpb.Entry. It panics on an entry that it cannot decode or does not know:
// going on would make replicas differ.
func (m *Machine) Apply(index, term uint64, data []byte) Applied { panic("stub") }

// State returns the live state for reading. It must not be used while Apply runs.
func (m *Machine) State() *State { return m.state }

// Freeze returns the state as it is now, which never changes again, in constant time. It may be read from any
// goroutine while Apply goes on.
func (m *Machine) Freeze() *State { panic("stub") }

// Restore reads a snapshot that WriteSnapshot wrote.
func Restore(r io.Reader) (*Machine, error) { panic("stub") }

// WriteSnapshot writes the state.
func (s *State) WriteSnapshot(w io.Writer) error { panic("stub") }

// Hash returns the hash of the ledger (quotas, leases, operations, fence) and of the whole state.
func (s *State) Hash() (ledger, whole [32]byte) { panic("stub") }

// Verify recomputes all totals from single leases and operations and returns the first difference.
func (s *State) Verify() error { panic("stub") }

// Clock returns the state's own clock: that of the last entry.
func (s *State) Clock() Clock { panic("stub") }

// Index returns the index of the last entry applied.
func (s *State) Index() uint64 { panic("stub") }

// NextDue returns the cluster time at which an entry should be written, so that something due happens (an expiry, the
// end of a wait or cooldown, relief for a waiter), and whether anything at all is pending: while it is, some entry is
// wanted at least every tick.
func (s *State) NextDue() (at int64, pending bool) { panic("stub") }

// Quota returns one quota as it stands at a clock.
func (s *State) Quota(name string, at Clock) (QuotaView, bool) { panic("stub") }

// Quotas returns up to limit quotas in name order whose names start with prefix and come after the name after.
func (s *State) Quotas(prefix, after string, limit int, at Clock) []QuotaView { panic("stub") }

// Leases returns up to limit live leases by id, above the id after, of a holder and with an item of a quota (empty:
// any).
func (s *State) Leases(holder, quota string, after uint64, limit int, at Clock) []LeaseView {
	panic("stub")
}

// CheckFence tells whether a lease lives and has this fence, and what is left of it (nanoseconds).
func (s *State) CheckFence(lease, fence uint64, at Clock) (valid bool, left int64) { panic("stub") }

// FenceCounter returns the newest fence.
func (s *State) FenceCounter() uint64 { panic("stub") }

// Epoch returns the fence's epoch.
func (s *State) Epoch() uint32 { panic("stub") }

// ClusterID returns the cluster's id; empty before it was founded.
func (s *State) ClusterID() string { panic("stub") }

// Members returns the API addresses of nodes, by id.
func (s *State) Members() []MemberView { panic("stub") }

// Counts returns the sizes of the state's tables.
func (s *State) Counts() Counts { panic("stub") }

// Waiting tells whether a ticket stands in the queue.
func (s *State) Waiting(ticket uint64) bool { panic("stub") }

// Holders returns the holder rules.
func (s *State) Holders() []*logpb.HolderRule { panic("stub") }
