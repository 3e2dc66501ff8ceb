package client

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// MaxWait is the longest wait of a Reserve in the cluster's queue.
const MaxWait = 10 * time.Minute

// longPoll is how long one attempt waits for a queued Reserve before the client asks again. It bounds how long a silently failed node
// goes unnoticed.
const longPoll = 10 * time.Second

// ReserveRequest asks for a lease.
type ReserveRequest struct {
	// Items are the requested items, 1 to 64, each quota once: all are granted or none.
	Items []Item
	// TTL is the lease's time to live, 1 s to 24 h; 0: the client's (WithTTL).
	TTL time.Duration
	// Consume makes all items spendable at once, as the lease's first operation.
	Consume bool
	// Class lowers the class of this request; 0: the client's (WithClass).
	Class Class
	// Wait is how long to wait in the queue if the items cannot be granted now, at most MaxWait; 0: not at all.
	Wait time.Duration
	// Resume ends all older leases of the holder first, such as those from before the holder's restart.
	Resume bool
	// Emergency marks a critical call that may use the last of a window with strict zones.
	Emergency bool
	// Fallback allows the next quotas of the fallback chains, if requested ones are refused or will be exhausted soon: Lease.For
	// returns the item granted instead.
	Fallback bool
	// Member selects the member of the requested pools, such as a key; empty: the one with the most room. Lease.Member returns the
	// granted one.
	Member string
	// Holder is the holder to ask for; empty: the client's.
	Holder string
}

// Reserve requests a lease on all items or none. A refusal is a *RefusalError. If ctx ends while the request is in flight, the error is
// an *UnknownOutcomeError, and the client releases a lease that is granted later in the background.
func (c *Client) Reserve(ctx context.Context, request ReserveRequest) (*Lease, error) {
	if len(c.hooks) == 0 {
		return c.reserve(ctx, request)
	}
	asked := request
	asked.Holder = cmp.Or(asked.Holder, c.holder)
	end := c.hooks.wait(ctx, asked)
	lease, err := c.reserve(ctx, request)
	end(lease, err)
	return lease, err
}

func (c *Client) reserve(ctx context.Context, request ReserveRequest) (*Lease, error) {
	wait := min(max(request.Wait, 0), MaxWait)
	_, bounded := ctx.Deadline()
	ctx, done, err := c.begin(ctx, wait)
	if err != nil {
		return nil, err
	}
	defer done()
	cmd := newCommand(&quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: c.reserveMessage(request, wait)}})
	cmd.expires = time.Now().Add(c.callTimeout + orphanLife)
	cmd.then = c.returnOrphan
	// A wait in the queue must not become a wait for an absent cluster.
	prompt := ctx
	if wait > 0 && !bounded {
		var cancel context.CancelFunc
		prompt, cancel = context.WithTimeoutCause(ctx, c.callTimeout, ErrClusterAway)
		defer cancel()
	}
	if err := c.do(prompt, cmd); err != nil {
		return nil, err
	}
	response, at := cmd.result.GetReserve(), cmd.stamp
	if waiting := response.GetWaiting(); waiting != nil {
		if response, at, err = c.await(ctx, cmd, waiting, bounded); err != nil {
			return nil, err
		}
	}
	if refusal := response.GetRefusal(); refusal != nil {
		return nil, c.refused(refusal)
	}
	if response.GetLease() == nil {
		return nil, &UnknownOutcomeError{Err: errors.New("the answer is neither a lease nor a refusal")}
	}
	return newLease(c, response.GetLease(), at), nil
}

func (c *Client) reserveMessage(request ReserveRequest, wait time.Duration) *quotav1.ReserveRequest {
	message := &quotav1.ReserveRequest{
		Holder: request.Holder, Items: askItems(request.Items), Consume: request.Consume, Class: quotav1.Class(request.Class),
		Resume: request.Resume, Emergency: request.Emergency, Fallback: request.Fallback, NoBlock: wait > 0,
		Member: request.Member,
	}
	if message.Holder == "" {
		message.Holder = c.holder
	}
	if request.Class == ClassDefault {
		message.Class = quotav1.Class(c.class)
	}
	if ttl := request.TTL; ttl != 0 {
		message.Ttl = durationpb.New(ttl)
	} else if c.ttl != 0 {
		message.Ttl = durationpb.New(c.ttl)
	}
	if wait > 0 {
		message.Wait = durationpb.New(wait)
	}
	return message
}

// refused converts a refusal to an error, and learns the cooldown in it.
func (c *Client) refused(r *quotav1.Refusal) error {
	refusal := refusalOf(r)
	if refusal.Reason == ReasonCooldown {
		c.cooldowns.learn(refusal.Quota, cmp.Or(refusal.ReopensIn, refusal.RetryAfter)) // older nodes send only RetryAfter
	}
	c.hooks.refusal(refusal)
	return refusal
}

// await waits for a queued Reserve. It asks again under the same identity, which attaches to the waiting Reserve. So neither a lost
// connection nor a new leader loses its place or grants it twice. If the caller set no bound, await stops once the cluster has been
// away for the call timeout.
func (c *Client) await(ctx context.Context, cmd *command, waiting *quotav1.Waiting, bounded bool) (*quotav1.ReserveResponse, stamp, error) {
	request := proto.CloneOf(cmd.pb.GetReserve())
	request.NoBlock = false
	var pause backoff
	for {
		how := patience{leader: longPoll, others: 50 * time.Millisecond, each: longPoll}
		if c.trouble() != nil {
			how.leader = c.prompt().leader
		}
		a, _ := race(ctx, c, how, func(ctx context.Context, to *node) (*quotav1.ReserveResponse, error) {
			return to.api.Reserve(ctx, request)
		})
		switch {
		case a.err == nil && a.value.GetWaiting() == nil:
			c.sessions.finish(cmd)
			return a.value, stamp{sent: a.sent, received: a.received, servedIn: durationOf(a.value.GetMeta().GetServedIn(), 0)}, nil
		case a.outcome == answered && a.err != nil:
			if wrong, ok := errors.AsType[*RequestError](a.err); ok && wrong.beforeApply {
				// The Reserve is still in the queue.
				c.withdraw(cmd, waiting.GetTicket())
				return nil, stamp{}, c.inDoubt(wrong)
			}
			c.sessions.finish(cmd)
			if errors.Is(a.err, ReasonUnknownSession) {
				c.sessions.forget(cmd.session)
				c.counters.unknown.Add(1)
				return nil, stamp{}, &UnknownOutcomeError{Reason: ReasonUnknownSession, Err: a.err}
			}
			return nil, stamp{}, a.err
		}
		if time.Since(a.sent) > longestBackoff {
			// It waited without an outcome: ask again at once.
			pause = backoff{}
		} else {
			pause.wait(ctx)
		}
		if a.err != nil {
			// A long poll that timed out looks like a node that fell silent.
			c.probe(ctx)
		}
		if ctx.Err() != nil {
			c.withdraw(cmd, waiting.GetTicket())
			return nil, stamp{}, &UnknownOutcomeError{Err: context.Cause(ctx)}
		}
		if trouble := c.trouble(); trouble != nil && !bounded && c.Away() >= c.callTimeout {
			c.withdraw(cmd, waiting.GetTicket())
			return nil, stamp{}, &UnknownOutcomeError{Err: trouble}
		}
	}
}

// returnOrphan releases the lease of a Reserve whose caller has left.
func (c *Client) returnOrphan(cmd *command) {
	response := cmd.result.GetReserve()
	if waiting := response.GetWaiting(); waiting != nil {
		c.withdraw(cmd, waiting.GetTicket())
	}
	lease := response.GetLease()
	if lease == nil {
		return
	}
	c.counters.returned.Add(1)
	release := newCommand(&quotav1.Command{Kind: &quotav1.Command_Release{Release: &quotav1.ReleaseRequest{
		Lease: lease.GetId(), Fence: lease.GetFence(),
	}}})
	op := lease.GetOperation()
	if op == nil {
		c.send(orphanLife, release)
		return
	}
	// Amounts consumed at once are no longer held: settle them as unspent, unless it is too late for that.
	settle := &quotav1.SettleRequest{Lease: lease.GetId(), Fence: lease.GetFence(), Op: op.GetOp(), Release: true}
	for _, item := range op.GetItems() {
		amount := item.GetAmount()
		settle.Unspent = append(settle.Unspent, &quotav1.Item{Quota: item.GetQuota(), Amount: &amount})
	}
	settlement := newCommand(&quotav1.Command{Kind: &quotav1.Command_Settle{Settle: settle}})
	settlement.then = func(settlement *command) {
		if settlement.err != nil {
			c.send(orphanLife, release)
		}
	}
	c.send(orphanLife, settlement)
}

// withdraw removes a Reserve from the queue whose caller has left. It may have been granted meanwhile: a repeat under its identity
// shows that, and the lease is released. Both commands travel in one batch, in this order.
func (c *Client) withdraw(cmd *command, ticket uint64) {
	withdrawal := newCommand(&quotav1.Command{Kind: &quotav1.Command_Withdraw{Withdraw: &quotav1.WithdrawRequest{Ticket: ticket}}})
	again := newCommand(cmd.pb)
	again.numbered, again.session, again.seq, again.doubt = true, cmd.session, cmd.seq, true
	again.then = func(again *command) {
		if again.result.GetReserve().GetWaiting() == nil {
			c.returnOrphan(again)
		}
	}
	c.send(orphanLife, withdrawal, again)
}

func (c *Client) reportCommand(lease *Lease, op uint64, report *quotav1.ReportRequest) *command {
	report.Lease, report.Fence, report.Op = lease.id, lease.fence, op
	cmd := newCommand(&quotav1.Command{Kind: &quotav1.Command_Report{Report: report}})
	cmd.then = func(cmd *command) {
		// No caller waits for the answer, but a cooldown in it still counts.
		if cmd.err == nil {
			c.reported(cmd.result.GetReport())
		}
	}
	return cmd
}

func (c *Client) report(ctx context.Context, lease *Lease, op uint64, report *quotav1.ReportRequest) ([]Reported, error) {
	ctx, done, err := c.begin(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer done()
	cmd := c.reportCommand(lease, op, report)
	if err := c.do(ctx, cmd); err != nil {
		return nil, err
	}
	return c.reported(cmd.result.GetReport()), nil
}

// reported learns the cooldowns that a report started.
func (c *Client) reported(response *quotav1.ReportResponse) []Reported {
	out := reportedOf(response.GetQuotas())
	for _, quota := range out {
		c.cooldowns.learn(quota.Quota, quota.CooldownLeft)
	}
	c.hooks.cooldown(out)
	return out
}

// Quota returns a quota's current state. The read is linearizable: it sees everything acknowledged before it began.
func (c *Client) Quota(ctx context.Context, name string) (Quota, error) {
	ctx, done, err := c.begin(ctx, 0)
	if err != nil {
		return Quota{}, err
	}
	defer done()
	response, err := read(ctx, c, func(ctx context.Context, to *node) (*quotav1.GetQuotaResponse, error) {
		return to.api.GetQuota(ctx, &quotav1.GetQuotaRequest{Name: name})
	})
	if err != nil {
		return Quota{}, err
	}
	return quotaOf(response.GetQuota()), nil
}

// Quotas lists all quotas whose names start with prefix, by name.
func (c *Client) Quotas(ctx context.Context, prefix string) ([]Quota, error) {
	ctx, done, err := c.begin(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer done()
	var out []Quota
	request := &quotav1.ListQuotasRequest{Prefix: prefix, PageSize: 1_000}
	for {
		page, err := read(ctx, c, func(ctx context.Context, to *node) (*quotav1.ListQuotasResponse, error) {
			return to.api.ListQuotas(ctx, proto.CloneOf(request))
		})
		if err != nil {
			return nil, err
		}
		for _, quota := range page.GetQuotas() {
			out = append(out, quotaOf(quota))
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return out, nil
		}
	}
}

// CheckFence reports to a resource whether the lease that a caller presents still lives and has this fence, and for how long.
func (c *Client) CheckFence(ctx context.Context, lease, fence uint64) (valid bool, left time.Duration, err error) {
	ctx, done, err := c.begin(ctx, 0)
	if err != nil {
		return false, 0, err
	}
	defer done()
	response, err := read(ctx, c, func(ctx context.Context, to *node) (*quotav1.CheckFenceResponse, error) {
		return to.api.CheckFence(ctx, &quotav1.CheckFenceRequest{Lease: lease, Fence: fence})
	})
	if err != nil {
		return false, 0, err
	}
	return response.GetValid(), durationOf(response.GetExpiresIn(), 0), nil
}

// read repeats a read, which changes nothing, until it is answered or ctx ends.
func read[T any](ctx context.Context, c *Client, send sender[T]) (T, error) {
	var pause backoff
	var failed error
	for {
		start := time.Now()
		a, _ := race(ctx, c, c.prompt(), send)
		if a.outcome == answered {
			return a.value, a.err
		}
		if ctx.Err() == nil || nodesAreSilent(ctx, c, time.Since(start)) {
			failed = a.err
		}
		pause.wait(ctx)
		if ctx.Err() == nil {
			continue
		}
		reason := context.Cause(ctx)
		if failed != nil {
			reason = joined(reason, c.absent(failed))
		}
		var none T
		return none, &NotAcceptedError{Err: reason}
	}
}

// nodesAreSilent reports whether a race that ended with its context shows that the cluster is away: the context reached its deadline,
// and the race lasted long enough to ask other nodes too. A caller that leaves shows nothing.
func nodesAreSilent(ctx context.Context, c *Client, took time.Duration) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) && took >= c.prompt().leader
}
