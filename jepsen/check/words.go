package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// The checkers compare requests and answers with the log as text. Two functions that share nothing but these words convert both sides;
// where they differ, the text says how.

// amount is an amount of a quota, from either side.
type amount struct {
	quota string
	n     int64
}

func amounts(items []amount) string {
	words := make([]string, len(items))
	for i, item := range items {
		words[i] = fmt.Sprintf("%s:%d", item.quota, item.n)
	}
	return "[" + strings.Join(words, " ") + "]"
}

// absent stands for an amount that a request omits.
const absent = -1

func logAmounts(items []*logpb.Item) string {
	list := make([]amount, len(items))
	for i, item := range items {
		list[i] = amount{item.Quota, absent}
		if item.Amount != nil {
			list[i].n = *item.Amount
		}
	}
	return amounts(list)
}

func apiAmounts(items []*quotav1.Item) string {
	list := make([]amount, len(items))
	for i, item := range items {
		list[i] = amount{item.Quota, absent}
		if item.Amount != nil {
			list[i].n = *item.Amount
		}
	}
	return amounts(list)
}

func logGranted(items []*logpb.GrantedItem) string {
	list := make([]amount, len(items))
	for i, item := range items {
		list[i] = amount{item.Quota, item.Amount}
	}
	return amounts(list)
}

func apiGranted(items []*quotav1.GrantedItem) string {
	list := make([]amount, len(items))
	for i, item := range items {
		list[i] = amount{item.Quota, item.Amount}
	}
	return amounts(list)
}

// logAsked is the text of a command in the log.
func logAsked(command *logpb.Command) string {
	switch k := command.Kind.(type) {
	case *logpb.Command_OpenSession:
		return "open session for " + k.OpenSession.Holder
	case *logpb.Command_CloseSession:
		return fmt.Sprintf("close session %d", command.Session)
	case *logpb.Command_Reserve:
		r := k.Reserve
		return fmt.Sprintf("reserve %s for %s, %v, consume %v, wait %v, resume %v, emergency %v, fallback %v, member %q",
			logAmounts(r.Items), r.Holder, time.Duration(r.TtlNs), r.Consume, time.Duration(r.WaitNs), r.Resume, r.Emergency, r.Fallback, r.Member)
	case *logpb.Command_Consume:
		c := k.Consume
		return fmt.Sprintf("consume %s of %d/%d as %d, done below %d", logAmounts(c.Items), c.Lease, c.Fence, c.Op, c.DoneBelow)
	case *logpb.Command_Settle:
		s := k.Settle
		return fmt.Sprintf("settle %d of %d/%d, unspent %s, actual %s, final %v, release %v, done below %d",
			s.Op, s.Lease, s.Fence, logAmounts(s.Unspent), logAmounts(s.Actual), s.Final, s.Release, s.DoneBelow)
	case *logpb.Command_Release:
		return fmt.Sprintf("release %s of %d/%d", logAmounts(k.Release.Items), k.Release.Lease, k.Release.Fence)
	case *logpb.Command_Renew:
		return fmt.Sprintf("renew %d/%d, %v", k.Renew.Lease, k.Renew.Fence, time.Duration(k.Renew.TtlNs))
	case *logpb.Command_Withdraw:
		return fmt.Sprintf("withdraw %d", k.Withdraw.Ticket)
	case *logpb.Command_Report:
		return fmt.Sprintf("report on %d of %d/%d, %d signals", k.Report.Op, k.Report.Lease, k.Report.Fence, len(k.Report.Signals))
	case *logpb.Command_ApplyQuotas:
		return fmt.Sprintf("apply %d quotas", len(k.ApplyQuotas.Quotas))
	case *logpb.Command_DeleteQuota:
		return "delete " + k.DeleteQuota.Quota
	case *logpb.Command_RevokeLease:
		return fmt.Sprintf("revoke %d", k.RevokeLease.Lease)
	case *logpb.Command_SetOverride:
		return fmt.Sprintf("override %s with %s for %v", k.SetOverride.Quota, optional(k.SetOverride.Limit), time.Duration(k.SetOverride.ForNs))
	case *logpb.Command_ResetClock:
		return "reset the clock"
	case *logpb.Command_ReopenQuota:
		return "reopen " + k.ReopenQuota.Quota
	}
	return logAskedOfTask(command)
}

// apiAsked is the text of a request.
func apiAsked(request any) string {
	switch r := request.(type) {
	case *quotav1.OpenSessionRequest:
		return "open session for " + r.Holder
	case *quotav1.CloseSessionRequest:
		return fmt.Sprintf("close session %d", r.Session)
	case *quotav1.ReserveRequest:
		return fmt.Sprintf("reserve %s for %s, %v, consume %v, wait %v, resume %v, emergency %v, fallback %v, member %q",
			apiAmounts(r.Items), r.Holder, r.Ttl.AsDuration(), r.Consume, r.Wait.AsDuration(), r.Resume, r.Emergency, r.Fallback, r.Member)
	case *quotav1.ConsumeRequest:
		return fmt.Sprintf("consume %s of %d/%d as %d, done below %d", apiAmounts(r.Items), r.Lease, r.Fence, r.Op, r.DoneBelow)
	case *quotav1.SettleRequest:
		return fmt.Sprintf("settle %d of %d/%d, unspent %s, actual %s, final %v, release %v, done below %d",
			r.Op, r.Lease, r.Fence, apiAmounts(r.Unspent), apiAmounts(r.Actual), r.Final, r.Release, r.DoneBelow)
	case *quotav1.ReleaseRequest:
		return fmt.Sprintf("release %s of %d/%d", apiAmounts(r.Items), r.Lease, r.Fence)
	case *quotav1.RenewRequest:
		return fmt.Sprintf("renew %d/%d, %v", r.Lease, r.Fence, r.Ttl.AsDuration())
	case *quotav1.WithdrawRequest:
		return fmt.Sprintf("withdraw %d", r.Ticket)
	case *quotav1.ReportRequest:
		return fmt.Sprintf("report on %d of %d/%d, %d signals", r.Op, r.Lease, r.Fence, len(r.Signals))
	case *quotav1.ApplyQuotasRequest:
		return fmt.Sprintf("apply %d quotas", len(r.Quotas))
	case *quotav1.DeleteQuotaRequest:
		return "delete " + r.Name
	case *quotav1.RevokeLeaseRequest:
		return fmt.Sprintf("revoke %d", r.Lease)
	case *quotav1.OverrideQuotaRequest:
		return fmt.Sprintf("override %s with %s for %v", r.Name, optional(r.Limit), r.Duration.AsDuration())
	case *quotav1.ResetClockRequest:
		return "reset the clock"
	case *quotav1.ReopenQuotaRequest:
		return "reopen " + r.Name
	}
	return apiAskedOfTask(request)
}

// until is the remaining time until a moment, as an answer at time now states it.
func until(moment, now int64) time.Duration { return time.Duration(max(moment-now, 0)) }

// logAnswer is the text of a result in the log, with the time left of it at a cluster time; 0 for results without one.
func logAnswer(result *logpb.Result, now int64) (text string, left time.Duration) {
	switch k := result.Kind.(type) {
	case *logpb.Result_Failure:
		return "error " + quotav1.Reason(k.Failure.Reason).String(), 0
	case *logpb.Result_Refusal:
		r := k.Refusal
		return fmt.Sprintf("refused: %v of %q, available %d, ahead %d", quotav1.Reason(r.Reason), r.Quota, r.Available, r.Ahead), 0
	case *logpb.Result_Waiting:
		return fmt.Sprintf("waits as %d", k.Waiting.Ticket), until(k.Waiting.UntilNs, now)
	case *logpb.Result_Granted:
		g := k.Granted
		text := fmt.Sprintf("granted %d/%d %s in class %d", g.Lease, g.Fence, logGranted(g.Items), g.Class)
		if g.Consumed != nil {
			text += fmt.Sprintf(", consumed as %d %s", g.Consumed.Op, logGranted(g.Consumed.Items))
		}
		return text, until(g.DeadlineNs, now)
	case *logpb.Result_Consumed:
		return fmt.Sprintf("consumed as %d %s", k.Consumed.Op, logGranted(k.Consumed.Items)), 0
	case *logpb.Result_Settled:
		s := k.Settled
		return fmt.Sprintf("settled, returned %s, overrun %s, released %v", logGranted(s.Returned), logGranted(s.Overrun), s.Released), 0
	case *logpb.Result_Released:
		return fmt.Sprintf("released %s, ended %v", logGranted(k.Released.Returned), k.Released.Ended), 0
	case *logpb.Result_Renewed:
		return "renewed", until(k.Renewed.DeadlineNs, now)
	case *logpb.Result_SessionOpened:
		return fmt.Sprintf("session %d", k.SessionOpened.Session), 0
	case *logpb.Result_QuotasApplied:
		q := k.QuotasApplied
		return fmt.Sprintf("applied: created %v, changed %v", sorted(q.Created), sorted(q.Changed)), 0
	case *logpb.Result_Reported:
		words := make([]string, len(k.Reported.Quotas))
		for i, q := range k.Reported.Quotas {
			words[i] = fmt.Sprintf("%s attempt %d", q.Quota, q.Attempt)
		}
		return fmt.Sprintf("reported %v", words), 0
	case *logpb.Result_TaskBegun, *logpb.Result_TaskEnded:
		return logAnswerOfTask(result, now)
	}
	return "done", 0
}

// apiAnswer is the text of an answer, with its remaining time and its Meta.
func apiAnswer(response any) (text string, left time.Duration, meta *quotav1.Meta) {
	switch r := response.(type) {
	case *quotav1.OpenSessionResponse:
		return fmt.Sprintf("session %d", r.Session), 0, r.Meta
	case *quotav1.ReserveResponse:
		return apiReserved(r), reservedLeft(r), r.Meta
	case *quotav1.ConsumeResponse:
		if refusal := r.GetRefusal(); refusal != nil {
			return apiRefused(refusal), 0, r.Meta
		}
		op := r.GetOperation()
		return fmt.Sprintf("consumed as %d %s", op.GetOp(), apiGranted(op.GetItems())), 0, r.Meta
	case *quotav1.SettleResponse:
		return fmt.Sprintf("settled, returned %s, overrun %s, released %v", apiAmounts(r.Returned), apiAmounts(r.Overrun), r.Released), 0, r.Meta
	case *quotav1.ReleaseResponse:
		return fmt.Sprintf("released %s, ended %v", apiAmounts(r.Returned), r.Ended), 0, r.Meta
	case *quotav1.RenewResponse:
		return "renewed", r.ExpiresIn.AsDuration(), r.Meta
	case *quotav1.ReportResponse:
		words := make([]string, len(r.Quotas))
		for i, q := range r.Quotas {
			words[i] = fmt.Sprintf("%s attempt %d", q.Quota, q.Attempt)
		}
		return fmt.Sprintf("reported %v", words), 0, r.Meta
	case *quotav1.ApplyQuotasResponse:
		return fmt.Sprintf("applied: created %v, changed %v", sorted(r.Created), sorted(r.Changed)), 0, r.Meta
	case *quotav1.RevokeLeaseResponse:
		return fmt.Sprintf("released %s, ended true", apiAmounts(r.Returned)), 0, r.Meta
	case *quotav1.BeginTaskResponse, *quotav1.RenewTaskResponse, *quotav1.EndTaskResponse:
		return apiAnswerOfTask(r)
	case interface{ GetMeta() *quotav1.Meta }:
		return "done", 0, r.GetMeta()
	}
	return fmt.Sprintf("%T", response), 0, nil
}

func apiReserved(r *quotav1.ReserveResponse) string {
	if refusal := r.GetRefusal(); refusal != nil {
		return apiRefused(refusal)
	}
	if waiting := r.GetWaiting(); waiting != nil {
		return fmt.Sprintf("waits as %d", waiting.Ticket)
	}
	lease := r.GetLease()
	text := fmt.Sprintf("granted %d/%d %s in class %d", lease.GetId(), lease.GetFence(), apiGranted(lease.GetItems()),
		int(lease.GetClass())-1)
	if op := lease.GetOperation(); op != nil {
		text += fmt.Sprintf(", consumed as %d %s", op.Op, apiGranted(op.Items))
	}
	return text
}

// reservedLeft is the remaining time of a lease or a wait.
func reservedLeft(r *quotav1.ReserveResponse) time.Duration {
	if waiting := r.GetWaiting(); waiting != nil {
		return waiting.EndsIn.AsDuration()
	}
	return r.GetLease().GetExpiresIn().AsDuration()
}

func apiRefused(r *quotav1.Refusal) string {
	return fmt.Sprintf("refused: %v of %q, available %d, ahead %d", r.Reason, r.Quota, r.Available, r.Ahead)
}

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }

// requestID is the identity of a request; the zero value: it has none.
type requestID struct {
	session, seq uint64
	key          string
}

func (r requestID) String() string {
	return cmp.Or(r.key, fmt.Sprintf("session %d request %d", r.session, r.seq))
}

func apiID(request any) (requestID, bool) {
	r, ok := request.(interface{ GetRequestId() *quotav1.RequestId })
	if !ok || r.GetRequestId() == nil {
		return requestID{}, false
	}
	id := r.GetRequestId()
	return requestID{id.Session, id.Seq, id.IdempotencyKey}, id.Session != 0 || id.IdempotencyKey != ""
}

func logID(command *logpb.Command) (requestID, bool) {
	return requestID{command.Session, command.Seq, command.IdempotencyKey}, command.Seq != 0 || command.IdempotencyKey != ""
}

// nanos is a cluster time as a number.
func nanos(d *durationpb.Duration) int64 { return int64(d.AsDuration()) }
