package dedup

import (
	"cmp"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// tester is the common part of *testing.T and *rapid.T.
type tester interface {
	Helper()
	Fatal(args ...any)
}

// caller is charged for everything.
const caller = "caller"

// machine is a stub of the machine: it answers each command with a distinct result, and counts the commands that it
// carries out.
type machine struct {
	t      tester
	table  *Table
	book   accounts.Book
	moment Moment
	// payer is the present command's payer; namesPayer replaces it when the command is carried out, unless it is empty.
	payer      accounts.Payer
	namesPayer string
	applied    uint64
	// waits: commands wait, under a ticket that is the number of the command.
	waits bool
	// left is how much may be freed, waiting the cost of withdrawing a ticket's Reserve, withdrawn the withdrawn
	// tickets.
	left      int
	waiting   map[uint64]int
	withdrawn []uint64
}

func newMachine(t tester) *machine {
	t.Helper()
	m := &machine{t: t, table: New(), book: accounts.New(), left: 1 << 20, waiting: map[uint64]int{}}
	m.moment = Moment{Generation: 1, Level: levels.OwnSessions, Accounts: &m.book}
	return m
}

// Moment implements Host.
func (m *machine) Moment() Moment { return m.moment }

// Payer implements Host.
func (m *machine) Payer() accounts.Payer { return m.payer }

// Apply implements Host.
func (m *machine) Apply(command *logpb.Command, _ RequestID) *logpb.Result {
	if command.GetCloseSession() != nil {
		return m.table.Close(m, command)
	}
	m.applied++
	m.payer.Caller = cmp.Or(m.namesPayer, m.payer.Caller)
	if !m.waits {
		return effect.Fail(logpb.Reason_REASON_UNKNOWN_TICKET, "it is unknown", "")
	}
	m.waiting[m.applied] = 1
	return &logpb.Result{Kind: &logpb.Result_Waiting{Waiting: &logpb.Waiting{Ticket: m.applied}}}
}

// Digest implements Host.
func (m *machine) Digest(command *logpb.Command) uint64 { return command.GetWithdraw().GetTicket() }

// Freeable implements Host.
func (m *machine) Freeable(least int) int { return max(m.left, least) }

// Freed implements Host.
func (m *machine) Freed(cost int) { m.left = max(m.left-cost, 0) }

// WaitCost implements Host.
func (m *machine) WaitCost(ticket uint64) int { return m.waiting[ticket] }

// Withdraw implements Host.
func (m *machine) Withdraw(ticket uint64) {
	if _, waits := m.waiting[ticket]; waits {
		m.withdrawn = append(m.withdrawn, ticket)
		delete(m.waiting, ticket)
	}
}

// do applies a command to the table, charged to a caller, and verifies the table.
func (m *machine) do(command *logpb.Command) *logpb.Result {
	m.t.Helper()
	m.payer = accounts.PayerOf(command)
	result := m.table.ApplyOnce(m, command)
	m.verify()
	return result
}

// verify checks that the table and its charges are consistent.
func (m *machine) verify() {
	m.t.Helper()
	m.book.DropEmptied()
	for _, err := range []error{m.table.Verify(), m.table.VerifyFreeing(), m.book.Verify(m.table.EachCharge, m.moment.Now)} {
		if err != nil {
			m.t.Fatal(err)
		}
	}
}

// open opens a session.
func (m *machine) open() uint64 {
	m.t.Helper()
	m.payer = accounts.Payer{Caller: caller}
	session := m.table.Open(m, "a", "").GetSessionOpened().GetSession()
	if m.verify(); session == 0 {
		m.t.Fatal("not opened")
	}
	return session
}

// records returns a table's records.
func records(t *Table, keyLife int64) (all []*logpb.SnapshotRecord) {
	t.Records(keyLife, func(record *logpb.SnapshotRecord) bool {
		all = append(all, proto.CloneOf(record))
		return true
	})
	return all
}

// numbered is a session's request; about distinguishes contents.
func numbered(session, seq, acked, about uint64) *logpb.Command {
	return &logpb.Command{
		Session: session, Seq: seq, AckedBelow: acked, Caller: caller,
		Kind: &logpb.Command_Withdraw{Withdraw: &logpb.Withdraw{Ticket: about}},
	}
}

// underKey is a request with an idempotency key; about distinguishes contents.
func underKey(key string, about uint64) *logpb.Command {
	return &logpb.Command{
		IdempotencyKey: key, Caller: caller, Kind: &logpb.Command_Withdraw{Withdraw: &logpb.Withdraw{Ticket: about}},
	}
}

// closes returns the command that closes a session.
func closes(session uint64) *logpb.Command {
	return &logpb.Command{Session: session, Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}}
}
