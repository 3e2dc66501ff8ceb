package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

// hoarder is a caller that holds whatever it can get of the budgets of one node: connections of its own, memory of requests, streams
// and calls in flight.
type hoarder struct {
	// ctx ends all that it holds.
	ctx            context.Context
	address, token string
	dialer         net.Dialer

	mu    sync.Mutex
	links []*link
	// bodies is how many more of its calls may have a body that never comes: a node ends these soon.
	bodies int
	// refused are the reasons of all refusals so far, by budget.
	refused map[string]map[quotav1.Reason]int
	// failed is the last error of a call that was not refused for a budget.
	failed  string
	holding sync.WaitGroup
}

// link is a connection of its own, with what a hoarder holds over it. A node may ask to leave a connection after a refusal: then the next
// call opens another one, while the calls on the old one stay.
type link struct {
	client    *http.Client
	transport *http.Transport
	// held counts what is held. The hoarder's lock guards it.
	held int
}

// hoarded are the budgets in an order in which a hoarder can fill each: a connection is idle, and may end, without a call on it; requests
// that take memory are calls too.
func hoarded() []string { return []string{"connections", "request_bytes", "streams", "calls"} }

// paddedBody is the length of a padded body, paddedBytes the memory that its request takes: eight bytes for each. Some memory is left for
// the other calls, of a caller's part and of all.
const (
	paddedBody  = 65_000
	paddedBytes = 8 * paddedBody
)

// newLink returns a link that has no connection yet.
func (h *hoarder) newLink() *link {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		Protocols: protocols, DialContext: h.dialer.DialContext, ExpectContinueTimeout: patience, // the node says when it reads a body
	}
	return &link{client: &http.Client{Transport: tokened{transport, h.token}}, transport: transport}
}

// anyLink returns one of the links, nil if there is none.
func (h *hoarder) anyLink() *link {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.links) == 0 {
		return nil
	}
	return h.links[rand.IntN(len(h.links))]
}

// take tries to hold one more of a budget, and returns the budget that refused it; empty: it is held; notTaken: for any other reason.
func (h *hoarder) take(budget string) string {
	l := h.anyLink()
	if budget == "connections" {
		l = h.newLink()
	}
	if l == nil {
		return notTaken
	}
	request, err := h.request(budget)
	if err != nil {
		return notTaken
	}
	refused := h.hold(l, request)
	if refused == "connections" {
		h.leave(l) // it was asked to leave its connection, and gets no other
	}
	return refused
}

// request makes a request that the node holds: a stream, or a poll, which may have a padded body or one that never comes.
func (h *hoarder) request(budget string) (*http.Request, error) {
	if budget == "streams" {
		return http.NewRequestWithContext(h.ctx, http.MethodGet, "http://"+h.address+"/watch", http.NoBody)
	}
	text := []byte("{}") // the smallest body, for which the node asks all the same
	if budget == "request_bytes" {
		text = append(text, bytes.Repeat([]byte(" "), paddedBody-len(text))...)
	}
	var body io.Reader = bytes.NewReader(text)
	if budget == "calls" {
		body = h.withoutEnd(body)
	}
	request, err := http.NewRequestWithContext(h.ctx, http.MethodPost, "http://"+h.address+"/take?quota=none&holder=h&wait=10m", body)
	if err != nil {
		return nil, err
	}
	request.ContentLength = int64(len(text))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Expect", "100-continue")
	return request, nil
}

// endless is a body that never comes.
type endless struct {
	*io.PipeReader
	h    *hoarder
	once sync.Once
}

// Close implements io.Closer.
func (e *endless) Close() error {
	e.once.Do(func() {
		e.h.mu.Lock()
		defer e.h.mu.Unlock()
		e.h.bodies++
	})
	return e.PipeReader.Close()
}

// withoutEnd returns a body that never comes, or body if the hoarder has enough of these.
func (h *hoarder) withoutEnd(body io.Reader) io.Reader {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bodies == 0 {
		return body
	}
	h.bodies--
	never, _ := io.Pipe()
	return &endless{PipeReader: never, h: h}
}

// hold makes a request and returns the budget that refused it; empty: the node holds it. The node asks for the body of a call once the
// call has its place, and sends the header of a stream.
func (h *hoarder) hold(l *link, request *http.Request) string {
	holds, refusal := make(chan struct{}, 2), make(chan string, 1)
	ctx := httptrace.WithClientTrace(request.Context(), &httptrace.ClientTrace{Got100Continue: func() { holds <- struct{}{} }})
	h.holding.Go(func() { refusal <- h.keep(l, request.WithContext(ctx), holds) })
	select {
	case <-holds:
	case refused := <-refusal:
		l.transport.CloseIdleConnections()
		return refused
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.held++; !slices.Contains(h.links, l) {
		h.links = append(h.links, l)
	}
	h.holding.Go(func() {
		<-refusal
		h.mu.Lock()
		last := l.held == 1
		l.held--
		h.mu.Unlock()
		if last {
			h.leave(l)
		}
	})
	return ""
}

// keep makes a request and reads its answer to the end.
func (h *hoarder) keep(l *link, request *http.Request, holds chan<- struct{}) string {
	response, err := l.client.Do(request)
	if err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.failed = err.Error()
		return notTaken
	}
	defer func() { _ = response.Body.Close() }()
	if request.Method == http.MethodGet && response.StatusCode == http.StatusOK {
		holds <- struct{}{}
		_, _ = io.Copy(io.Discard, response.Body)
		return notTaken
	}
	var answer struct {
		Message string
		Error   struct{ Reason, Budget string }
	}
	err = json.NewDecoder(response.Body).Decode(&answer)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || answer.Error.Budget == "" {
		h.failed = fmt.Sprintf("%d %s %v", response.StatusCode, answer.Message, err)
		return notTaken
	}
	if h.refused[answer.Error.Budget] == nil {
		h.refused[answer.Error.Budget] = make(map[quotav1.Reason]int)
	}
	h.refused[answer.Error.Budget][quotav1.Reason(quotav1.Reason_value[answer.Error.Reason])]++
	return answer.Error.Budget
}

// leave makes no more calls over a link. What is held over it stays.
func (h *hoarder) leave(l *link) {
	h.mu.Lock()
	h.links = slices.DeleteFunc(h.links, func(other *link) bool { return other == l })
	h.mu.Unlock()
	l.transport.CloseIdleConnections()
}

// wasRefused tells how often a budget refused the hoarder for a reason.
func (h *hoarder) wasRefused(budget string, reason quotav1.Reason) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refused[budget][reason]
}

// String describes the refusals so far.
func (h *hoarder) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("refused for %v, last error %s", h.refused, h.failed)
}

// fill takes of a budget until a budget refuses more, or until it has taken most.
func (h *hoarder) fill(budget string, most int) {
	const tries = 100 // without success
	for taken, failed := 0, 0; taken < most && failed < tries && h.ctx.Err() == nil; {
		switch h.take(budget) {
		case "":
			taken++
		case budget, "calls", "request_bytes": // calls need memory, and the others a call
			return
		default: // the processor's, or a connection that ended
			failed++
			pause(h.ctx, poll)
		}
	}
}

// pause waits for a time, at most until ctx ends.
func pause(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}

// hoarders are callers at one node that fill its budgets together. The first is the hostile one.
type hoarders struct {
	node *guardedNodes
	// sizes are the sizes of the budgets without the operators' part.
	sizes map[string]int64
	all   []*hoarder
	// end ends the attempts and all that is held; working are the attempts.
	end     context.CancelFunc
	working sync.WaitGroup
}

// begin makes a hoarder of each user. They hold nothing yet.
func (a *hoarders) begin(t *testing.T) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	a.end, a.all = end, nil
	for i, token := range a.node.tokens {
		a.all = append(a.all, &hoarder{
			ctx: ctx, address: a.node.addresses[0], token: token, bodies: 1, refused: map[string]map[quotav1.Reason]int{},
			dialer: net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 3, byte(1+i))}},
		})
	}
}

// stop ends everything that is held.
func (a *hoarders) stop() {
	a.end()
	a.working.Wait()
	for _, h := range a.all {
		h.holding.Wait()
	}
}

// fill fills the node, first by the hostile caller alone, which gets half of each budget.
func (a *hoarders) fill(t *testing.T) {
	t.Helper()
	a.begin(t)
	for _, budget := range hoarded() {
		a.all[0].fill(budget, mostAtOnce)
	}
	if !a.soon(t, func() bool { return a.missing(t, 2) == "" }) {
		t.Fatalf("the hostile caller alone does not get its half, %s:\n%s", a.all[0], a.missing(t, 2))
	}
	const some = 8 // connections for each, before anybody takes the rest of them
	for _, h := range a.all[1:] {
		h.fill("connections", some)
	}
	for _, budget := range hoarded() {
		for _, h := range a.all[1:] { // one after the other: callers that take at the same time leave some
			h.fill(budget, mostAtOnce)
		}
	}
	for _, h := range a.all {
		a.working.Go(func() {
			for h.ctx.Err() == nil {
				for _, budget := range hoarded() {
					h.fill(budget, mostAtOnce)
					pause(h.ctx, 5*poll)
				}
			}
		})
	}
}

// checkReasons checks that each budget has refused the hostile caller for its own part, and another caller since nothing is left.
func (a *hoarders) checkReasons(t *testing.T) {
	t.Helper()
	for _, budget := range hoarded() {
		full := 0
		for _, h := range a.all[1:] {
			full += h.wasRefused(budget, quotav1.Reason_REASON_BUDGET_FULL)
		}
		if own := a.all[0].wasRefused(budget, quotav1.Reason_REASON_CALLER_BUDGET); own == 0 || full == 0 {
			t.Errorf("%s: the hostile caller was refused %d times for its part, the others %d times since nothing is left", budget, own, full)
		}
	}
}

// again waits until the node is full. What a large caller loses, it does not get back; callers with little take it while there are some.
// If none is left, everything is filled once more.
func (a *hoarders) again(t *testing.T) {
	t.Helper()
	full := func() bool { return a.missing(t, 1) == "" }
	for range 5 {
		if a.soon(t, full) {
			return
		}
		t.Logf("filled again, since\n%s%v", a.missing(t, 1), a.all)
		a.stop()
		if !a.soon(t, func() bool { used := a.used(t); return used != nil && used["calls"]+used["streams"] == 0 }) {
			t.Fatalf("what was held is not released: %v", a.used(t))
		}
		a.fill(t)
	}
	t.Fatalf("the node is not full:\n%s", a.missing(t, 1))
}

// soon waits until a condition holds, and returns false after some seconds.
func (a *hoarders) soon(t *testing.T, holds func() bool) bool {
	t.Helper()
	end := time.After(5 * time.Second)
	for !holds() {
		select {
		case <-end:
			return false
		case <-time.After(5 * poll):
		}
	}
	return true
}

// used returns how much of each budget is used, by the node's metrics; none of any while a busy machine does not answer in time.
func (a *hoarders) used(t *testing.T) map[string]int64 {
	t.Helper()
	code, metrics := fetch("http://" + a.node.ops[0] + "/metrics")
	if code != http.StatusOK {
		t.Logf("metrics: %d %.200s", code, metrics)
		return nil
	}
	used := countsOf(t, metrics, `quotad_api_budget_used{budget="`)
	connections := countsOf(t, metrics, `quotad_api_connections{of="`)
	used["connections"], used["strangers"] = connections["callers"], connections["strangers"]
	return used
}

// missing says of which budgets less than a part is used, 1: all of it; empty: of none.
func (a *hoarders) missing(t *testing.T, part int64) (said string) {
	t.Helper()
	used := a.used(t)
	for budget, size := range a.sizes { // in any order
		one := int64(1)
		switch budget {
		case "request_bytes":
			one = paddedBytes
		case "strangers": // they come and go
			one = size / 8
		}
		if part > 1 {
			one = max(one, size/16) // an operator may have some
		}
		if used[budget] <= size/part-one {
			said += fmt.Sprintf("%d of %d %s are used\n", used[budget], size, budget)
		}
	}
	return said
}
