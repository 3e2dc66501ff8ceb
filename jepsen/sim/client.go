package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/jepsen/check"
	"github.com/quotad/quotad/raftnode"
)

// define creates the quotas.
func (w *world) define() bool {
	rate := func(name, parent string, limit int64) *logpb.Quota {
		return &logpb.Quota{Name: name, Parent: parent, Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: limit, PerNs: int64(3 * time.Second)}}}
	}
	apply := &logpb.ApplyQuotas{Quotas: []*logpb.Quota{
		rate("root", "", 60), rate("root/a", "root", 40), rate("root/b", "root", 40), rate("wide", "", 1_000_000),
		{Name: "slots", Rule: &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: 3, GraceNs: int64(300 * time.Millisecond)}}},
	}}
	command := &logpb.Command{IdempotencyKey: "define", Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: apply}}
	c := &client{w: w, name: "operator", rand: w.rand}
	return c.do(context.Background(), command) != nil
}

// client is a holder that numbers its requests and sends what has no answer again, elsewhere.
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

func (w *world) client(ctx context.Context, seed uint64, number int) {
	c := &client{w: w, name: fmt.Sprintf("c%d", number), rand: rand.New(rand.NewPCG(seed, uint64(number)+100)), nextOp: 2} //nolint:gosec // no secret
	for ctx.Err() == nil {
		c.act(ctx)
		time.Sleep(time.Duration(5+c.rand.IntN(60)) * time.Millisecond)
	}
}

func openSession(holder string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: holder}}}
}

// act does one thing.
func (c *client) act(ctx context.Context) {
	if c.session == 0 {
		opened := c.do(ctx, openSession(c.name))
		c.session = opened.GetSessionOpened().GetSession()
		return
	}
	at := c.rand.IntN(100)
	switch {
	case at < 12:
		c.read(ctx)
	case at < 20 && len(c.old) > 0:
		c.attempt(ctx, c.old[c.rand.IntN(len(c.old))], c.anyNode())
	case at < 30 && len(c.dead) > 0:
		c.use(ctx, c.dead[c.rand.IntN(len(c.dead))])
	case at < 70 && len(c.leases) > 0:
		c.use(ctx, c.leases[c.rand.IntN(len(c.leases))])
	default:
		c.reserve(ctx)
	}
}

func (c *client) anyNode() string { return address(c.rand.IntN(c.w.plan.nodes)) }

// numbered gives a command the next number and keeps it to be sent again.
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
	result := c.do(ctx, c.numbered(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: ask}}))
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

// use does something with a lease, dead or alive.
func (c *client) use(ctx context.Context, lease *logpb.Granted) {
	command := &logpb.Command{}
	switch c.rand.IntN(5) {
	case 0:
		command.Kind = &logpb.Command_Renew{Renew: &logpb.Renew{Lease: lease.Lease, Fence: lease.Fence, TtlNs: int64(2 * time.Second)}}
	case 1:
		command.Kind = &logpb.Command_Release{Release: &logpb.Release{Lease: lease.Lease, Fence: lease.Fence}}
	case 2:
		command.Kind = &logpb.Command_Settle{Settle: &logpb.Settle{Lease: lease.Lease, Fence: lease.Fence, Op: 1 + c.rand.Uint64N(c.nextOp), Final: true}}
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

// do sends a command until it has an answer, for a while; nil: its outcome stays open.
func (c *client) do(ctx context.Context, command *logpb.Command) *logpb.Result {
	at := c.w.leader()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if at == "" {
			at = c.anyNode()
		}
		if result := c.attempt(ctx, command, at); result != nil {
			return result
		}
		if command.Seq == 0 && command.IdempotencyKey == "" {
			return nil // sent again, it would be another one
		}
		at = c.anyNode()
		time.Sleep(time.Duration(10+c.rand.IntN(100)) * time.Millisecond)
	}
	return nil
}

// attempt sends a command to a node once and writes down what came of it.
func (c *client) attempt(ctx context.Context, command *logpb.Command, id string) *logpb.Result {
	node := c.w.node(id)
	if node == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	call := check.SimulatedCall{Client: c.name, Node: id, Sent: c.w.now(), Command: command}
	results, position, err := node.Propose(ctx, proto.CloneOf(command))
	call.Returned = c.w.now()
	if err == nil {
		call.Result, call.Term, call.Index, call.Now = results[0], position.Term, position.Index, position.ClusterTime
	} else {
		_, call.NotAccepted = errors.AsType[*raftnode.NotAcceptedError](err)
	}
	c.w.note(call)
	return call.Result
}

// read reads at the leader, which leaves no trace in the log.
func (c *client) read(ctx context.Context) {
	id := c.anyNode()
	node := c.w.node(id)
	if node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	call := check.SimulatedCall{Client: c.name, Node: id, Sent: c.w.now()}
	err := node.Read(ctx, raftnode.Linearizable, func(_ *fsm.State, _ fsm.Clock, at raftnode.Position) {
		call.Term, call.Index, call.Now = at.Term, at.Index, at.ClusterTime
	})
	call.Returned = c.w.now()
	if err == nil {
		c.w.note(call)
	}
}

func (w *world) note(call check.SimulatedCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.result.Calls = append(w.result.Calls, call)
}
