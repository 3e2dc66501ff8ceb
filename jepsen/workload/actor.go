package workload

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// habits are how an actor behaves. Weights are relative.
type habits struct {
	// quotas are what it draws from; each Reserve takes 1 to items of them, 1 to amount of each.
	quotas []string
	items  int
	amount int64
	// ttl bounds the length of its leases.
	ttlMin, ttlMax time.Duration
	// consume is how often (of 100) a Reserve consumes at once, wait how often it waits in the queue, bare how often it
	// carries no request id.
	consume, wait, bare int
	waitMax             time.Duration
	// gone is how often (of 100) the caller of a Reserve without a request id goes away before it has an answer: out of the line too.
	gone int
	// twice is how often (of 100) a request is sent once more to another node, late how often some old one is.
	twice, late int
	// The weights of what it does with its leases; abandon forgets a lease without a word, stale uses a dead one.
	reserve, consumeLease, settle, renew, release, abandon, stale, report, read, batch int
	// withdraw is how often (of 100) a wait is not stood through: its ticket is taken, and given back a little later.
	withdraw int
	// most is how many leases it has at once.
	most int
	// limited is how often (of 100) a report says that the provider refused.
	limited int
	// fallback is how often (of 100) a Reserve allows other quotas, emergency how often it is one.
	fallback, emergency int
	// workflow is one that it looks at; empty: none.
	workflow string
}

// held is a lease as the actor knows it.
type held struct {
	id, fence uint64
	items     map[string]int64
	open      []uint64
	nextOp    uint64
	// ends is when it ends by the caller's clock.
	ends time.Time
}

// actor is a holder without the Go client.
type actor struct {
	*caller
	habits
	leases []*held
	dead   []*held
	// old are requests that may be sent again.
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

// act does one thing, drawn by weight.
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
	choices := []choice{{a.read, a.look}, {a.batch, a.several}}
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

// bury moves leases that ended by the clock to the dead.
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

// drop takes a lease from the living.
func (a *actor) drop(lease *held) {
	for i := range a.leases {
		if a.leases[i] == lease {
			a.leases = append(a.leases[:i], a.leases[i+1:]...)
			a.died(lease)
			return
		}
	}
}

// send makes a call under a number, sometimes twice, and keeps it to be sent again later.
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

// ask reserves, and remembers what was granted.
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

// askAndLeave reserves without a request id, and mostly goes away before the answer: nobody can ask for it any more.
func (a *actor) askAndLeave(ctx context.Context, request *quotav1.ReserveRequest) {
	if a.waitMax > 0 {
		request.Wait = durationpb.New(time.Duration(a.rand.Int64N(int64(a.waitMax))))
	}
	sent := time.Now()
	ctx, leave := context.WithCancel(context.WithoutCancel(ctx)) // it goes away: that is no time of a call that is up
	defer time.AfterFunc(time.Duration(a.rand.Int64N(int64(a.waitMax/2+100*time.Millisecond))), leave).Stop()
	defer leave()
	if res, err := a.services[a.at].Reserve(ctx, request); err == nil {
		a.granted(res.GetLease(), sent)
	}
}

// leaveLine takes a waiting Reserve out of the queue, or learns that it was granted meanwhile.
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
		// The same once more as another request: its operation's number makes that safe too.
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

// leave forgets a lease, as a holder does that crashed. Its number is kept, to come back with it later.
func (a *actor) leave(_ context.Context, lease *held) { a.drop(lease) }

// ended drops a lease of which the cluster says that it is over.
func (a *actor) ended(lease *held, err error) {
	if reasonOf(err) == quotav1.Reason_REASON_STALE_FENCE {
		a.drop(lease)
	}
}

// useDead comes back with a lease that ended, as a holder does that slept.
func (a *actor) useDead(ctx context.Context) {
	if len(a.leases) > 0 && a.chance(20) { // a lease that lives, with a fence that is another's
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
		lease.fence += uint64(a.rand.IntN(3)) // somebody else's, or none yet
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

// look reads, which leaves no trace in the log but in the history.
func (a *actor) look(ctx context.Context) {
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
