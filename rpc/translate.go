package rpc

import (
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// identified sets a command's request id, the holders that its caller may act for, and the account that pays for it.
func identified(command *logpb.Command, id *quotav1.RequestId, who *caller) *logpb.Command {
	if id != nil {
		command.Session, command.Seq, command.AckedBelow = id.Session, id.Seq, id.AckedBelow
		command.IdempotencyKey = id.IdempotencyKey
	}
	command.By, command.Caller, command.PerHolder = who.pattern, who.budget(), who.sharesAddress()
	command.Operator = who.actsAsOperator(verbOf(command))
	return command
}

// verbOf returns the verb of a command: commands that are not for users are for operators.
func verbOf(command *logpb.Command) Verb {
	switch command.Kind.(type) {
	case *logpb.Command_OpenSession, *logpb.Command_CloseSession, *logpb.Command_Reserve, *logpb.Command_Consume, *logpb.Command_Settle,
		*logpb.Command_Release, *logpb.Command_Renew, *logpb.Command_Withdraw, *logpb.Command_BeginTask, *logpb.Command_RenewTask,
		*logpb.Command_EndTask:
		return VerbUse
	case *logpb.Command_Report:
		return VerbReport
	}
	return VerbAdminQuota
}

func nanos(d *durationpb.Duration) int64 {
	if d == nil {
		return 0
	}
	return int64(d.AsDuration())
}

func optionalNanos(d *durationpb.Duration) *int64 {
	if d == nil {
		return nil
	}
	n := int64(d.AsDuration())
	return &n
}

// left returns the time that is left until a cluster time, at least 0.
func left(until, now int64) *durationpb.Duration {
	return durationpb.New(time.Duration(max(until-now, 0)))
}

func logItems(items []*quotav1.Item) []*logpb.Item {
	converted := make([]*logpb.Item, len(items))
	for i, item := range items {
		converted[i] = &logpb.Item{Quota: item.Quota, Amount: item.Amount}
	}
	return converted
}

// reserving holds the parts of a Reserve's command in one allocation: with one item, the usual case, all of them.
type reserving struct {
	command logpb.Command
	kind    logpb.Command_Reserve
	reserve logpb.Reserve
	class   int32
	list    [1]*logpb.Item
	single  logpb.Item
}

func reserveCommand(r *quotav1.ReserveRequest, who *caller) *logpb.Command {
	made := new(reserving)
	reserve := &made.reserve
	made.command.Kind, made.kind.Reserve = &made.kind, reserve
	reserve.Holder, reserve.TtlNs, reserve.Consume, reserve.Member = r.Holder, nanos(r.Ttl), r.Consume, r.Member
	reserve.WaitNs, reserve.Resume, reserve.Emergency, reserve.Fallback = nanos(r.Wait), r.Resume, r.Emergency, r.Fallback
	if len(r.Items) == 1 {
		made.single.Quota, made.single.Amount = r.Items[0].Quota, r.Items[0].Amount
		made.list[0] = &made.single
		reserve.Items = made.list[:]
	} else {
		reserve.Items = logItems(r.Items)
	}
	if class, ok := who.classFor(r.Class); ok {
		made.class = class
		reserve.Class = &made.class
	}
	return identified(&made.command, r.RequestId, who)
}

func consumeCommand(r *quotav1.ConsumeRequest, who *caller) *logpb.Command {
	return identified(&logpb.Command{Kind: &logpb.Command_Consume{Consume: &logpb.Consume{
		Lease: r.Lease, Fence: r.Fence, Op: r.Op, Items: logItems(r.Items), DoneBelow: r.DoneBelow,
	}}}, r.RequestId, who)
}

func settleCommand(r *quotav1.SettleRequest, who *caller) *logpb.Command {
	return identified(&logpb.Command{Kind: &logpb.Command_Settle{Settle: &logpb.Settle{
		Lease: r.Lease, Fence: r.Fence, Op: r.Op, Unspent: logItems(r.Unspent), Actual: logItems(r.Actual),
		Final: r.Final, Release: r.Release, DoneBelow: r.DoneBelow,
	}}}, r.RequestId, who)
}

func releaseCommand(r *quotav1.ReleaseRequest, who *caller) *logpb.Command {
	return identified(&logpb.Command{Kind: &logpb.Command_Release{Release: &logpb.Release{
		Lease: r.Lease, Fence: r.Fence, Items: logItems(r.Items),
	}}}, r.RequestId, who)
}

func renewCommand(r *quotav1.RenewRequest, who *caller) *logpb.Command {
	return identified(&logpb.Command{Kind: &logpb.Command_Renew{Renew: &logpb.Renew{
		Lease: r.Lease, Fence: r.Fence, TtlNs: nanos(r.Ttl),
	}}}, r.RequestId, who)
}

func withdrawCommand(r *quotav1.WithdrawRequest, who *caller) *logpb.Command {
	return identified(&logpb.Command{Kind: &logpb.Command_Withdraw{Withdraw: &logpb.Withdraw{Ticket: r.Ticket}}}, r.RequestId, who)
}

// reportCommand makes the command of a report of these signals. digest is that of the answer from which they were read; 0: the caller
// gave them.
func reportCommand(r *quotav1.ReportRequest, said []*quotav1.Signal, digest uint64, who *caller) *logpb.Command {
	report := &logpb.Report{Lease: r.Lease, Fence: r.Fence, Op: r.Op, AnswerDigest: digest}
	for _, s := range said {
		report.Signals = append(report.Signals, &logpb.Signal{
			Quota: s.Quota, Cause: logpb.Cause(s.Cause), Limit: s.Limit, Remaining: s.Remaining,
			ResetAfterNs: optionalNanos(s.ResetAfter), ResetResolutionNs: nanos(s.ResetResolution),
			RetryAfterNs: optionalNanos(s.RetryAfter),
		})
	}
	return identified(&logpb.Command{Kind: &logpb.Command_Report{Report: report}}, r.RequestId, who)
}

// leaseAnswer holds the parts of a grant's answer in one allocation: with one item, the usual case, all except its durations.
type leaseAnswer struct {
	response  quotav1.ReserveResponse
	outcome   quotav1.ReserveResponse_Lease
	lease     quotav1.Lease
	operation operationAnswer
	items     grantedItems
}

// operationAnswer holds the parts of an operation.
type operationAnswer struct {
	operation quotav1.Operation
	items     grantedItems
}

// durations holds durations for answers that are sent together, which mostly have the same ones. It keeps the last one of each kind, and
// room for the first.
type durations struct {
	last [durationKinds]*durationpb.Duration
	room [durationKinds]durationpb.Duration
}

// The kinds of durations.
const (
	leaseExpiry   = 0
	itemExpiry    = 1
	askedLength   = 2
	spendTime     = 3
	transitTime   = 4
	durationKinds = 5
)

// of returns a duration of n nanoseconds, which may be one that it returned before.
func (d *durations) of(kind int, n int64) *durationpb.Duration {
	seconds, rest := n/int64(time.Second), int32(n%int64(time.Second))
	last := d.last[kind]
	switch {
	case last != nil && last.Seconds == seconds && last.Nanos == rest:
		return last
	case last == nil:
		last = &d.room[kind]
	default:
		last = new(durationpb.Duration)
	}
	last.Seconds, last.Nanos = seconds, rest
	d.last[kind] = last
	return last
}

// grantedItems starts a list of items, with room for one.
type grantedItems struct {
	list   [1]*quotav1.GrantedItem
	single quotav1.GrantedItem
}

// leaseResponse makes the answer of a grant, with durations that it shares with other answers (nil: it shares none).
func leaseResponse(g *logpb.Granted, clock fsm.Clock, d *durations) *quotav1.ReserveResponse {
	var a *leaseAnswer
	if d == nil {
		alone := new(struct {
			leaseAnswer
			durations
		})
		a, d = &alone.leaseAnswer, &alone.durations
	} else {
		a = new(leaseAnswer)
	}
	lease := &a.lease
	a.response.Outcome, a.outcome.Lease = &a.outcome, lease
	lease.Id, lease.Fence, lease.Class = g.Lease, g.Fence, quotav1.Class(g.Class+1)
	lease.ExpiresIn = d.of(leaseExpiry, max(g.DeadlineNs-clock.Now, 0))
	lease.Items = a.items.convert(g.Items)
	for i, item := range g.Items {
		switch {
		case item.UntilNs == g.DeadlineNs:
			lease.Items[i].ExpiresIn = lease.ExpiresIn
		case i == 0:
			lease.Items[i].ExpiresIn = d.of(itemExpiry, max(item.UntilNs-clock.Now, 0))
		default:
			lease.Items[i].ExpiresIn = left(item.UntilNs, clock.Now)
		}
	}
	if g.Consumed != nil {
		lease.Operation = a.operation.fill(g.Consumed, clock, d)
	}
	if g.AskedTtlNs != 0 {
		lease.AskedTtl = d.of(askedLength, g.AskedTtlNs)
	}
	lease.Forecast, lease.BackPressure = apiForecast(g.Forecast, clock), apiBackPressure(g.BackPressure, clock)
	return &a.response
}

// apiOperation makes an operation.
func apiOperation(c *logpb.Consumed, clock fsm.Clock) *quotav1.Operation {
	return new(operationAnswer).fill(c, clock, new(durations))
}

// fill sets how long an operation may be spent: until the earlier of its spend-by in cluster time and, where a window takes part, in Unix
// time. Cluster time stands still while nobody leads; Unix time does not.
func (a *operationAnswer) fill(c *logpb.Consumed, clock fsm.Clock, d *durations) *quotav1.Operation {
	spend := c.SpendByNs - clock.Now
	if c.SpendByWallNs != 0 {
		spend = min(spend, c.SpendByWallNs-clock.WallLate)
	}
	a.operation.Op, a.operation.Items = c.Op, a.items.convert(c.Items)
	a.operation.SpendIn, a.operation.Transit = d.of(spendTime, max(spend, 0)), d.of(transitTime, c.TransitNs)
	for _, item := range a.operation.Items {
		item.ExpiresIn = a.operation.SpendIn
	}
	return &a.operation
}

// convert converts items, without their expiry.
func (g *grantedItems) convert(items []*logpb.GrantedItem) []*quotav1.GrantedItem {
	converted := g.list[:0]
	for i, item := range items {
		made := &g.single
		if i > 0 {
			made = new(quotav1.GrantedItem)
		}
		made.Quota, made.Amount, made.InsteadOf = item.Quota, item.Amount, item.InsteadOf
		made.Pool, made.Member = item.Pool, item.Member
		converted = append(converted, made)
	}
	return converted
}

func apiGranted(items []*logpb.GrantedItem, clock fsm.Clock) []*quotav1.GrantedItem {
	converted := new(grantedItems).convert(items)
	for i, item := range items {
		converted[i].ExpiresIn = left(item.UntilNs, clock.Now)
	}
	return converted
}

func apiItems(items []*logpb.GrantedItem) []*quotav1.Item {
	converted := make([]*quotav1.Item, len(items))
	for i, item := range items {
		amount := item.Amount
		converted[i] = &quotav1.Item{Quota: item.Quota, Amount: &amount}
	}
	return converted
}

func apiRefusal(r *logpb.Refusal, clock fsm.Clock) *quotav1.Refusal {
	refusal := &quotav1.Refusal{
		Reason: quotav1.Reason(r.Reason), Quota: r.Quota, Zone: quotav1.Zone(r.Zone), Advice: hintFor(r.Reason, r.Advice),
		Available: r.Available, Ahead: r.Ahead, Forecast: apiForecast(r.Forecast, clock), Budget: r.Budget,
	}
	if r.RetryAtNs != 0 {
		refusal.RetryAfter = left(r.RetryAtNs, clock.Now)
	}
	if r.ReopensAtNs != 0 {
		refusal.ReopensIn = left(r.ReopensAtNs, clock.Now)
	}
	refusal.BackPressure = apiBackPressure(r.BackPressure, clock)
	return refusal
}

func apiForecast(f *logpb.Forecast, clock fsm.Clock) *quotav1.Forecast {
	if f == nil {
		return nil
	}
	return &quotav1.Forecast{
		Quota: f.Quota, ExhaustedIn: left(f.ExhaustedAtNs, clock.Now), Smaller: part(f.SmallerPpm), Fallback: f.Fallback, Parks: f.Parks,
	}
}

func apiReported(r *logpb.Reported, clock fsm.Clock) []*quotav1.ReportedQuota {
	quotas := make([]*quotav1.ReportedQuota, len(r.Quotas))
	for i, q := range r.Quotas {
		quotas[i] = &quotav1.ReportedQuota{
			Quota: q.Quota, Attempt: q.Attempt, ResetLearned: q.ResetLearned, CappedTo: q.CappedTo,
		}
		if q.CooldownUntilNs > clock.Now {
			quotas[i].CooldownLeft = left(q.CooldownUntilNs, clock.Now)
		}
	}
	return quotas
}

func logLimits(l *quotav1.Limits) *logpb.SetLimits {
	return &logpb.SetLimits{
		MaxSessions: l.MaxSessions, MaxResultBytes: l.MaxResultBytes, SessionIdleNs: optionalNanos(l.SessionIdle),
		KeyLifeNs:  optionalNanos(l.KeyLife),
		MaxWaiters: l.MaxWaiters, MaxTasks: l.MaxTasks, TaskLifeNs: optionalNanos(l.TaskLife),
		MaxKeys: l.MaxKeys, MaxLeases: l.MaxLeases, MaxReports: l.MaxReports,
		MaxHolderBytes: l.MaxHolderBytes, MaxOperationBytes: l.MaxOperationBytes,
		OperatorsPpm: optionalPPM(l.OperatorsPart), CallerMinPpm: optionalPPM(l.CallerMin),
		MaxCalls: l.MaxCalls, MaxStreams: l.MaxStreams, MaxConnections: l.MaxConnections,
	}
}

func apiLimits(l *logpb.SetLimits) *quotav1.Limits {
	return &quotav1.Limits{
		MaxSessions: new(l.GetMaxSessions()), MaxResultBytes: new(l.GetMaxResultBytes()), SessionIdle: optionalDuration(l.GetSessionIdleNs()),
		KeyLife: optionalDuration(l.GetKeyLifeNs()), MaxWaiters: new(l.GetMaxWaiters()),
		MaxTasks: new(l.GetMaxTasks()), TaskLife: optionalDuration(l.GetTaskLifeNs()),
		MaxKeys: new(l.GetMaxKeys()), MaxLeases: new(l.GetMaxLeases()), MaxReports: new(l.GetMaxReports()),
		MaxHolderBytes: new(l.GetMaxHolderBytes()), MaxOperationBytes: new(l.GetMaxOperationBytes()),
		OperatorsPart: new(part(int32(l.GetOperatorsPpm()))), CallerMin: new(part(int32(l.GetCallerMinPpm()))),
		MaxCalls: new(l.GetMaxCalls()), MaxStreams: new(l.GetMaxStreams()), MaxConnections: new(l.GetMaxConnections()),
	}
}

func optionalPPM(part *float64) *int64 {
	if part == nil {
		return nil
	}
	return new(int64(ppm(*part)))
}

// maxTopCallers bounds the callers that are shown of each budget.
const maxTopCallers = 5

func apiBudgets(views []accounts.View) []*quotav1.Budget {
	all := make([]*quotav1.Budget, len(views))
	for i, v := range views {
		all[i] = &quotav1.Budget{
			Name: v.Name, Capacity: v.Capacity, OperatorsPart: v.OperatorsPart, Minimum: v.Minimum, Used: v.Used,
			Callers: v.Callers, CallersAtBudget: v.AtBudget,
		}
		for _, use := range v.Top {
			all[i].Top = append(all[i].Top, &quotav1.BudgetUse{Caller: use.Caller, Used: use.Used, Most: use.Most})
		}
	}
	return all
}

func apiUsage(v *fsm.UsageView) *quotav1.Usage {
	u := &quotav1.Usage{
		Holder: v.Holder, Quota: v.Quota, Class: quotav1.Class(v.Class + 1), Share: v.Share, Reserved: v.Reserved, Lent: v.Lent,
		Borrowed: v.Borrowed,
		Answered: v.Answered, Limited: v.Limited, Waits: v.Waits, Waited: durationpb.New(time.Duration(v.WaitedNs)),
		Granted: v.Granted, Consumed: v.Consumed, Returned: v.Returned, Overrun: v.Overrun,
	}
	if v.Used >= 0 {
		u.Used = &v.Used
	}
	for _, d := range v.Denials {
		u.Refusals = append(u.Refusals, &quotav1.RefusalCount{Reason: quotav1.Reason(d.Reason), Times: d.Times})
	}
	return u
}

// apiLeaseStatus converts a lease as a read showed it, with the time that is left of it at present.
func apiLeaseStatus(v *fsm.LeaseView, shown, present fsm.Clock) *quotav1.LeaseStatus {
	return &quotav1.LeaseStatus{
		Id: v.ID, Fence: v.Fence, Holder: v.Holder, Class: quotav1.Class(v.Class + 1),
		Held: apiGranted(v.Held, present), Consumed: apiGranted(v.Consumed, present),
		ExpiresIn: durationpb.New(time.Duration(max(v.Left-(present.Now-shown.Now), 0))), Operations: int32(v.Operations),
	}
}

func parsePage(token string) (uint64, error) {
	if token == "" {
		return 0, nil
	}
	return strconv.ParseUint(token, 10, 64)
}
