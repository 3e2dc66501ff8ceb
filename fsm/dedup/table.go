package dedup

import (
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// resultOverhead is what a stored result costs besides its encoding, roughly; grantSize and itemSize are what a grant and each of its
// items take there, besides names.
const (
	resultOverhead = 256
	grantSize      = 48
	itemSize       = 16
)

// due says that a session is listed at a moment, dueByKey that a key is.
type (
	due      = cow.Due[uint64]
	dueByKey = cow.Due[string]
)

// Table has what is remembered of requests. All of it is copied on write.
type Table struct {
	// Last is the number of the newest session.
	Last uint64

	sessions *cow.Map[uint64, *session]
	// use has sessions by when they were last used, or some time before that (session.listed).
	use     *cow.Set[due]
	results *cow.Set[sessionResult]
	keys    *cow.Map[string, keyResult]
	// keyEnds has keys by when their lives began.
	keyEnds *cow.Set[dueByKey]
	// bytes is the size of all stored results.
	bytes int64
	// ended are the sessions that have ended and still have results; acked those that live and have results that are acknowledged.
	ended *cow.Map[uint64, *session]
	acked *cow.Map[uint64, struct{}]
	// leaving is room for the results that leave together.
	leaving []sessionResult
	// dropped counts the results without a session that the snapshot from which it was restored had.
	dropped int
}

// session is a client's numbered requests.
type session struct {
	cow.Made
	id     uint64
	holder string
	// by is the reach of who opened it, by which callers without an account are told apart (isOwn).
	by         string
	ackedBelow uint64
	// used is when it was last used (cluster time), listed where it stands in Table.use: that may lag by a sixteenth of the
	// idle limit, so that not each request moves it.
	used, listed int64
	// kept counts its stored results, bytes what they cost.
	kept, bytes int64
	// account is charged with it and with its results.
	account uint64
	// ended: nobody can use it any more; what it has kept is still to leave.
	ended bool
}

// sessionResult is the stored result of a session's request.
type sessionResult struct {
	session, seq uint64
	digest       uint64
	result       *logpb.Result
	// size is what it costs.
	size int64
}

func lessSessionResult(a, b sessionResult) bool {
	return a.session < b.session || a.session == b.session && a.seq < b.seq
}

// keyResult is the stored result of a request with an idempotency key.
type keyResult struct {
	digest uint64
	result *logpb.Result
	// size is what it costs, made when its life began (cluster time).
	size, made int64
	// account is charged with it.
	account uint64
}

// New returns a table that remembers nothing.
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

// Counts are how much is remembered.
type Counts struct {
	// Sessions counts those that can be used, Results the stored results of sessions, Keys the idempotency keys.
	Sessions, Results, Keys int
	// Bytes is what all stored results cost.
	Bytes int64
}

// Counts returns how much is remembered.
func (t *Table) Counts() Counts {
	return Counts{Sessions: t.sessions.Len(), Results: t.results.Len(), Keys: t.keys.Len(), Bytes: t.bytes}
}

// Unfinished tells whether results are still to leave.
func (t *Table) Unfinished() bool { return t.ended.Len() > 0 || t.acked.Len() > 0 }

// EachCharge calls fn with each thing that an account is charged with.
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

// ApplyOnce carries a command out, or answers it from memory.
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

// Complete stores the final result of a Reserve that waited under a ticket, where it is still remembered.
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

// sizeOf returns what a stored result costs, roughly. Grants, which are most, are not encoded for it: that would take longer than to
// take what they grant out of a quota.
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
