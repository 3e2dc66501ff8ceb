package sim

import (
	"context"
	"time"

	"github.com/quotad/quotad/fsm/logpb"
)

// queued are the quotas of the waiting clients: demand exceeds their limits.
var queued = []string{"line", "seats"}

// longestWait is the longest wait.
const longestWait = 4 * time.Second

// stand waits in line with clients of three classes. It waits to the end, leaves and returns, withdraws, or never asks again.
func (c *client) stand(ctx context.Context) {
	at := c.rand.IntN(100)
	switch {
	case at < 8:
		c.readQuotas(ctx, queued)
	case at < 14:
		c.repeat(ctx)
	case at < 18 && len(c.dead) > 0:
		c.use(ctx, c.dead[c.rand.IntN(len(c.dead))])
	case at < 40 && len(c.leases) > 0:
		c.use(ctx, c.leases[c.rand.IntN(len(c.leases))])
	case at < 41:
		c.leaveSession(ctx)
	default:
		c.wait(ctx)
	}
}

func (c *client) wait(ctx context.Context) {
	ask := &logpb.Reserve{
		Holder: c.name, TtlNs: int64(time.Second) + c.rand.Int64N(int64(time.Second)), WaitNs: 1 + c.rand.Int64N(int64(longestWait)),
		Consume: c.rand.IntN(2) == 0, Resume: c.rand.IntN(40) == 0,
	}
	if c.rand.IntN(5) == 0 {
		ask.Class = new(c.rand.Int32N(3))
	}
	for _, at := range c.rand.Perm(len(queued))[:1+c.rand.IntN(2)] {
		amount := int64(1)
		if queued[at] == "line" {
			amount += c.rand.Int64N(5)
		}
		ask.Items = append(ask.Items, &logpb.Item{Quota: queued[at], Amount: &amount})
	}
	command := c.numbered(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: ask}})
	switch c.rand.IntN(10) {
	case 0, 1: // it takes its ticket, and returns later
		c.takePlace(ctx, command)
	case 2: // it leaves while it waits, and returns
		if result := c.attempt(ctx, command, c.w.leader(),
			manner{block: true, within: -time.Duration(c.rand.Int64N(ask.WaitNs))}); result == nil {
			c.keep(c.do(ctx, command))
		} else {
			c.keep(result)
		}
	case 3: // it never asks again
		c.attempt(ctx, command, c.w.leader(), prompt)
	default:
		c.keep(c.do(ctx, command))
	}
}

// takePlace takes a ticket, and then withdraws it or waits with it.
func (c *client) takePlace(ctx context.Context, command *logpb.Command) {
	result := c.persist(ctx, command, prompt)
	waiting := result.GetWaiting()
	if waiting == nil {
		c.keep(result)
		return
	}
	time.Sleep(time.Duration(c.rand.IntN(1000)) * time.Millisecond)
	if c.rand.IntN(2) == 0 {
		c.do(ctx, c.numbered(&logpb.Command{Kind: &logpb.Command_Withdraw{Withdraw: &logpb.Withdraw{Ticket: waiting.Ticket}}}))
	}
	c.keep(c.do(ctx, command)) // withdrawn or not, its end can be requested
}

// leaveSession closes the session, which ends the waits in it.
func (c *client) leaveSession(ctx context.Context) {
	c.attempt(ctx, &logpb.Command{Session: c.session, Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}}, c.w.leader(),
		prompt)
	c.session = 0
}
