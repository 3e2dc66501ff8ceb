package dedup

import (
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// resultOverhead is roughly the cost of a stored result beyond its encoding. grantSize and itemSize are the sizes of a
// grant and of each of its items, without names.
const (
	resultOverhead = 256
	grantSize      = 48
	itemSize       = 16
)

// due is the time under which a session is listed, dueByKey that of a key.
type (
	due      = cow.Due[uint64]
	dueByKey = cow.Due[string]
)

// Table holds the remembered requests. All of it is copied on write.
type Table struct {
	// Last is the number of the newest session.
	Last uint64

	sessions *cow.Map[uint64, *session]
	// use has sessions by their last use, or by some time before it (session.listed).
	use     *cow.Set[due]
	results *cow.Set[sessionResult]
	keys    *cow.Map[string, keyResult]
	// keyEnds has keys by the start of their lives.
	keyEnds *cow.Set[dueByKey]
	// bytes is the size of all stored results.
	bytes int64
	// ended are the ended sessions that still have results; acked the live ones with acknowledged results.
	ended *cow.Map[uint64, *session]
	acked *cow.Map[uint64, struct{}]
	// leaving is scratch space for the results that leave together.
	leaving []sessionResult
	// dropped counts the results without a session in the snapshot from which it was restored.
	dropped int
}

// session is a client's numbered requests.
type session struct {
	cow.Made
	id     uint64
	holder string
	// by is the reach of its opener; it identifies callers without an account (isOwn).
	by         string
	ackedBelow uint64
	// used is when it was last used (cluster time), listed its time in Table.use. listed may lag by a sixteenth of the
	// idle limit, so that most requests do not move it.
	used, listed int64
	// kept counts its stored results, bytes their cost.
	kept, bytes int64
	// account is charged with it and with its results.
	account uint64
	// ended: nobody can use it any more; its results are still to leave.
	ended bool
}

// sessionResult is the stored result of a session's request.
type sessionResult struct {
	session, seq uint64
	digest       uint64
	result       *logpb.Result
	// size is its cost.
	size int64
}

func lessSessionResult(a, b sessionResult) bool {
	return a.session < b.session || a.session == b.session && a.seq < b.seq
}

// keyResult is the stored result of a request with an idempotency key.
type keyResult struct {
	digest uint64
	result *logpb.Result
	// size is its cost, made when its life began (cluster time).
	size, made int64
	// account is charged with it.
	account uint64
}

// New returns an empty table.
func New() *Table {
	return &Table{
		sessions: new(cow.Map[uint64, *session]),
		use:      cow.NewDues[uint64](),
		results:  cow.NewSet(lessSessionResult),
		keys:     new(cow.Map[string, keyResult]),
		keyEnds:  cow.NewDues[string](),
		ended:    new(cow.Map[uint64, *session]),
		acked:    new(cow.Map[uint64, struct{}]),
	}
}

// Copy returns a table that shares everything until one of the two changes.
func (t *Table) Copy() *Table {
	c := *t
	c.sessions, c.use, c.results = t.sessions.Copy(), t.use.Copy(), t.results.Copy()
	c.keys, c.keyEnds = t.keys.Copy(), t.keyEnds.Copy()
	c.ended, c.acked, c.leaving = t.ended.Copy(), t.acked.Copy(), nil
	return &c
}

// Counts are the sizes of the table.
type Counts struct {
	// Sessions counts usable sessions, Results the stored results of sessions, Keys the idempotency keys.
	Sessions, Results, Keys int
	// Bytes is the cost of all stored results.
	Bytes int64
}

// Counts returns the sizes of the table.
func (t *Table) Counts() Counts {
	return Counts{Sessions: t.sessions.Len(), Results: t.results.Len(), Keys: t.keys.Len(), Bytes: t.bytes}
}

// Unfinished reports whether results are still to leave.
func (t *Table) Unfinished() bool { return t.ended.Len() > 0 || t.acked.Len() > 0 }

// EachCharge calls fn for each object that an account is charged with.
func (t *Table) EachCharge(fn func(number uint64, b accounts.Budget, amount int64)) {
	t.sessions.Scan(func(_ uint64, s *session) bool {
		fn(s.account, accounts.Sessions, 1)
		return true
	})
	t.results.Scan(func(r sessionResult) bool {
		if s := t.ownerOf(r.session); s != nil {
			fn(s.account, accounts.Results, sizeOf(r.result))
		}
		return true
	})
	t.keys.Scan(func(_ string, k keyResult) bool {
		fn(k.account, accounts.Keys, 1)
		fn(k.account, accounts.Results, sizeOf(k.result))
		return true
	})
}

// ApplyOnce carries out a command, or answers it from a stored result.
func (t *Table) ApplyOnce(host Host, command *logpb.Command) *logpb.Result {
	switch {
	case command.GetCloseSession() != nil: // a second one finds it closed
		return host.Apply(command, RequestID{})
	case command.Session != 0:
		return t.applyNumbered(host, command)
	case command.IdempotencyKey != "":
		return t.applyKeyed(host, command)
	}
	return host.Apply(command, RequestID{})
}

// Complete stores the final result of a Reserve that waited under a ticket, if the request is still remembered.
func (t *Table) Complete(host Host, from RequestID, ticket uint64, result *logpb.Result) {
	if from == (RequestID{}) {
		return
	}
	at := host.Moment()
	if s, ok := t.sessions.Get(from.Session); ok && from.Seq >= s.ackedBelow {
		if known, ok := t.results.Get(sessionResult{session: from.Session, seq: from.Seq}); ok {
			known.result = result
			t.keepResult(&at, t.edit(s, at.Generation), known)
		}
	}
	if known, ok := t.keys.Get(from.Key); ok && from.Key != "" && known.result.GetWaiting().GetTicket() == ticket {
		known.result = result
		t.keepKey(at.Accounts, from.Key, known)
	}
}

func reused(message string) *logpb.Result {
	return effect.Fail(logpb.Reason_REASON_SEQ_REUSED, message, "take a new number or key for a new request")
}

// sizeOf returns the approximate cost of a stored result. It does not encode grants, the most frequent: that would take
// longer than the grant itself.
func sizeOf(result *logpb.Result) int64 {
	g := result.GetGranted()
	if g == nil || g.Forecast != nil || g.BackPressure != nil {
		return int64(proto.Size(result)) + resultOverhead
	}
	size := int64(resultOverhead + grantSize)
	for _, item := range g.Items {
		size += itemSize + int64(len(item.Quota)+len(item.InsteadOf))
	}
	for _, item := range g.GetConsumed().GetItems() {
		size += itemSize + int64(len(item.Quota))
	}
	return size
}
