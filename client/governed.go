package client

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/signals"
)

// settleLife is how long the client tries to settle a finished call.
const settleLife = 30 * time.Second

// allowance permits writing one request once.
type allowance struct {
	lease   *Lease
	written bool
	// handed: a connection has it. It may be written from now on, even after the base has returned: HTTP/2 writes in another goroutine.
	handed bool
	// assumed: a response arrived before the write was reported. The base reports the write late, or never.
	assumed bool
	// retired: settled before the end of the call, because the call needed another allowance.
	retired bool
}

// live reports whether a request written now still reaches the provider in time.
func (a *allowance) live() bool {
	if op := a.lease.Operation(); op != nil {
		return op.Left() > 0
	}
	return a.lease.Left() > 0
}

// governed is one attempt at a call, including net/http's own rewrites of it.
type governed struct {
	transport *Transport
	call      Call
	ctx       context.Context
	cancel    context.CancelCauseFunc

	// began is the start. busy counts the goroutines that wait for the call. idleSince is when the last of them stopped waiting, after
	// began.
	began     time.Time
	busy      atomic.Int32
	idleSince atomic.Int64

	mu         sync.Mutex
	allowances []*allowance
	// surplus counts writes without an allowance.
	surplus int64
	// refusal is why a write was prevented; severed: its connection was closed for that.
	refusal error
	severed bool
	settled bool
	// status is the answer's status. unused: the provider refused the call, so it used no tokens.
	status int
	unused bool
	// called: the base has the request. told: the base supports httptrace, so a request that it handed to no connection was not
	// written. A base without httptrace may have written any request that it received.
	called, reported bool
	// reporting: a report is in flight. It names the lease, so the commands that end the lease are parked until the report has arrived.
	reporting bool
	parked    []*command
}

// attempt makes one attempt. It returns a limit if the provider refused the call for one.
func (t *Transport) attempt(request *http.Request, call Call) (*http.Response, *limit, error) {
	ctx, cancel := context.WithCancelCause(request.Context())
	g := &governed{transport: t, call: call, ctx: ctx, cancel: cancel, began: time.Now()}
	g.begin()
	defer g.end()
	if err := g.ask(); err != nil {
		cancel(nil)
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, nil, err
	}
	response, err := g.send(request)
	if err != nil {
		g.settle(nil)
		if lost := context.Cause(ctx); lost != nil && request.Context().Err() == nil {
			err = lost
		}
		cancel(nil)
		if refusal := g.prevented(); refusal != nil {
			return nil, nil, refusal
		}
		return nil, nil, err
	}
	// The caller gets its own request, not the traced copy.
	response.Request = request
	g.answered()
	l := g.observe(response)
	g.govern(response)
	return response, l, nil
}

// send sends the request, as changed by the Granted option.
func (g *governed) send(request *http.Request) (*http.Response, error) {
	if granted := g.transport.settings.granted; granted != nil {
		changed, err := granted(request, g.last().lease)
		if err != nil {
			if request.Body != nil {
				_ = request.Body.Close()
			}
			return nil, err
		}
		request = changed
	}
	return g.roundTrip(request)
}

// roundTrip sends the request through the base, with hooks that observe whether it is written.
func (g *governed) roundTrip(request *http.Request) (*http.Response, error) {
	if g.ctx.Err() != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, context.Cause(g.ctx)
	}
	g.mu.Lock()
	g.called = true
	g.mu.Unlock()
	traced := request.WithContext(httptrace.WithClientTrace(g.ctx, &httptrace.ClientTrace{
		GetConn: g.getConn, GotConn: g.gotConn, WroteHeaders: g.wroteHeaders, WroteRequest: g.wroteRequest,
	}))
	if request.Body != nil && request.Body != http.NoBody {
		traced.Body = sentBody{request.Body, g}
	}
	return g.transport.base.RoundTrip(traced)
}

// sentBody records that the base reads the request's body.
type sentBody struct {
	io.ReadCloser
	governed *governed
}

// Read implements io.Reader.
func (b sentBody) Read(p []byte) (int, error) {
	b.governed.bodyRead()
	return b.ReadCloser.Read(p)
}

// ask reserves an allowance from the cluster.
func (g *governed) ask() error {
	t := g.transport
	wait := t.settings.wait
	if end, ok := g.ctx.Deadline(); ok {
		// The answer has to arrive before the caller's deadline.
		wait = min(wait, max(time.Until(end)*9/10, 0))
	}
	lease, err := t.reserve(g.ctx, &g.call, wait)
	if err != nil {
		t.refused.Add(1)
		return err
	}
	t.client.keeper.keep(lease, g.abandoned)
	g.mu.Lock()
	g.allowances = append(g.allowances, &allowance{lease: lease})
	g.mu.Unlock()
	if lease.holds() {
		lease.tell(g.lost)
	}
	return nil
}

// lost cancels the call when its lease of slots ends early: another holder may have the slots from then on.
func (g *governed) lost(cause error) {
	if !errors.Is(cause, ErrLeaseReleased) {
		g.cancel(cause)
	}
}

// begin and end enclose the time in which a caller waits for the answer, or for more of the body.
func (g *governed) begin() { g.busy.Add(1) }

func (g *governed) end() {
	g.idleSince.Store(int64(time.Since(g.began)))
	g.busy.Add(-1)
}

// abandoned reports whether the call has been idle for so long that its body will hardly be closed.
func (g *governed) abandoned(now time.Time) bool {
	return g.busy.Load() == 0 && now.Sub(g.began)-time.Duration(g.idleSince.Load()) > g.transport.settings.maxCall
}

// last returns the newest allowance.
func (g *governed) last() *allowance {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.allowances[len(g.allowances)-1]
}

// getConn runs before the base looks for a connection. It shows that the base supports httptrace.
func (g *governed) getConn(string) {
	g.mu.Lock()
	g.reported = true
	g.mu.Unlock()
}

// bodyRead runs when the base reads the request's body. Once the base has looked for a connection, it reads in order to write, whether
// or not it reports the connection. Before that it may only buffer.
func (g *governed) bodyRead() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reported && g.refusal == nil {
		g.allowances[len(g.allowances)-1].handed = true
	}
}

// wroteRequest runs when a request was written, or a write failed partway.
func (g *governed) wroteRequest(info httptrace.WroteRequestInfo) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reported = true
	if a := g.allowances[len(g.allowances)-1]; !g.severed && info.Err == nil && !a.written {
		a.written = true
		g.transport.written.Add(1)
	}
}

// gotConn runs before each write, in the writing goroutine: the first write, and each that net/http adds after a kept-alive connection
// died. A write whose allowance is used up or too old needs another one first. If none arrives in time, gotConn closes the connection,
// so that nothing can be written.
func (g *governed) gotConn(info httptrace.GotConnInfo) {
	err := g.prevented()
	for asked := 0; err == nil; asked++ {
		a := g.last()
		if g.ready(a) {
			return
		}
		if asked == maxAsked {
			err = ErrLate
			break
		}
		// Settle the previous write's allowance first: a call that held a slot while it asks for the next one would wait for itself.
		g.retire(a)
		err = g.ask()
	}
	g.mu.Lock()
	g.refusal = err
	g.mu.Unlock()
	g.cancel(err)
	if secure, ok := info.Conn.(*tls.Conn); ok && secure.ConnectionState().NegotiatedProtocol == "h2" {
		// Other calls share this connection, so it stays open. HTTP/2 repeats only requests that the provider reported as not
		// processed.
		return
	}
	g.mu.Lock()
	g.severed = true
	g.mu.Unlock()
	_ = info.Conn.Close()
}

// maxAsked bounds how often one write or one take asks for an allowance that is still fresh when it arrives.
const maxAsked = 3

// ready hands the allowance to a connection, if a request may be written with it now.
func (g *governed) ready(a *allowance) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reported = true
	if a.written || !a.live() {
		return false
	}
	a.handed = true
	return true
}

// retire settles an allowance after its write ended or did not happen.
func (g *governed) retire(a *allowance) {
	g.mu.Lock()
	a.retired = true
	cmd := g.settlement(a, nil, 0)
	g.mu.Unlock()
	g.transport.client.send(settleLife, cmd)
}

// wroteHeaders runs after each write. From now on the provider may have counted the call.
func (g *governed) wroteHeaders() {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.allowances[len(g.allowances)-1]
	switch {
	case g.severed:
		return // written to the buffer of a connection that was closed before
	case a.assumed:
		a.assumed = false
		return
	}
	g.transport.written.Add(1)
	if a.written {
		g.surplus++
		g.transport.overrun.Add(1)
	}
	a.written = true
}

// answered records that there is a response: so the request was written, even if no hook has reported that yet.
func (g *governed) answered() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range g.allowances {
		if a.written {
			return
		}
	}
	a := g.allowances[len(g.allowances)-1]
	a.written, a.assumed = true, true
	g.transport.written.Add(1)
}

func (g *governed) prevented() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refusal
}

// settle ends the call: allowances that may have been written are final, allowances never handed to a connection return. used is the
// use that the provider stated, for the quotas that it covered.
func (g *governed) settle(used []Item) {
	g.mu.Lock()
	if g.settled {
		g.mu.Unlock()
		return
	}
	g.settled = true
	var commands []*command
	for i, a := range g.allowances {
		if a.retired {
			continue
		}
		surplus := int64(0)
		if i == len(g.allowances)-1 {
			surplus = g.surplus
		}
		commands = append(commands, g.settlement(a, used, surplus))
	}
	if g.reporting {
		g.parked = commands
		g.mu.Unlock()
		return
	}
	g.mu.Unlock()
	g.transport.client.send(settleLife, commands...)
}

// report reports the provider's answer to the cluster in the background. The returned command is done once the cluster has answered.
func (g *governed) report(lease *Lease, op uint64, signals []Signal) *command {
	c := g.transport.client
	g.mu.Lock()
	g.reporting = true
	g.mu.Unlock()
	for i, signal := range signals { // name the granted quotas: a pool's member, or the stand-in
		if granted, ok := lease.For(signal.Quota); ok {
			signals[i].Quota = granted.Quota
		}
	}
	cmd := c.reportCommand(lease, op, &quotav1.ReportRequest{Signals: signalsOf(signals)})
	learn := cmd.then
	cmd.then = func(cmd *command) {
		learn(cmd)
		g.mu.Lock()
		parked := g.parked
		g.reporting, g.parked = false, nil
		g.mu.Unlock()
		if len(parked) > 0 {
			c.send(settleLife, parked...)
		}
	}
	c.send(settleLife, cmd)
	return cmd
}

// settlement returns the command that ends one allowance.
func (g *governed) settlement(a *allowance, used []Item, surplus int64) *command {
	op := a.lease.Operation()
	a.lease.die(ErrLeaseReleased)
	if op == nil {
		return a.lease.release()
	}
	s := Settlement{Final: true, Release: true}
	switch untold := g.called && !g.reported; {
	case !untold && !a.handed && !a.written && time.Now().Before(op.SpendBy()):
		s = Settlement{Unspent: op.Items(), Release: true}
	case surplus > 0:
		for _, item := range op.items {
			s.Actual = append(s.Actual, Item{Quota: item.Quota, Amount: item.Amount * (1 + surplus)})
		}
	case a.written:
		for _, item := range used {
			if granted, ok := a.lease.For(item.Quota); ok {
				s.Actual = append(s.Actual, Item{Quota: granted.Quota, Amount: item.Amount})
			}
		}
	}
	cmd := op.settlement(s)
	cmd.then = func(cmd *command) {
		// If settling fails, release the lease all the same: it may hold a slot.
		if cmd.err != nil {
			g.transport.client.send(settleLife, a.lease.release())
		}
	}
	return cmd
}

// observe reads the provider's answer, reports it to the cluster, and returns the limit that refused the call, if any.
func (g *governed) observe(response *http.Response) *limit {
	t := g.transport
	body := peek(response, g.call.Dialect)
	said := g.call.Dialect.ObserveAnswer(time.Now(), response.StatusCode, response.Header, body)
	for _, s := range said {
		t.malformed.Add(uint64(s.Malformed))
	}
	verdict, _ := signals.Verdict(said)
	limited := verdict.Class.Limited()
	if limited {
		g.learnRefusal(body)
	}
	report := t.signalsFor(g.call, said, limited)
	a := g.last()
	number := uint64(1)
	if op := a.lease.Operation(); op != nil {
		number = op.Number()
	}
	if !limited {
		if len(report) > 0 {
			g.report(a.lease, number, report)
		}
		return nil
	}
	cooldown := g.cooldown(a.lease, number, report, verdict)
	l := &limit{verdict: verdict, reopens: t.settings.delay(cooldown, a.lease.Class())}
	if a.lease.Member() == "" { // of a pool the cluster knows which member is closed: another one may serve the call now
		l.delay = l.reopens
	}
	return l
}

// reportTimeout bounds how long a refused call waits to learn the cluster's cooldown.
const reportTimeout = 2 * time.Second

// cooldown reports a refusal and returns how long the cluster keeps its quotas closed. Without an answer by the caller's deadline, it
// returns the provider's Retry-After, or else a second; the report continues in the background.
func (g *governed) cooldown(lease *Lease, op uint64, report []Signal, verdict signals.Signal) time.Duration {
	ctx, cancel := context.WithTimeout(g.ctx, reportTimeout)
	defer cancel()
	cmd := g.report(lease, op, report)
	var left time.Duration
	var err error
	select {
	case <-cmd.done:
		err = cmd.err
		for _, quota := range reportedOf(cmd.result.GetReport().GetQuotas()) {
			left = max(left, quota.CooldownLeft)
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		g.transport.client.logger.Warn("could not report a provider's limit", "error", err)
	}
	switch {
	case left > 0:
		return left
	case verdict.RetryAfter.Known:
		return verdict.RetryAfter.D
	}
	return time.Second
}
