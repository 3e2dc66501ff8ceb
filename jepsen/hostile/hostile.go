// Package hostile is a caller that takes all that it can get, with a token that may use, report and read, and anonymous callers without a
// token. A cluster must bear both without effect on others.
package hostile

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quotad/quotad/jepsen/canary"
	"github.com/quotad/quotad/jepsen/certs"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Quotas are the slots that it takes and waits for, and the rate that it consumes without a Settle.
func Quotas() []*quotav1.Quota {
	return []*quotav1.Quota{
		{Name: quotaName, Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: quotaSlots}}},
		{Name: rateName, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: rateLimit, Per: durationpb.New(time.Hour)}}},
	}
}

const (
	quotaName  = "hostile"
	quotaSlots = 100
	rateName   = "hostile/rate"
	rateLimit  = 1 << 40
)

// Caller is the hostile caller, at one node.
type Caller struct {
	// Name distinguishes its nodes, Address is this node's API.
	Name, Address string
	// Token is the secret of its calls.
	Token string
	// Dial connects to the node.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Bundle is the file of the CAs that sign for the API; empty: clear text.
	Bundle string
	// Raft is the address of the port between nodes; empty: it is not attacked.
	Raft string
	// Ops is the address of the port for operators; empty: it is not attacked.
	Ops string
	// Silent and Streams are the numbers of concurrent silent connections and streams; 0: someSilent and someStreams.
	Silent, Streams int
	// Watchers is the number of concurrent health streams of anonymous callers; 0: someStreams.
	Watchers int
	// Bombers is the number of concurrent bombs; 0: one.
	Bombers int
	// atOps says that Address is the port for operators; ops is the caller there.
	atOps bool
	ops   *Caller
	// Only names the parts that the attack has: fill (the shared state budgets), wait, watch, health, read, bomb, silent, slow, raft; empty:
	// all of them.
	Only []string

	// api sends the token, anonymous does not.
	api, anonymous *http.Client
	calls, refused atomic.Int64
	anonymousCalls atomic.Int64
	// mostSilent is the most silent connections open at once, mostStreams and mostWatchers are the most streams requested at once.
	mostSilent, mostStreams, mostWatchers atomic.Int64

	mu sync.Mutex
	// reasons counts errors, budgets refusals by the budget that they name.
	reasons, budgets map[string]int64
}

// The numbers of concurrent connections and streams if the caller sets none.
const (
	someSilent  = 300
	someStreams = 100
)

// held is how long silent connections and streams are held.
const held = 2 * time.Second

// Attack runs until ctx ends. It first fills the shared state budgets: all later parts compete with that for turns. It returns the number
// of calls, and how many of them a budget refused.
func (a *Caller) Attack(ctx context.Context) (calls, refused int64) {
	plain, short := &http.Transport{DialContext: a.Dial}, a.transport()
	if a.Bundle != "" {
		plain.DialTLSContext = certs.Secured(a.Dial, a.Bundle)
	}
	defer plain.CloseIdleConnections()
	defer short.CloseIdleConnections()
	a.anonymous = &http.Client{Transport: plain}
	a.api = a.client(short)
	var working, filled sync.WaitGroup
	begin := func(name string, workers int, work func(context.Context, int)) {
		if len(a.Only) > 0 && !slices.Contains(a.Only, name) || !a.served(name) {
			return
		}
		for range workers {
			working.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					began := time.Now()
					if work(ctx, n); time.Since(began) < restless {
						pause(ctx, restless) // the node is down: there is nothing to attack
					}
				}
			})
		}
	}
	a.beginAtOps(ctx, &working)
	for _, kinds := range sorts() {
		if a.atOps {
			break
		}
		filled.Add(1)
		f := a.filler(kinds)
		begin("fill", 1, func(ctx context.Context, n int) {
			if f.fill(ctx); n == 0 {
				filled.Done()
			}
		})
	}
	if len(a.Only) == 0 && !a.atOps {
		await(ctx, &filled, Filling)
	}
	begin("wait", 1, a.wait)
	begin("watch", 1, a.watch)
	begin("health", 1, a.health)
	begin("read", 1, a.read)
	begin("bomb", max(1, a.Bombers), a.bomb)
	begin("silent", 1, a.silent)
	begin("slow", 1, a.slow)
	begin("raft", 1, a.raft)
	working.Wait()
	return a.calls.Load(), a.refused.Load()
}

// transport opens HTTP/2 connections for calls with the token.
func (a *Caller) transport() *http.Transport {
	http2 := new(http.Protocols)
	http2.SetUnencryptedHTTP2(a.Bundle == "")
	http2.SetHTTP2(a.Bundle != "")
	transport := &http.Transport{DialContext: a.Dial, Protocols: http2}
	if a.Bundle != "" {
		transport.DialTLSContext = certs.Secured(a.Dial, a.Bundle, "h2")
	}
	return transport
}

func (a *Caller) client(transport *http.Transport) *http.Client {
	return &http.Client{Transport: &canary.Carry{Secret: a.Token, Next: transport}}
}

// onOne makes many concurrent calls on one connection. A first request, which costs the node little, makes the connection: otherwise each
// of the many would make its own, and under TLS the attack would consist of handshakes. A node accepts fewer than 250 streams on a
// connection.
func (a *Caller) onOne(ctx context.Context, calls int, do func(quota quotav1connect.QuotaServiceClient, number int)) {
	transport := a.transport()
	defer transport.CloseIdleConnections()
	client := a.client(transport)
	quota := quotav1connect.NewQuotaServiceClient(client, a.url())
	a.reported(get(ctx, client, a.url()+"/livez"))
	var working sync.WaitGroup
	for number := range calls {
		working.Go(func() { do(quota, number) })
	}
	working.Wait()
}

// restless is the shortest round of the attack at a node that answers.
const restless = time.Millisecond

// pause waits for a time, at most until ctx ends.
func pause(ctx context.Context, length time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(length):
	}
}

func (a *Caller) reported(err error) {
	a.calls.Add(1)
	if err == nil {
		return
	}
	described := history.ErrorOf(err)
	reason := quotav1.Reason(described.Reason)
	a.mu.Lock()
	if a.reasons == nil {
		a.reasons = map[string]int64{}
	}
	word := strings.TrimPrefix(reason.String(), "REASON_")
	if reason == 0 {
		word = connect.CodeOf(err).String()
	}
	a.reasons[word]++
	a.mu.Unlock()
	switch reason {
	case quotav1.Reason_REASON_CALLER_BUDGET, quotav1.Reason_REASON_BUDGET_FULL:
		a.refusedFor(described.Budget)
	default: // the end of the fault, or another fault
	}
}

// refusedFor counts a refusal by the budget that it names.
func (a *Caller) refusedFor(budget string) {
	a.refused.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.budgets == nil {
		a.budgets = map[string]int64{}
	}
	a.budgets[budget]++
}

// wasRefused says whether any call was refused for a budget.
func (a *Caller) wasRefused(budget string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.budgets[budget] > 0
}

func (a *Caller) url() string {
	if a.Bundle != "" {
		return "https://" + a.Address
	}
	return "http://" + a.Address
}

// connect connects as an anonymous caller, with TLS if the node uses it.
func (a *Caller) connect(ctx context.Context) (net.Conn, error) {
	if a.Bundle != "" {
		return certs.Secured(a.Dial, a.Bundle)(ctx, "tcp", a.Address)
	}
	return a.Dial(ctx, "tcp", a.Address)
}

// wait holds many concurrent Reserves open.
func (a *Caller) wait(ctx context.Context, n int) {
	a.onOne(ctx, perConnection, func(quota quotav1connect.QuotaServiceClient, number int) {
		res, err := quota.Reserve(ctx, &quotav1.ReserveRequest{
			Holder: fmt.Sprintf("hostile-%d-%d", n, number), Items: []*quotav1.Item{{Quota: quotaName, Amount: new(int64(quotaSlots))}},
			Wait: durationpb.New(held),
		})
		a.reported(err)
		if budget := res.GetRefusal().GetBudget(); budget != "" {
			a.refusedFor(budget)
		}
	})
}

// perConnection is the number of concurrent calls on one connection.
const perConnection = 200

// watch holds streams open, and repeats refused ones. someStreams read all events, the others those of a quota that nobody uses: to read
// all events on thousands of streams would take the attack's own processors.
func (a *Caller) watch(ctx context.Context, _ int) {
	ctx, cancel := context.WithTimeout(ctx, a.hold(a.Streams))
	defer cancel()
	var connections sync.WaitGroup
	var open atomic.Int64
	streams := several(a.Streams, someStreams)
	for first := 0; first < streams; first += perConnection {
		connections.Go(func() {
			a.onOne(ctx, min(streams-first, perConnection), func(quota quotav1connect.QuotaServiceClient, number int) {
				request := &quotav1.WatchRequest{}
				if first+number >= someStreams {
					request.QuotaPrefix = quotaName + "/unused"
				}
				for ctx.Err() == nil {
					raise(&a.mostStreams, open.Add(1))
					a.reported(watchOnce(ctx, quota, request))
					open.Add(-1)
					pause(ctx, held)
				}
			})
		})
	}
	connections.Wait()
}

// watchOnce reads a stream until it ends. Only the end shows a refusal.
func watchOnce(ctx context.Context, quota quotav1connect.QuotaServiceClient, request *quotav1.WatchRequest) error {
	stream, err := quota.Watch(ctx, request)
	if err != nil {
		return err
	}
	for stream.Receive() {
	}
	_ = stream.Close()
	return stream.Err()
}

// health makes anonymous callers watch a node's health on many streams.
func (a *Caller) health(ctx context.Context, _ int) {
	ctx, cancel := context.WithTimeout(ctx, a.hold(a.Watchers))
	defer cancel()
	var connections sync.WaitGroup
	var open atomic.Int64
	for left := several(a.Watchers, someStreams); left > 0; left -= perConnection {
		connections.Go(func() {
			transport := a.transport()
			defer transport.CloseIdleConnections()
			client := connect.NewClient[emptypb.Empty, emptypb.Empty](&http.Client{Transport: transport}, a.url()+"/grpc.health.v1.Health/Watch",
				connect.WithGRPC())
			var watching sync.WaitGroup
			for range min(left, perConnection) {
				watching.Go(func() {
					for ctx.Err() == nil {
						raise(&a.mostWatchers, open.Add(1))
						a.reported(watchHealth(ctx, client))
						open.Add(-1)
						pause(ctx, held)
					}
				})
			}
			watching.Wait()
		})
	}
	connections.Wait()
}

// watchHealth reads a health stream until it ends.
func watchHealth(ctx context.Context, client *connect.Client[emptypb.Empty, emptypb.Empty]) error {
	stream, err := client.CallServerStream(ctx, connect.NewRequest(&emptypb.Empty{}))
	if err != nil {
		return err
	}
	for stream.Receive() {
	}
	_ = stream.Close()
	return stream.Err()
}

// hold is how long connections and streams are held: with a requested number until the end, since opening them takes long.
func (a *Caller) hold(asked int) time.Duration {
	if asked > 0 {
		return time.Hour
	}
	return held
}

// several is the requested number, or else a default.
func several(asked, some int) int {
	if asked > 0 {
		return asked
	}
	return some
}

// raise raises most to now, if that is larger.
func raise(most *atomic.Int64, now int64) {
	for {
		before := most.Load()
		if now <= before || most.CompareAndSwap(before, now) {
			return
		}
	}
}

// packed compresses a message.
func packed(unpacked []byte) []byte {
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, _ = zip.Write(unpacked) // into memory
	_ = zip.Close()
	return packed.Bytes()
}

// The most that a node unpacks of a call, and of a call that carries many things.
const (
	smallBody = 64 << 10
	largeBody = 4 << 20
)

// spaces is JSON of a size without content; fields is the same as Protobuf fields that no message has.
func spaces(size int) []byte { return append(bytes.Repeat([]byte(" "), size-2), "{}"...) }

func fields(size int) []byte { return bytes.Repeat([]byte{0xf8, 0x3f, 0x00}, size/3) } // number 1023, a varint: 0

// aBomb is a call that is small until it is unpacked: with or without the token, of a message that is refused for its size or accepted.
type aBomb struct {
	path, format string
	carry        bool
	// packed is the message.
	packed []byte
}

// Formats of bombs: the encoding of their message.
const (
	asProto = "application/proto"
	asJSON  = "application/json"
	asGRPC  = "application/grpc"
	// asQuery stands for a GET whose query has the message.
	asQuery = "query"
)

// bombs are all kinds. Accepted ones are valid: a node reads them completely.
var bombs = sync.OnceValue(func() []aBomb {
	beyond, small, large := packed(make([]byte, 64<<20)), packed(fields(smallBody-1)), packed(fields(largeBody-1))
	const health, reserve, batch = "/grpc.health.v1.Health/Check", "/quota.v1.QuotaService/Reserve", "/quota.v1.QuotaService/Batch"
	const list = "/quota.v1.QuotaService/ListQuotas"
	return []aBomb{
		{health, asProto, false, beyond},
		{batch, asProto, false, beyond},
		{"/quota.v1.AdminService/GetStatus", asProto, false, beyond},
		{health, asProto, false, small},
		{reserve, asProto, true, small},
		{reserve, asJSON, true, packed(spaces(smallBody - 1))},
		{reserve, asGRPC, true, small},
		{list, asQuery, true, small},
		{batch, asProto, true, large},
		{batch, asJSON, true, packed(spaces(largeBody - 1))},
		{batch, asGRPC, true, large},
		{reserve, asProto, true, large},
		{list, asQuery, true, large},
	}
})

// request makes the call to an API.
func (b aBomb) request(ctx context.Context, api string) (*http.Request, error) {
	if b.format == asQuery {
		query := "?connect=v1&encoding=proto&base64=1&compression=gzip&message=" + base64.RawURLEncoding.EncodeToString(b.packed)
		return http.NewRequestWithContext(ctx, http.MethodGet, api+b.path+query, http.NoBody)
	}
	body, encoding := b.packed, "Content-Encoding"
	if b.format == asGRPC {
		envelope := binary.BigEndian.AppendUint32([]byte{1}, uint32(len(b.packed))) //nolint:gosec // some KiB
		body, encoding = append(envelope, b.packed...), "Grpc-Encoding"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, api+b.path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", b.format)
	request.Header.Set(encoding, "gzip")
	return request, nil
}

// bomb sends a bomb: without the token, or with it for bombs that a node accepts.
func (a *Caller) bomb(ctx context.Context, n int) {
	kinds := bombs()
	bomb := kinds[n%len(kinds)]
	request, err := bomb.request(ctx, a.url())
	if err != nil {
		return
	}
	client := a.anonymous
	if bomb.carry {
		client = a.api
	}
	response, err := client.Do(request)
	if err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
		_ = response.Body.Close()
		const exhausted = "8" // the code of gRPC
		if response.StatusCode == http.StatusTooManyRequests || response.Header.Get("Grpc-Status") == exhausted ||
			response.Trailer.Get("Grpc-Status") == exhausted {
			a.refused.Add(1)
		}
	}
	a.reported(err)
}

// silent holds connections on which nothing is ever sent. The node may close any of them.
func (a *Caller) silent(ctx context.Context, _ int) {
	ctx, cancel := context.WithTimeout(ctx, a.hold(a.Silent))
	defer cancel()
	var open atomic.Int64
	var working sync.WaitGroup
	each := (several(a.Silent, someSilent) + dialers - 1) / dialers
	for range dialers {
		working.Go(func() {
			var conns []net.Conn
			for range each {
				conn, err := a.Dial(ctx, "tcp", a.Address)
				if err != nil {
					pause(ctx, restless)
					continue
				}
				conns = append(conns, conn)
				raise(&a.mostSilent, open.Add(1))
			}
			<-ctx.Done()
			for _, conn := range conns {
				_ = conn.Close()
			}
		})
	}
	working.Wait()
}

// dialers is the number of concurrent dials.
const dialers = 16

// prefaces are what anonymous callers send to the port between nodes: nothing, noise, another protocol, and the beginning of TLS before
// they close.
var prefaces = []string{
	"", "\x00\x00\x00\x00", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "quotad\xff\xff\xff\xff\xff\xff",
	strings.Repeat("\xff", 4096),
}

// raft connects to the port between nodes without a certificate: some stay silent, others send an invalid preface, or make a handshake
// without a certificate.
func (a *Caller) raft(ctx context.Context, _ int) {
	if a.Raft == "" {
		pause(ctx, time.Second)
		return
	}
	var conns []net.Conn
	for i := range 120 {
		conn, err := a.Dial(ctx, "tcp", a.Raft)
		if err != nil {
			continue
		}
		conns = append(conns, conn)
		_, _ = io.WriteString(conn, prefaces[i%len(prefaces)]) // a connection that was cut off by then is refused
		a.anonymousCalls.Add(1)
	}
	if a.Bundle != "" {
		if conn, err := certs.Secured(a.Dial, a.Bundle)(ctx, "tcp", a.Raft); err == nil {
			conns = append(conns, conn)
		}
	}
	pause(ctx, 2*time.Second)
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// get requests a page and leaves its content.
func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
		_ = response.Body.Close()
	}
	return err
}

// slow sends a body that never ends, byte by byte.
func (a *Caller) slow(ctx context.Context, _ int) {
	conn, err := a.connect(ctx)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn,
		"POST /quota.v1.QuotaService/Reserve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
	for err == nil && ctx.Err() == nil {
		pause(ctx, 100*time.Millisecond)
		_, err = io.WriteString(conn, " ")
	}
}
