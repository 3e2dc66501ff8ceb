// Package fakequota is a small in-memory quota store for the client's own tests and examples. It implements the real API and conserves
// units: a grant subtracts them, a return adds them. A request repeated under its number gets the stored answer, and waiting Reserves
// are served in order. It has none of the real rules of windows and periods; a quota here is a pot that a test fills.
package fakequota

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Quota is a pot of units.
type Quota struct {
	// Usable is the total that it reports, Available the units in it now.
	Usable, Available int64
	// SpendBy and Transit are those of its operations; 0: 2 s and 1 s.
	SpendBy, Transit time.Duration
	// Slots makes it a quota of kind slots.
	Slots bool
	// Leases is the number of leases that it reports; 0: the actual one.
	Leases int64

	closedUntil time.Time
}

// lease is a holder's lease.
type lease struct {
	id, fence uint64
	held      map[string]int64
	// closed are quotas whose window closed while the lease held some of them.
	closed   []string
	ops      map[uint64]*operation
	ttl      time.Duration
	deadline time.Time
}

type operation struct {
	amounts map[string]int64
	spendBy time.Time
	unspent bool
	final   bool
}

type waiter struct {
	ticket  uint64
	request *quotav1.ReserveRequest
	until   time.Time
	done    chan struct{}
	outcome *quotav1.ReserveResponse
	// numbered is the key under which the outcome is stored.
	numbered key
}

type key struct{ session, seq uint64 }

// state is the store, guarded by mu.
type state struct {
	mu       sync.Mutex
	quotas   map[string]*Quota
	leases   map[uint64]*lease
	sessions map[uint64]bool
	// acked are the sessions' marks; requests below them are acknowledged.
	acked   map[uint64]uint64
	answers map[key]*quotav1.CommandResult
	waiters []*waiter
	counter uint64
	// executed counts carried out commands by kind, without repeats.
	executed map[string]int
	reports  []*quotav1.ReportRequest
	// holders are the holders of Reserves.
	holders []string
	// refusedFor is how long no Reserve can be served.
	refusedFor time.Duration
	tasks      map[string]*task
	// begun are the answers to BeginTasks.
	begun map[key]*quotav1.BeginTaskResponse
}

func newState() *state {
	return &state{
		quotas: map[string]*Quota{}, leases: map[uint64]*lease{}, sessions: map[uint64]bool{}, acked: map[uint64]uint64{},
		answers:  map[key]*quotav1.CommandResult{},
		executed: map[string]int{}, tasks: map[string]*task{}, begun: map[key]*quotav1.BeginTaskResponse{},
	}
}

func (s *state) next() uint64 {
	s.counter++
	return s.counter
}

// once carries out a command, or returns its stored answer.
func (s *state) once(id *quotav1.RequestId, run func(key) *quotav1.CommandResult) *quotav1.CommandResult {
	if id.GetSession() == 0 {
		return run(key{})
	}
	if !s.sessions[id.GetSession()] {
		return failure(quotav1.Reason_REASON_UNKNOWN_SESSION)
	}
	s.acknowledge(id.GetSession(), id.GetAckedBelow())
	k := key{id.GetSession(), id.GetSeq()}
	if answer, ok := s.answers[k]; ok {
		return s.refreshed(answer)
	}
	if k.seq < s.acked[k.session] {
		return failure(quotav1.Reason_REASON_SEQ_TOO_OLD)
	}
	answer := run(k)
	s.answers[k] = answer
	return s.refreshed(answer)
}

// acknowledge drops the answers below a session's mark, like the real store: a repeat of such a request gets no result.
func (s *state) acknowledge(session, below uint64) {
	if below <= s.acked[session] {
		return
	}
	s.acked[session] = below
	for k := range s.answers {
		if k.session == session && k.seq < below {
			delete(s.answers, k)
		}
	}
	for k := range s.begun {
		if k.session == session && k.seq < below {
			delete(s.begun, k)
		}
	}
}

// refreshed returns an answer with the remaining times as of now.
func (s *state) refreshed(answer *quotav1.CommandResult) *quotav1.CommandResult {
	answer = proto.CloneOf(answer)
	granted := answer.GetReserve().GetLease()
	if l := s.leases[granted.GetId()]; l != nil {
		granted.ExpiresIn = left(l.deadline)
		if op := l.ops[granted.GetOperation().GetOp()]; op != nil {
			granted.Operation.SpendIn = left(op.spendBy)
		}
	}
	return answer
}

func left(until time.Time) *durationpb.Duration { return durationpb.New(max(0, time.Until(until))) }

func failure(reason quotav1.Reason) *quotav1.CommandResult {
	return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Error{Error: &quotav1.CommandError{
		Code: "failed_precondition", Message: reason.String(), Info: &quotav1.ErrorInfo{Reason: reason},
	}}}
}

func (s *state) reserve(request *quotav1.ReserveRequest, k key) *quotav1.CommandResult {
	s.executed["reserve"]++
	s.holders = append(s.holders, request.GetHolder())
	return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Reserve{Reserve: s.judge(request, k)}}
}

func (s *state) judge(request *quotav1.ReserveRequest, k key) *quotav1.ReserveResponse {
	refusal := s.refuse(request)
	if refusal == nil && len(s.waiters) > 0 {
		refusal = &quotav1.Refusal{
			Reason: quotav1.Reason_REASON_BEHIND_WAITERS, Quota: request.GetItems()[0].GetQuota(), RetryAfter: durationpb.New(time.Second),
		}
	}
	switch {
	case s.refusedFor > 0:
		refusal = &quotav1.Refusal{
			Reason: quotav1.Reason_REASON_CANNOT_SERVE_IN_TIME, Quota: request.GetItems()[0].GetQuota(), RetryAfter: durationpb.New(s.refusedFor),
		}
		return &quotav1.ReserveResponse{Outcome: &quotav1.ReserveResponse_Refusal{Refusal: refusal}}
	case refusal == nil:
		return s.grant(request)
	case request.GetWait().AsDuration() == 0, refusal.GetRetryAfter() == nil:
		return &quotav1.ReserveResponse{Outcome: &quotav1.ReserveResponse_Refusal{Refusal: refusal}}
	}
	w := &waiter{
		ticket: s.next(), request: request, until: time.Now().Add(request.GetWait().AsDuration()), done: make(chan struct{}), numbered: k,
	}
	s.waiters = append(s.waiters, w)
	return &quotav1.ReserveResponse{Outcome: &quotav1.ReserveResponse_Waiting{Waiting: &quotav1.Waiting{
		Ticket: w.ticket, EndsIn: left(w.until),
	}}}
}

// refuse returns why a request cannot be granted now; nil: it can.
func (s *state) refuse(request *quotav1.ReserveRequest) *quotav1.Refusal {
	for _, item := range request.GetItems() {
		q := s.quotas[item.GetQuota()]
		refusal := &quotav1.Refusal{Quota: item.GetQuota(), Available: q.Available}
		switch {
		case amount(item) > q.Usable:
			refusal.Reason = quotav1.Reason_REASON_NEVER_FITS
		case time.Now().Before(q.closedUntil):
			refusal.Reason, refusal.RetryAfter = quotav1.Reason_REASON_COOLDOWN, left(q.closedUntil)
		case amount(item) > q.Available:
			refusal.Reason, refusal.RetryAfter = quotav1.Reason_REASON_EXHAUSTED, durationpb.New(time.Second)
		default:
			continue
		}
		return refusal
	}
	return nil
}

func amount(item *quotav1.Item) int64 {
	if item.Amount == nil {
		return 1
	}
	return item.GetAmount()
}

func (s *state) grant(request *quotav1.ReserveRequest) *quotav1.ReserveResponse {
	ttl := 5 * time.Minute
	if request.GetTtl() != nil {
		ttl = request.GetTtl().AsDuration()
	}
	l := &lease{id: s.next(), held: map[string]int64{}, ops: map[uint64]*operation{}, ttl: ttl, deadline: time.Now().Add(ttl)}
	l.fence = l.id
	granted := &quotav1.Lease{
		Id: l.id, Fence: l.fence, ExpiresIn: durationpb.New(ttl), AskedTtl: durationpb.New(ttl), Class: request.GetClass(),
	}
	for _, item := range request.GetItems() {
		s.quotas[item.GetQuota()].Available -= amount(item)
		l.held[item.GetQuota()] += amount(item)
		granted.Items = append(granted.Items, &quotav1.GrantedItem{
			Quota: item.GetQuota(), Amount: amount(item), ExpiresIn: granted.GetExpiresIn(),
		})
	}
	s.leases[l.id] = l
	if request.GetConsume() {
		granted.Operation = s.consume(l, 1, nil)
	}
	return &quotav1.ReserveResponse{Outcome: &quotav1.ReserveResponse_Lease{Lease: granted}}
}

// consume moves held amounts into an operation; nil: there are only slots.
func (s *state) consume(l *lease, number uint64, items []*quotav1.Item) *quotav1.Operation {
	op := &operation{amounts: map[string]int64{}}
	out := &quotav1.Operation{Op: number}
	if len(items) == 0 {
		for quota, held := range l.held {
			items = append(items, &quotav1.Item{Quota: quota, Amount: &held})
		}
		slices.SortFunc(items, func(a, b *quotav1.Item) int {
			if a.GetQuota() < b.GetQuota() {
				return -1
			}
			return 1
		})
	}
	for _, item := range items {
		q := s.quotas[item.GetQuota()]
		if q.Slots {
			continue
		}
		out.Items = append(out.Items, &quotav1.GrantedItem{Quota: item.GetQuota(), Amount: item.GetAmount(), ExpiresIn: left(l.deadline)})
		l.held[item.GetQuota()] -= item.GetAmount()
		op.amounts[item.GetQuota()] += item.GetAmount()
		spendBy, transit := 2*time.Second, time.Second
		if q.SpendBy != 0 {
			spendBy, transit = q.SpendBy, q.Transit
		}
		if end := time.Now().Add(spendBy); op.spendBy.IsZero() || end.Before(op.spendBy) {
			op.spendBy = end
			out.Transit = durationpb.New(transit)
		}
	}
	if len(op.amounts) == 0 {
		return nil
	}
	l.ops[number] = op
	out.SpendIn = left(op.spendBy)
	return out
}

// serve grants waiting Reserves in order, as far as possible, and ends expired waits.
func (s *state) serve() {
	for len(s.waiters) > 0 {
		w := s.waiters[0]
		if s.refuse(w.request) != nil {
			break
		}
		s.end(w, s.grant(w.request))
	}
	for _, w := range slices.Clone(s.waiters) {
		if !time.Now().Before(w.until) {
			s.end(w, refused(w, quotav1.Reason_REASON_WAIT_EXPIRED))
		}
	}
}

func refused(w *waiter, reason quotav1.Reason) *quotav1.ReserveResponse {
	return &quotav1.ReserveResponse{Outcome: &quotav1.ReserveResponse_Refusal{Refusal: &quotav1.Refusal{
		Reason: reason, Quota: w.request.GetItems()[0].GetQuota(), RetryAfter: durationpb.New(time.Second),
	}}}
}

func (s *state) end(w *waiter, outcome *quotav1.ReserveResponse) {
	s.waiters = slices.DeleteFunc(s.waiters, func(other *waiter) bool { return other == w })
	w.outcome = outcome
	s.answers[w.numbered] = &quotav1.CommandResult{Kind: &quotav1.CommandResult_Reserve{Reserve: outcome}}
	close(w.done)
}

// find returns a live lease with the fence.
func (s *state) find(id, fence uint64) (*lease, *quotav1.CommandResult) {
	l := s.leases[id]
	switch {
	case fence > s.counter:
		return nil, failure(quotav1.Reason_REASON_NEVER_ISSUED)
	case l == nil || l.fence != fence:
		return nil, failure(quotav1.Reason_REASON_STALE_FENCE)
	case !time.Now().Before(l.deadline):
		s.drop(l)
		return nil, failure(quotav1.Reason_REASON_STALE_FENCE)
	}
	return l, nil
}

// drop ends a lease and returns what it held.
func (s *state) drop(l *lease) (returned []*quotav1.Item) {
	for quota, held := range l.held {
		s.quotas[quota].Available += held
		returned = append(returned, &quotav1.Item{Quota: quota, Amount: &held})
	}
	delete(s.leases, l.id)
	s.serve()
	return returned
}
