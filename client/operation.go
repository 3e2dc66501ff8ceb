package client

import (
	"context"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Operation is one Consume of a lease: amounts that may be spent until the spend-by.
type Operation struct {
	lease    *Lease
	number   uint64
	items    []Item
	spendBy  moment
	lastTake moment
}

func newOperation(l *Lease, op *quotav1.Operation, at stamp) *Operation {
	spendBy := at.deadline(durationOf(op.GetSpendIn(), 0))
	return &Operation{
		lease: l, number: op.GetOp(), items: grantedOf(op.GetItems()),
		spendBy: l.moment(spendBy), lastTake: l.moment(spendBy.Add(-max(0, durationOf(op.GetTransit(), 0)))),
	}
}

// Number returns the operation's number within its lease.
func (o *Operation) Number() uint64 { return o.number }

// Lease returns the operation's lease.
func (o *Operation) Lease() *Lease { return o.lease }

// Items returns the amounts that may be spent.
func (o *Operation) Items() []Item { return slices.Clone(o.items) }

// SpendBy returns the last moment at which the call may reach the provider, on this machine's clock and a little early.
func (o *Operation) SpendBy() time.Time { return o.spendBy.mono }

// LastTake returns the last moment to start a call so that it still arrives by the spend-by.
func (o *Operation) LastTake() time.Time { return o.lastTake.mono }

// Left returns the time until the last take, 0 if it has passed.
func (o *Operation) Left() time.Duration {
	return max(0, o.lastTake.left(time.Now(), o.lease.client.wall()))
}

// Settlement is what an operation did not spend, or actually used.
type Settlement struct {
	// Unspent will certainly not be spent and is returned. Once, until the spend-by.
	Unspent []Item
	// Actual is the actual use; missing items count as used in full. Once; it makes the operation final.
	Actual []Item
	// Final makes the operation final even if Actual is empty: its exposure ends.
	Final bool
	// Release ends the lease as well.
	Release bool
}

// Settled is the effect of a Settle.
type Settled struct {
	// Returned is the amounts returned to their quotas.
	Returned []Item
	// Overrun is the amounts charged above the estimate.
	Overrun []Item
}

// Settle reports the use of the operation to the cluster. It may be repeated with the same amounts.
func (o *Operation) Settle(ctx context.Context, s Settlement) (Settled, error) {
	c := o.lease.client
	ctx, done, err := c.begin(ctx, 0)
	if err != nil {
		return Settled{}, err
	}
	defer done()
	if s.Release {
		o.lease.die(ErrLeaseReleased)
	}
	cmd := o.settlement(s)
	if err := o.lease.run(ctx, cmd); err != nil {
		return Settled{}, err
	}
	if s.Final || len(s.Actual) > 0 {
		o.lease.finish(o.number)
	}
	response := cmd.result.GetSettle()
	return Settled{Returned: itemsOf(response.GetReturned()), Overrun: itemsOf(response.GetOverrun())}, nil
}

func (o *Operation) settlement(s Settlement) *command {
	return newCommand(&quotav1.Command{Kind: &quotav1.Command_Settle{Settle: &quotav1.SettleRequest{
		Lease: o.lease.id, Fence: o.lease.fence, Op: o.number, Unspent: exactItems(s.Unspent), Actual: exactItems(s.Actual),
		Final: s.Final, Release: s.Release, DoneBelow: o.lease.lowWater(),
	}}})
}

// Report reports the provider's answer to a call of this operation, so that one holder's 429 protects all holders.
func (o *Operation) Report(ctx context.Context, signals ...Signal) ([]Reported, error) {
	return o.report(ctx, &quotav1.ReportRequest{Signals: signalsOf(signals)})
}

// Answer is a provider's raw answer to a call.
type Answer struct {
	// Status is the HTTP status.
	Status int
	// Header is the answer's header. Cookies do not leave this process.
	Header http.Header
	// Body is the beginning of the body. Only refusals need one, and the cluster reads 32 KiB.
	Body []byte
	// Dialect is the provider's dialect, such as github or openai; empty: the cluster detects it.
	Dialect string
}

// ReportAnswer is Report for a raw answer: the cluster finds the provider's limits in it, and which of the lease's quotas they concern.
func (o *Operation) ReportAnswer(ctx context.Context, answer Answer) ([]Reported, error) {
	headers := make(map[string]string, len(answer.Header))
	for name, lines := range answer.Header {
		if name != "Set-Cookie" {
			headers[name] = strings.Join(lines, "\n")
		}
	}
	body := strings.ToValidUTF8(string(answer.Body[:min(len(answer.Body), maxAnswerBody)]), "\uFFFD")
	return o.report(ctx, &quotav1.ReportRequest{Answer: &quotav1.Answer{
		Status: int32(min(max(answer.Status, 0), math.MaxInt32)), Headers: headers, Body: body, Dialect: answer.Dialect,
	}})
}

// maxAnswerBody is how much of an answer's body is sent, in bytes: as much as the cluster reads.
const maxAnswerBody = 32 << 10

func (o *Operation) report(ctx context.Context, report *quotav1.ReportRequest) ([]Reported, error) {
	reported, err := o.lease.client.report(ctx, o.lease, o.number, report)
	o.lease.learn(err)
	return reported, err
}
