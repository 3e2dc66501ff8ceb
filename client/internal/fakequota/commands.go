package fakequota

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// run carries out one command of a batch.
func (s *state) run(command *quotav1.Command) *quotav1.CommandResult {
	switch kind := command.GetKind().(type) {
	case *quotav1.Command_Reserve:
		if bad := s.checkItems(kind.Reserve.GetItems()); bad != nil {
			return bad
		}
		request := proto.CloneOf(kind.Reserve)
		return s.once(request.GetRequestId(), func(k key) *quotav1.CommandResult { return s.reserve(request, k) })
	case *quotav1.Command_Consume:
		return s.once(kind.Consume.GetRequestId(), func(key) *quotav1.CommandResult { return s.runConsume(kind.Consume) })
	case *quotav1.Command_Settle:
		return s.once(kind.Settle.GetRequestId(), func(key) *quotav1.CommandResult { return s.runSettle(kind.Settle) })
	case *quotav1.Command_Release:
		return s.once(kind.Release.GetRequestId(), func(key) *quotav1.CommandResult { return s.runRelease(kind.Release) })
	case *quotav1.Command_Renew:
		return s.once(kind.Renew.GetRequestId(), func(key) *quotav1.CommandResult { return s.runRenew(kind.Renew) })
	case *quotav1.Command_Withdraw:
		return s.once(kind.Withdraw.GetRequestId(), func(key) *quotav1.CommandResult { return s.runWithdraw(kind.Withdraw) })
	case *quotav1.Command_Report:
		return s.once(kind.Report.GetRequestId(), func(key) *quotav1.CommandResult { return s.runReport(kind.Report) })
	}
	return failure(quotav1.Reason_REASON_INVALID)
}

func (s *state) checkItems(items []*quotav1.Item) *quotav1.CommandResult {
	if len(items) == 0 {
		return failure(quotav1.Reason_REASON_INVALID)
	}
	for _, item := range items {
		if s.quotas[item.GetQuota()] == nil {
			return failure(quotav1.Reason_REASON_UNKNOWN_QUOTA)
		}
		if amount(item) <= 0 {
			return failure(quotav1.Reason_REASON_INVALID)
		}
	}
	return nil
}

func (s *state) runConsume(request *quotav1.ConsumeRequest) *quotav1.CommandResult {
	s.executed["consume"]++
	l, bad := s.find(request.GetLease(), request.GetFence())
	if bad != nil {
		return bad
	}
	if l.ops[request.GetOp()] != nil {
		return failure(quotav1.Reason_REASON_OPERATION_REUSED)
	}
	for _, quota := range l.closed {
		if len(request.GetItems()) == 0 || slices.ContainsFunc(request.GetItems(), func(i *quotav1.Item) bool { return i.GetQuota() == quota }) {
			closed := failure(quotav1.Reason_REASON_ITEM_CLOSED)
			closed.GetError().Info.Quota = quota
			return closed
		}
	}
	for _, item := range request.GetItems() {
		if l.held[item.GetQuota()] < item.GetAmount() {
			return failure(quotav1.Reason_REASON_NOT_HELD)
		}
		if q := s.quotas[item.GetQuota()]; time.Now().Before(q.closedUntil) {
			return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Consume{Consume: &quotav1.ConsumeResponse{
				Outcome: &quotav1.ConsumeResponse_Refusal{Refusal: &quotav1.Refusal{
					Reason: quotav1.Reason_REASON_COOLDOWN, Quota: item.GetQuota(), RetryAfter: left(q.closedUntil),
				}},
			}}}
		}
	}
	op := s.consume(l, request.GetOp(), request.GetItems())
	return &quotav1.CommandResult{
		Kind: &quotav1.CommandResult_Consume{Consume: &quotav1.ConsumeResponse{Outcome: &quotav1.ConsumeResponse_Operation{Operation: op}}},
	}
}

func (s *state) runSettle(request *quotav1.SettleRequest) *quotav1.CommandResult {
	s.executed["settle"]++
	l, bad := s.find(request.GetLease(), request.GetFence())
	if bad != nil {
		return bad
	}
	op := l.ops[request.GetOp()]
	if op == nil {
		return failure(quotav1.Reason_REASON_STALE_OPERATION)
	}
	if len(request.GetUnspent()) > 0 && !time.Now().Before(op.spendBy) {
		return failure(quotav1.Reason_REASON_PAST_SPEND_BY)
	}
	if (len(request.GetUnspent()) > 0 && op.unspent) || (len(request.GetActual()) > 0 && op.final) {
		return failure(quotav1.Reason_REASON_ALREADY_SETTLED)
	}
	response := &quotav1.SettleResponse{Released: request.GetRelease()}
	for _, item := range request.GetUnspent() {
		if op.amounts[item.GetQuota()] < item.GetAmount() {
			return failure(quotav1.Reason_REASON_INVALID)
		}
		s.giveBack(op, item.GetQuota(), item.GetAmount(), response)
		op.unspent = true
	}
	for _, item := range request.GetActual() {
		s.giveBack(op, item.GetQuota(), op.amounts[item.GetQuota()]-item.GetAmount(), response)
	}
	op.final = op.final || request.GetFinal() || len(request.GetActual()) > 0
	if request.GetRelease() {
		s.drop(l)
	}
	s.serve()
	return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Settle{Settle: response}}
}

// giveBack returns n units of an operation, or charges them if n is negative.
func (s *state) giveBack(op *operation, quota string, n int64, response *quotav1.SettleResponse) {
	op.amounts[quota] -= n
	s.quotas[quota].Available += n
	if n > 0 {
		response.Returned = append(response.Returned, &quotav1.Item{Quota: quota, Amount: &n})
	}
	if over := -n; n < 0 {
		response.Overrun = append(response.Overrun, &quotav1.Item{Quota: quota, Amount: &over})
	}
}

func (s *state) runRelease(request *quotav1.ReleaseRequest) *quotav1.CommandResult {
	s.executed["release"]++
	l, bad := s.find(request.GetLease(), request.GetFence())
	if bad != nil {
		return bad
	}
	response := &quotav1.ReleaseResponse{}
	if len(request.GetItems()) == 0 {
		response.Returned, response.Ended = s.drop(l), true
	}
	for _, item := range request.GetItems() {
		l.held[item.GetQuota()] -= item.GetAmount()
		s.quotas[item.GetQuota()].Available += item.GetAmount()
		response.Returned = append(response.Returned, item)
	}
	s.serve()
	return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Release{Release: response}}
}

func (s *state) runRenew(request *quotav1.RenewRequest) *quotav1.CommandResult {
	s.executed["renew"]++
	l, bad := s.find(request.GetLease(), request.GetFence())
	if bad != nil {
		return bad
	}
	ttl := l.ttl
	if request.GetTtl() != nil {
		ttl = request.GetTtl().AsDuration()
	}
	l.deadline = time.Now().Add(ttl)
	return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Renew{Renew: &quotav1.RenewResponse{
		ExpiresIn: durationpb.New(ttl), Closed: l.closed,
	}}}
}

func (s *state) runWithdraw(request *quotav1.WithdrawRequest) *quotav1.CommandResult {
	s.executed["withdraw"]++
	for _, w := range s.waiters {
		if w.ticket == request.GetTicket() {
			s.end(w, refused(w, quotav1.Reason_REASON_WITHDRAWN))
			s.serve()
			return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Withdraw{Withdraw: &quotav1.WithdrawResponse{}}}
		}
	}
	return failure(quotav1.Reason_REASON_UNKNOWN_TICKET)
}

// runReport closes a quota for the Retry-After, or for a second without one.
func (s *state) runReport(request *quotav1.ReportRequest) *quotav1.CommandResult {
	s.executed["report"]++
	if _, bad := s.find(request.GetLease(), request.GetFence()); bad != nil {
		return bad
	}
	s.reports = append(s.reports, proto.CloneOf(request))
	response := &quotav1.ReportResponse{}
	for _, signal := range request.GetSignals() {
		q := s.quotas[signal.GetQuota()]
		if q == nil {
			return failure(quotav1.Reason_REASON_UNKNOWN_QUOTA)
		}
		reported := &quotav1.ReportedQuota{Quota: signal.GetQuota()}
		switch signal.GetCause() {
		case quotav1.Cause_CAUSE_SATURATED, quotav1.Cause_CAUSE_EXHAUSTED, quotav1.Cause_CAUSE_ACCOUNT:
			wait := time.Second
			if signal.GetRetryAfter() != nil {
				wait = signal.GetRetryAfter().AsDuration()
			}
			if until := time.Now().Add(wait); until.After(q.closedUntil) {
				q.closedUntil = until
			}
		default:
		}
		if time.Now().Before(q.closedUntil) {
			reported.CooldownLeft = left(q.closedUntil)
		}
		response.Quotas = append(response.Quotas, reported)
	}
	return &quotav1.CommandResult{Kind: &quotav1.CommandResult_Report{Report: response}}
}
