package sim

import (
	"context"
	"strings"
	"time"

	"github.com/quotad/quotad/fsm/logpb"
)

// shared is a rate with shares, of which the lower classes want more than the limit.
const shared = "shared"

func sharedRate() *logpb.Quota {
	q := rate(shared, "", 90)
	q.Policy = &logpb.Policy{Shares: &logpb.Shares{
		CriticalPpm: 400_000, StandardPpm: 350_000, BackgroundPpm: 250_000, QuietNs: int64(time.Second),
	}}
	return q
}

// calm is how long critical calls run, and then for as long pause: longer than the rate's period, so that the class stops asking.
const calm = 5 * time.Second

// share draws on the rate in the client's class.
func (c *client) share(ctx context.Context) {
	critical := strings.HasPrefix(c.name, classNames[0])
	at := c.rand.IntN(100)
	switch {
	case at < 5:
		c.readQuotas(ctx, []string{shared})
	case at < 10:
		c.repeat(ctx)
	case at < 30 && len(c.leases) > 0:
		c.use(ctx, c.leases[c.rand.IntN(len(c.leases))])
	case critical && (at < 70 || c.w.now()/int64(calm)%2 == 1):
	default:
		ask := &logpb.Reserve{
			Holder: c.name, Items: []*logpb.Item{{Quota: shared, Amount: new(1 + c.rand.Int64N(9))}}, TtlNs: int64(time.Second),
			Consume: c.rand.IntN(4) > 0,
		}
		if c.rand.IntN(3) == 0 {
			ask.WaitNs = 1 + c.rand.Int64N(int64(time.Second))
		}
		c.keep(c.do(ctx, c.numbered(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: ask}})))
	}
}
