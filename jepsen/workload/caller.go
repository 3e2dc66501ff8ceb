package workload

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// attemptTimeout bounds one attempt without a wait; short, so that outcomes become unknown.
const attemptTimeout = 2 * time.Second

// giveUpAfter bounds all attempts of one request.
const giveUpAfter = 15 * time.Second

// errGaveUp says that a request's outcome remained unknown.
var errGaveUp = errors.New("gave up: the outcome is unknown")

// caller calls the cluster without the Go client: it numbers requests in a session and repeats unanswered ones, under the same number, at
// other nodes.
type caller struct {
	holder   string
	services []service
	rand     *rand.Rand
	at       int
	session  uint64
	seq      uint64
}

// service is a node's whole API.
type service struct {
	quotav1connect.QuotaServiceClient
	quotav1connect.TaskServiceClient
	quotav1connect.AdminServiceClient
}

func (w *worker) caller(number int) *caller {
	recorder := &history.Recorder{Next: w.cluster, Client: w.holder(number), To: w.calls}
	c := &caller{holder: w.holder(number), rand: w.rand(number)}
	for i, node := range w.Nodes {
		var options []connect.ClientOption
		if i%2 == number%2 {
			options = append(options, connect.WithProtoJSON())
		}
		client, address := &http.Client{Transport: recorder}, node
		c.services = append(c.services, service{
			quotav1connect.NewQuotaServiceClient(client, address, options...), quotav1connect.NewTaskServiceClient(client, address, options...),
			quotav1connect.NewAdminServiceClient(client, address, options...),
		})
	}
	c.at = c.rand.IntN(len(c.services))
	return c
}

// method is a call of the service.
type method[Req, Res any] func(service, context.Context, *Req) (*Res, error)

// call makes a call, and repeats it at other nodes while its outcome is unknown. It returns the cluster's final error, or errGaveUp.
func call[Req, Res any](ctx context.Context, c *caller, m method[Req, Res], request *Req, wait time.Duration) (*Res, error) {
	deadline := time.Now().Add(giveUpAfter + wait)
	for {
		res, err := attempt(ctx, c, m, request, wait)
		if err == nil {
			return res, nil
		}
		described := history.ErrorOf(err)
		reason := quotav1.Reason(described.Reason)
		open := described.NotAccepted || described.Reason == 0 || reason == quotav1.Reason_REASON_UNKNOWN_OUTCOME
		if !open {
			if reason == quotav1.Reason_REASON_UNKNOWN_SESSION || reason == quotav1.Reason_REASON_TOO_MANY_IN_FLIGHT {
				c.session = 0
			}
			return nil, err
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return nil, errGaveUp
		}
		c.at = c.rand.IntN(len(c.services))
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(20+c.rand.IntN(180)) * time.Millisecond):
		}
	}
}

// attempt makes one attempt at the present node. The end of the actor does not cancel it: an unknown outcome at the end is of less value.
func attempt[Req, Res any](ctx context.Context, c *caller, m method[Req, Res], request *Req, wait time.Duration) (*Res, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout+wait)
	defer cancel()
	return m(c.services[c.at], ctx, request)
}

// again repeats a request at another node and ignores the answer: the checkers compare it with the first.
func again[Req, Res any](ctx context.Context, c *caller, m method[Req, Res], request *Req) {
	c.at = c.rand.IntN(len(c.services))
	_, _ = attempt(ctx, c, m, request, 0)
}

// id numbers the next request, and opens a session first if there is none. A request without a number must not be sent twice.
func (c *caller) id(ctx context.Context) *quotav1.RequestId {
	if c.session == 0 {
		res, err := call(ctx, c, service.OpenSession, &quotav1.OpenSessionRequest{Holder: c.holder}, 0)
		if err != nil {
			return nil
		}
		c.session, c.seq = res.Session, 0
	}
	c.seq++
	id := &quotav1.RequestId{Session: c.session, Seq: c.seq}
	if c.seq > keptResults {
		id.AckedBelow = c.seq - keptResults
	}
	return id
}

// keptResults is how many of the latest requests of a session may be repeated.
const keptResults = 64

// reasonOf is the reason of an error from quotad.
func reasonOf(err error) quotav1.Reason {
	if err == nil {
		return quotav1.Reason_REASON_UNSPECIFIED
	}
	return quotav1.Reason(history.ErrorOf(err).Reason)
}
