package workload

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// habits are the behaviour of an actor. Weights are relative.
type habits struct {
	// quotas are those it uses; each Reserve takes 1 to items of them, 1 to amount of each.
	quotas []string
	items  int
	amount int64
	// ttlMin and ttlMax bound the length of its leases.
	ttlMin, ttlMax time.Duration
	// consume is the percentage of Reserves that consume at once, wait of those that wait in the queue, bare of those without a request ID.
	consume, wait, bare int
	waitMax             time.Duration
	// gone is the percentage of Reserves without a request ID whose caller leaves before the answer, and so leaves the line too.
	gone int
	// twice is the percentage of requests that are repeated at another node, late that of actions that repeat an old request.
	twice, late int
	// The weights of its uses of leases; abandon forgets a lease silently, stale uses a dead one.
	reserve, consumeLease, settle, renew, release, abandon, stale, report, read, batch int
	// withdraw is the percentage of waits that take a ticket and withdraw it a little later.
	withdraw int
	// most is the largest number of leases at a time.
	most int
	// limited is the percentage of reports that tell of a refusal by the provider.
	limited int
	// fallback is the percentage of Reserves that allow other quotas, emergency that of emergencies.
	fallback, emergency int
	// workflow is the workflow that it reads; empty: none.
	workflow string
}

// held is a lease as the actor knows it.
type held struct {
	id, fence uint64
	items     map[string]int64
	open      []uint64
	nextOp    uint64
	// ends is the deadline by the caller's clock.
	ends time.Time
}

// actor is a holder without the Go client.
type actor struct {
	*caller
	habits
	leases []*held
	dead   []*held
	// old are requests that may be repeated.
	old []func(context.Context)
}

func raw(h habits) func(context.Context, *worker, int) {
	return func(ctx context.Context, w *worker, number int) {
		a := &actor{caller: w.caller(number), habits: h}
		for w.rest(ctx, a.rand) {
			a.act(ctx)
		}
		for _, lease := range a.leases {
			a.releaseLease(context.WithoutCancel(ctx), lease)
		}
	}
}

// act makes one action, drawn by weight.
func (a *actor) act(ctx context.Context) {
	a.bury()
	if len(a.old) > 0 && a.chance(a.late) {
		a.old[a.rand.IntN(len(a.old))](ctx)
		return
	}
	type choice struct {
		weight int
		do     func(context.Context)
	}
	choices := []choice{{a.read, a.readQuotas}, {a.batch, a.several}}
	if len(a.leases) < a.most {
		choices = append(choices, choice{a.reserve, a.ask})
	}
	if len(a.leases) > 0 {
		lease := a.leases[a.rand.IntN(len(a.leases))]
		with := func(do func(context.Context, *held)) func(context.Context) {
			return func(ctx context.Context) { do(ctx, lease) }
		}
		choices = append(choices, choice{a.consumeLease, with(a.consumeFrom)}, choice{a.settle, with(a.settleOne)},
			choice{a.renew, with(a.renewLease)}, choice{a.release, with(a.releaseLease)}, choice{a.abandon, with(a.leave)},
			choice{a.report, with(a.reportOn)})
	}
	if len(a.dead) > 0 {
		choices = append(choices, choice{a.stale, a.useDead})
	}
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	if total == 0 {
		return
	}
	at := a.rand.IntN(total)
	for _, c := range choices {
		if at -= c.weight; at < 0 {
			c.do(ctx)
			return
		}
	}
}

func (a *actor) chance(percent int) bool { return a.rand.IntN(100) < percent }

// bury moves leases past their deadline to the dead.
func (a *actor) bury() {
	now := time.Now()
	kept := a.leases[:0]
	for _, lease := range a.leases {
		if now.After(lease.ends) {
			a.died(lease)
		} else {
			kept = append(kept, lease)
		}
	}
	a.leases = kept
}

func (a *actor) died(lease *held) {
	if len(a.dead) >= 32 {
		a.dead[a.rand.IntN(len(a.dead))] = lease
		return
	}
	a.dead = append(a.dead, lease)
}

// drop moves a lease from the living to the dead.
func (a *actor) drop(lease *held) {
	for i := range a.leases {
		if a.leases[i] == lease {
			a.leases = append(a.leases[:i], a.leases[i+1:]...)
			a.died(lease)
			return
		}
	}
}

// send makes a numbered call, sometimes twice, and keeps it for later repetition.
func send[Req, Res any](ctx context.Context, a *actor, m method[Req, Res], request *Req, wait time.Duration) (*Res, error) {
	res, err := call(ctx, a.caller, m, request, wait)
	if a.chance(a.twice) {
		again(ctx, a.caller, m, request)
	}
	repeat := func(ctx context.Context) { again(ctx, a.caller, m, request) }
	if len(a.old) < keptResults {
		a.old = append(a.old, repeat)
	} else {
		a.old[a.rand.IntN(len(a.old))] = repeat
	}
	return res, err
}

func (a *actor) wanted() []*quotav1.Item {
	count := 1 + a.rand.IntN(a.items)
	items := make([]*quotav1.Item, 0, count)
	for _, at := range a.rand.Perm(len(a.quotas))[:min(count, len(a.quotas))] {
		amount := 1 + a.rand.Int64N(a.amount)
		items = append(items, &quotav1.Item{Quota: a.quotas[at], Amount: &amount})
	}
	return items
}

func (a *actor) reservation(ctx context.Context) *quotav1.ReserveRequest {
	ttl := a.ttlMin + time.Duration(a.rand.Int64N(int64(a.ttlMax-a.ttlMin)+1))
	request := &quotav1.ReserveRequest{
		Holder: a.holder, Items: a.wanted(), Ttl: durationpb.New(ttl), Consume: a.chance(a.consume), Resume: a.chance(1),
		Fallback: a.chance(a.fallback), Emergency: a.chance(a.emergency),
	}
	if !a.chance(a.bare) {
		request.RequestId = a.id(ctx)
	}
	return request
}

// ask reserves, and keeps the granted lease.
func (a *actor) ask(ctx context.Context) {
	request := a.reservation(ctx)
	var wait time.Duration
	if a.waitMax > 0 && a.chance(a.wait) && request.RequestId != nil {
		wait = time.Duration(a.rand.Int64N(int64(a.waitMax)))
		request.Wait = durationpb.New(wait)
	}
	sent := time.Now()
	if request.RequestId == nil && a.chance(a.gone) {
		a.askAndLeave(ctx, request)
		return
	}
	if request.RequestId == nil {
		// Without a number a second attempt would be a second lease.
		if res, err := attempt(ctx, a.caller, service.Reserve, request, 0); err == nil {
			a.granted(res.GetLease(), sent)
		}
		return
	}
	request.NoBlock = wait > 0 && a.chance(a.withdraw)
	res, err := send(ctx, a, service.Reserve, request, wait)
	if err != nil {
		return
	}
	a.granted(res.GetLease(), sent)
	if waiting := res.GetWaiting(); waiting != nil {
		a.leaveLine(ctx, request, waiting.Ticket)
	}
}

// askAndLeave reserves without a request ID, and mostly leaves before the answer: it cannot be requested again.
func (a *actor) askAndLeave(ctx context.Context, request *quotav1.ReserveRequest) {
	if a.waitMax > 0 {
		request.Wait = durationpb.New(time.Duration(a.rand.Int64N(int64(a.waitMax))))
	}
	sent := time.Now()
	ctx, leave := context.WithCancel(context.WithoutCancel(ctx)) // the caller leaves: this is no timeout
	defer time.AfterFunc(time.Duration(a.rand.Int64N(int64(a.waitMax/2+100*time.Millisecond))), leave).Stop()
	defer leave()
	if res, err := a.services[a.at].Reserve(ctx, request); err == nil {
		a.granted(res.GetLease(), sent)
	}
}

// leaveLine withdraws a waiting Reserve, or learns that it was granted meanwhile.
func (a *actor) leaveLine(ctx context.Context, request *quotav1.ReserveRequest, ticket uint64) {
	_, err := send(ctx, a, service.Withdraw, &quotav1.WithdrawRequest{RequestId: a.id(ctx), Ticket: ticket}, 0)
	if err == nil {
		return
	}
	sent := time.Now()
	if res, err := call(ctx, a.caller, service.Reserve, request, 0); err == nil {
		a.granted(res.GetLease(), sent)
	}
}

func (a *actor) granted(lease *quotav1.Lease, sent time.Time) {
	if lease == nil {
		return
	}
	got := &held{id: lease.Id, fence: lease.Fence, items: map[string]int64{}, nextOp: 1, ends: sent.Add(lease.ExpiresIn.AsDuration())}
	for _, item := range lease.Items {
		got.items[item.Quota] = item.Amount
	}
	if lease.Operation != nil {
		got.open, got.nextOp = []uint64{lease.Operation.Op}, 2
	}
	a.leases = append(a.leases, got)
}

func (a *actor) consumeFrom(ctx context.Context, lease *held) {
	request := &quotav1.ConsumeRequest{RequestId: a.id(ctx), Lease: lease.id, Fence: lease.fence, Op: lease.nextOp}
	for quota, amount := range lease.items {
		if amount > 0 && a.chance(60) {
			part := 1 + a.rand.Int64N(amount)
			request.Items = append(request.Items, &quotav1.Item{Quota: quota, Amount: &part})
		}
	}
	lease.nextOp++
	_, err := send(ctx, a, service.Consume, request, 0)
	if err == nil {
		lease.open = append(lease.open, request.Op)
	}
	a.ended(lease, err)
}

func (a *actor) settleOne(ctx context.Context, lease *held) {
	if len(lease.open) == 0 {
		return
	}
	at := a.rand.IntN(len(lease.open))
	request := &quotav1.SettleRequest{
		RequestId: a.id(ctx), Lease: lease.id, Fence: lease.fence, Op: lease.open[at], Final: true, Release: a.chance(20),
	}
	for quota := range lease.items {
		amount := a.rand.Int64N(a.amount + 1)
		switch a.rand.IntN(3) {
		case 0:
			request.Unspent = append(request.Unspent, &quotav1.Item{Quota: quota, Amount: new(int64(1))})
		case 1:
			request.Actual = append(request.Actual, &quotav1.Item{Quota: quota, Amount: &amount})
		}
	}
	lease.open = append(lease.open[:at], lease.open[at+1:]...)
	res, err := send(ctx, a, service.Settle, request, 0)
	if a.chance(a.twice) {
		// The same Settle as another request: its operation's number makes that safe too.
		request.RequestId = a.id(ctx)
		_, _ = send(ctx, a, service.Settle, request, 0)
	}
	if err == nil && res.Released {
		a.drop(lease)
	}
	a.ended(lease, err)
}

func (a *actor) renewLease(ctx context.Context, lease *held) {
	sent := time.Now()
	request := &quotav1.RenewRequest{RequestId: a.id(ctx), Lease: lease.id, Fence: lease.fence}
	res, err := send(ctx, a, service.Renew, request, 0)
	if err == nil {
		lease.ends = sent.Add(res.ExpiresIn.AsDuration())
	}
	a.ended(lease, err)
}

func (a *actor) releaseLease(ctx context.Context, lease *held) {
	request := &quotav1.ReleaseRequest{RequestId: a.id(ctx), Lease: lease.id, Fence: lease.fence}
	_, err := send(ctx, a, service.Release, request, 0)
	if err == nil {
		a.drop(lease)
	}
	a.ended(lease, err)
}

// leave forgets a lease, as a crashed holder does. Its number is kept for later use.
func (a *actor) leave(_ context.Context, lease *held) { a.drop(lease) }

// ended drops a lease that the cluster reports as ended.
func (a *actor) ended(lease *held, err error) {
	if reasonOf(err) == quotav1.Reason_REASON_STALE_FENCE {
		a.drop(lease)
	}
}

// useDead uses an ended lease, as a holder does after a pause.
func (a *actor) useDead(ctx context.Context) {
	if len(a.leases) > 0 && a.chance(20) { // a live lease, with another's fence
		lease := *a.leases[a.rand.IntN(len(a.leases))]
		lease.fence++
		a.renewLease(ctx, &lease)
		return
	}
	lease := *a.dead[a.rand.IntN(len(a.dead))]
	lease.open = append([]uint64{1}, lease.open...)
	switch a.rand.IntN(5) {
	case 0:
		a.renewLease(ctx, &lease)
	case 1:
		a.consumeFrom(ctx, &lease)
	case 2:
		a.settleOne(ctx, &lease)
	case 3:
		lease.fence += uint64(a.rand.IntN(3)) // another's fence, or one not issued yet
		a.releaseLease(ctx, &lease)
	default:
		a.releaseLease(ctx, &lease)
	}
}

func (a *actor) reportOn(ctx context.Context, lease *held) {
	if len(lease.open) == 0 {
		return
	}
	request := &quotav1.ReportRequest{RequestId: a.id(ctx), Lease: lease.id, Fence: lease.fence, Op: lease.open[0]}
	for quota := range lease.items {
		signal := &quotav1.Signal{Quota: quota, Cause: quotav1.Cause_CAUSE_OK}
		switch {
		case quota == foretold:
			signal.Remaining = new(remaining(time.Now()))
		case quota != lent && a.chance(a.limited):
			signal.Cause = quotav1.Cause_CAUSE_SATURATED
			signal.RetryAfter = durationpb.New(time.Duration(100+a.rand.IntN(900)) * time.Millisecond)
		}
		request.Signals = append(request.Signals, signal)
	}
	_, err := send(ctx, a, service.Report, request, 0)
	a.ended(lease, err)
}

// readQuotas reads, which leaves no trace in the log, but in the history.
func (a *actor) readQuotas(ctx context.Context) {
	a.at = a.rand.IntN(len(a.services))
	if len(a.leases) > 0 && a.chance(30) {
		lease := a.leases[a.rand.IntN(len(a.leases))]
		_, _ = attempt(ctx, a.caller, service.CheckFence, &quotav1.CheckFenceRequest{Lease: lease.id, Fence: lease.fence}, 0)
		return
	}
	if a.workflow != "" && a.chance(50) {
		_, _ = attempt(ctx, a.caller, service.GetWorkflow, &quotav1.GetWorkflowRequest{Name: a.workflow}, 0)
		return
	}
	request := &quotav1.GetQuotaRequest{Name: a.quotas[a.rand.IntN(len(a.quotas))]}
	_, _ = attempt(ctx, a.caller, service.GetQuota, request, 0)
}

// several sends commands of several kinds in one Batch.
func (a *actor) several(ctx context.Context) {
	request := &quotav1.BatchRequest{}
	for range 1 + a.rand.IntN(20) {
		reserve := a.reservation(ctx)
		reserve.RequestId, reserve.Resume = a.id(ctx), false
		request.Commands = append(request.Commands, &quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: reserve}})
	}
	for _, lease := range a.leases {
		request.Commands = append(request.Commands, &quotav1.Command{Kind: &quotav1.Command_Renew{
			Renew: &quotav1.RenewRequest{RequestId: a.id(ctx), Lease: lease.id, Fence: lease.fence},
		}})
	}
	sent := time.Now()
	res, err := send(ctx, a, service.Batch, request, 0)
	if err != nil {
		return
	}
	for _, result := range res.Results {
		a.granted(result.GetReserve().GetLease(), sent)
	}
	for len(a.leases) > a.most {
		a.leave(ctx, a.leases[0])
	}
}
