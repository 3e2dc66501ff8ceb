package sim

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/jepsen/check"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// client is a holder that numbers its requests and repeats unanswered ones at other nodes.
type client struct {
	w       *world
	name    string
	rand    *rand.Rand
	session uint64
	seq     uint64
	leases  []*logpb.Granted
	dead    []*logpb.Granted
	nextOp  uint64
	old     []*logpb.Command
}

// newClient makes a client with its own source of randomness, from the seed and its name.
func (w *world) newClient(seed uint64, name string) *client {
	drawn := fnv.New64a()
	_, _ = drawn.Write([]byte(name))
	return &client{w: w, name: name, rand: rand.New(rand.NewPCG(seed, drawn.Sum64())), nextOp: 2} //nolint:gosec // no secret
}

// busy makes a client act until its context ends.
func (c *client) busy(ctx context.Context, act func(context.Context)) {
	for ctx.Err() == nil {
		if rest := time.Until(c.w.restsUntil()); rest > 0 {
			time.Sleep(rest)
		}
		if c.session == 0 {
			c.open(ctx)
		} else {
			act(ctx)
		}
		time.Sleep(time.Duration(5+c.rand.IntN(60)) * time.Millisecond)
	}
}

// open opens a session, in which numbers start again.
func (c *client) open(ctx context.Context) {
	opened := c.do(ctx, openSession(c.name))
	c.session, c.seq = opened.GetSessionOpened().GetSession(), 0
}

func openSession(holder string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: holder}}}
}

// draw reserves and uses leases, like an agent that never waits.
func (c *client) draw(ctx context.Context) {
	at := c.rand.IntN(100)
	switch {
	case at < 12:
		c.readQuotas(ctx, []string{"root/a", "root/b", "wide", "slots"})
	case at < 20:
		c.repeat(ctx)
	case at < 30 && len(c.dead) > 0:
		c.use(ctx, c.dead[c.rand.IntN(len(c.dead))])
	case at < 70 && len(c.leases) > 0:
		c.use(ctx, c.leases[c.rand.IntN(len(c.leases))])
	default:
		c.reserve(ctx)
	}
}

// repeat sends an old request again, to any node.
func (c *client) repeat(ctx context.Context) {
	if len(c.old) > 0 {
		c.attempt(ctx, c.old[c.rand.IntN(len(c.old))], c.anyNode(), prompt)
	}
}

func (c *client) anyNode() string { return c.w.any(c.rand) }

// numbered gives a command the next number and keeps it for repetition.
func (c *client) numbered(command *logpb.Command) *logpb.Command {
	c.seq++
	command.Session, command.Seq = c.session, c.seq
	if c.seq > 40 {
		command.AckedBelow = c.seq - 40
	}
	if len(c.old) < 20 {
		c.old = append(c.old, command)
	} else {
		c.old[c.rand.IntN(len(c.old))] = command
	}
	return command
}

func (c *client) reserve(ctx context.Context) {
	quotas := []string{"root/a", "root/b", "wide", "slots"}
	c.rand.Shuffle(len(quotas), func(i, j int) { quotas[i], quotas[j] = quotas[j], quotas[i] })
	ask := &logpb.Reserve{Holder: c.name, TtlNs: int64(time.Second) + c.rand.Int64N(int64(2*time.Second)), Resume: c.rand.IntN(50) == 0}
	for _, quota := range quotas[:1+c.rand.IntN(2)] {
		amount := int64(1)
		if quota != "slots" {
			amount += c.rand.Int64N(5)
		}
		ask.Items = append(ask.Items, &logpb.Item{Quota: quota, Amount: &amount})
	}
	c.keep(c.do(ctx, c.numbered(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: ask}})))
}

// keep keeps a lease, and with many drops the oldest one: dead leases are used again.
func (c *client) keep(result *logpb.Result) {
	granted := result.GetGranted()
	if granted == nil {
		return
	}
	c.leases = append(c.leases, granted)
	if len(c.leases) > 6 {
		c.dead, c.leases = append(c.dead, c.leases[0]), c.leases[1:]
	}
	if len(c.dead) > 10 {
		c.dead = c.dead[1:]
	}
}

// probe makes one request that can be granted, unless late comes first: it shows that its class is served again.
func (c *client) probe(late <-chan struct{}) {
	ctx := context.Background()
	for c.open(ctx); c.session == 0; c.open(ctx) {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			c.w.stuck("%s was not served within %v of the last fault", c.name, patience)
			return
		}
	}
	ask := &logpb.Reserve{Holder: c.name, Items: []*logpb.Item{{Quota: "wide"}}, TtlNs: int64(time.Second)}
	c.do(ctx, c.numbered(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: ask}}))
}

// use makes a request with a lease, dead or alive.
func (c *client) use(ctx context.Context, lease *logpb.Granted) {
	command := &logpb.Command{}
	switch c.rand.IntN(5) {
	case 0:
		command.Kind = &logpb.Command_Renew{Renew: &logpb.Renew{Lease: lease.Lease, Fence: lease.Fence, TtlNs: int64(2 * time.Second)}}
	case 1:
		command.Kind = &logpb.Command_Release{Release: &logpb.Release{Lease: lease.Lease, Fence: lease.Fence}}
	case 2:
		command.Kind = &logpb.Command_Settle{Settle: &logpb.Settle{
			Lease: lease.Lease, Fence: lease.Fence, Op: 1 + c.rand.Uint64N(c.nextOp), Final: true,
		}}
	default:
		c.nextOp++
		var items []*logpb.Item
		for _, item := range lease.Items {
			if item.Quota != "slots" {
				items = append(items, &logpb.Item{Quota: item.Quota, Amount: proto.Int64(1)})
			}
		}
		command.Kind = &logpb.Command_Consume{Consume: &logpb.Consume{Lease: lease.Lease, Fence: lease.Fence, Op: c.nextOp, Items: items}}
	}
	c.do(ctx, c.numbered(command))
}

// manner is the way of one attempt.
type manner struct {
	// block makes a waiting Reserve return at the end of its wait.
	block bool
	// within is the caller's timeout, in addition to the wait.
	within time.Duration
}

// prompt takes the first answer, patient also waits for the end of a wait.
var (
	prompt  = manner{within: 2 * time.Second}
	patient = manner{within: 2 * time.Second, block: true}
)

// do sends a command until it has an answer, for a wait the final one, or until a timeout; nil: its outcome is unknown.
func (c *client) do(ctx context.Context, command *logpb.Command) *logpb.Result {
	return c.persist(ctx, command, patient)
}

func (c *client) persist(ctx context.Context, command *logpb.Command, how manner) *logpb.Result {
	at := c.w.leader()
	for end := time.Now().Add(10*time.Second + waitOf(command)); time.Now().Before(end); {
		if at == "" {
			at = c.anyNode()
		}
		if result := c.attempt(ctx, command, at, how); result != nil {
			c.learn(command, result)
			return result
		}
		if command.Seq == 0 && command.IdempotencyKey == "" {
			return nil // a repetition would be another request
		}
		at = c.anyNode()
		time.Sleep(time.Duration(10+c.rand.IntN(100)) * time.Millisecond)
	}
	return nil
}

// learn forgets an ended session.
func (c *client) learn(command *logpb.Command, result *logpb.Result) {
	reason := result.GetFailure().GetReason()
	gone := reason == logpb.Reason_REASON_UNKNOWN_SESSION || reason == logpb.Reason_REASON_TOO_MANY_IN_FLIGHT
	if gone && command.Session == c.session {
		c.session = 0
	}
}

func waitOf(command *logpb.Command) time.Duration {
	return time.Duration(command.GetReserve().GetWaitNs())
}

// attempt sends a command to a node once and records the result.
func (c *client) attempt(ctx context.Context, command *logpb.Command, id string, how manner) *logpb.Result {
	node := c.w.node(id)
	if node == nil {
		return nil
	}
	within := how.within
	if how.block {
		within += waitOf(command)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	call := check.SimulatedCall{Client: c.name, Node: id, Sent: c.w.now(), Command: command}
	result, position, err := propose(ctx, node, command)
	if waiting := result.GetWaiting(); waiting != nil && how.block {
		result, position, err = await(ctx, node, command, waiting.Ticket)
	}
	call.Returned = c.w.now()
	if err == nil {
		call.Result, call.Term, call.Index, call.Now = result, position.Term, position.Index, position.ClusterTime
	} else {
		_, call.NotAccepted = errors.AsType[*raftnode.NotAcceptedError](err)
	}
	c.w.note(call)
	return call.Result
}

func propose(ctx context.Context, node *raftnode.Node, command *logpb.Command) (*logpb.Result, raftnode.Position, error) {
	results, position, err := node.Propose(ctx, proto.CloneOf(command))
	if err != nil {
		return nil, position, err
	}
	return results[0], position, nil
}

// await waits for the end of a waiting Reserve, as the API does.
func await(ctx context.Context, node *raftnode.Node, command *logpb.Command, ticket uint64) (*logpb.Result, raftnode.Position, error) {
	result, position, err := node.Await(ctx, ticket)
	if !errors.Is(err, raftnode.ErrNoTicket) {
		return result, position, err
	}
	result, position, err = propose(ctx, node, command)
	if err == nil && result.GetWaiting() == nil {
		return result, position, nil
	}
	return nil, position, &raftnode.UnknownError{Err: errors.New("the request was accepted, and its end is not known here")}
}

// readQuotas reads a quota at any node, which leaves no trace in the log.
func (c *client) readQuotas(ctx context.Context, quotas []string) {
	name := quotas[c.rand.IntN(len(quotas))]
	c.read(ctx, func(state *fsm.State, clock fsm.Clock) proto.Message {
		view, ok := state.Quota(name, clock)
		if !ok {
			return nil
		}
		return &quotav1.GetQuotaResponse{Quota: &quotav1.QuotaStatus{
			Definition: &quotav1.Quota{Name: name}, Held: view.Held, Leases: view.Leases, Waiting: view.Waiting, Usable: view.Usable,
			Consumed: view.Consumed, Available: view.Available,
		}}
	})
}

// read reads at any node; shown makes the API's answer, nil for none.
func (c *client) read(ctx context.Context, shown func(*fsm.State, fsm.Clock) proto.Message) {
	id := c.anyNode()
	node := c.w.node(id)
	if node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), prompt.within)
	defer cancel()
	call := check.SimulatedCall{Client: c.name, Node: id, Sent: c.w.now()}
	err := node.Read(ctx, raftnode.Linearizable, func(state *fsm.State, clock fsm.Clock, at raftnode.Position) {
		call.Shown = shown(state, clock)
		call.Term, call.Index, call.Now = at.Term, at.Index, at.ClusterTime
	})
	call.Returned = c.w.now()
	if err == nil && call.Shown != nil {
		c.w.note(call)
	}
}

func (w *world) note(call check.SimulatedCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.result.Calls = append(w.result.Calls, call)
}
