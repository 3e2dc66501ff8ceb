package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// apiCall is a call of the cluster's API.
type apiCall struct {
	header http.Header
	// data is the body as received.
	data []byte
	// repeats: it may be sent again even if an attempt may have been carried out. looks: it is a read.
	repeats, reads bool
	// prompt: it never waits, so a node that does not answer it is unresponsive.
	prompt bool
	// numbers: it is a command without a request id, and may get one. packed: its body is protobuf, otherwise JSON.
	numbers, packed bool
	// session and seq are the request id that it got; nil: none. acked is the acked_below that goes with it.
	session    *apiSession
	seq, acked uint64
}

// requestIDField is the number of the request id's field, in all commands.
const requestIDField = 1

// apiCommands are the calls that can have a request id. The value is a field, by name and number; a call with that field gets no id
// from the gateway. A Reserve that waits would keep its place in the queue under an id, even after its caller has left.
var apiCommands = map[string]struct {
	name   string
	number protowire.Number
}{
	"QuotaService/Reserve": {"wait", 7}, "QuotaService/Consume": {}, "QuotaService/Settle": {}, "QuotaService/Release": {},
	"QuotaService/Renew": {}, "QuotaService/Withdraw": {}, "QuotaService/Report": {},
	"TaskService/BeginTask": {}, "TaskService/RenewTask": {}, "TaskService/EndTask": {}, "TaskService/RetryTask": {},
	"TaskService/ForgetTask": {},
}

// readAPICall determines whether a call may be repeated. A call whose body cannot be decoded may not.
func readAPICall(r *http.Request, body []byte) *apiCall {
	c := &apiCall{header: r.Header, data: body}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	c.packed = kind == "application/proto"
	if r.Method == http.MethodGet {
		c.repeats, c.reads, c.prompt = true, true, true // the cluster serves only reads by GET
		return c
	}
	if !c.packed && kind != "application/json" || r.Header.Get("Content-Encoding") != "" {
		return c
	}
	procedure := strings.TrimPrefix(r.URL.Path, "/quota.v1.")
	if name := path.Base(procedure); strings.HasPrefix(name, "Get") || strings.HasPrefix(name, "List") || name == "CheckFence" {
		c.repeats, c.reads, c.prompt = true, true, true
		return c
	}
	without, known := apiCommands[procedure]
	if !known {
		return c
	}
	has := c.jsonFields
	if c.packed {
		has = c.protoFields
	}
	fields, err := has()
	if err != nil {
		return c
	}
	id, named := fields.requestID()
	c.repeats = id.GetSession() != 0 || id.GetIdempotencyKey() != "" // the cluster treats an empty id as none
	c.prompt = without.name == "" || !fields.has(without.name, without.name, without.number)
	c.numbers = c.prompt && !named
	return c
}

// apiFields are the fields present in a message: of JSON by name, of protobuf by number.
type apiFields struct {
	names   map[string]json.RawMessage
	numbers map[protowire.Number][]byte
}

// requestID returns the message's request id, nil if it cannot be decoded. named: the field is present, so the gateway adds no id.
func (f apiFields) requestID() (id *quotav1.RequestId, named bool) {
	id = &quotav1.RequestId{}
	var err error
	if packed, has := f.numbers[requestIDField]; has {
		named, err = true, proto.Unmarshal(packed, id)
	}
	for _, name := range []string{"requestId", "request_id"} {
		if text, has := f.names[name]; has {
			named = true
			if string(text) != "null" {
				err = errors.Join(err, protojson.Unmarshal(text, id))
			}
		}
	}
	if err != nil {
		return nil, named
	}
	return id, named
}

func (f apiFields) has(name, original string, number protowire.Number) bool {
	for _, text := range []json.RawMessage{f.names[name], f.names[original]} {
		if len(text) > 0 && string(text) != "null" {
			return true
		}
	}
	_, has := f.numbers[number]
	return has
}

func (c *apiCall) jsonFields() (f apiFields, err error) {
	err = json.Unmarshal(c.data, &f.names)
	if err == nil && f.names == nil {
		err = fmt.Errorf("%s is not an object", c.data)
	}
	return f, err
}

func (c *apiCall) protoFields() (f apiFields, err error) {
	f.numbers = make(map[protowire.Number][]byte)
	for rest := c.data; len(rest) > 0; {
		number, kind, tag := protowire.ConsumeTag(rest)
		if tag < 0 {
			return f, protowire.ParseError(tag)
		}
		length := protowire.ConsumeFieldValue(number, kind, rest[tag:])
		if length < 0 {
			return f, protowire.ParseError(length)
		}
		value := rest[tag : tag+length]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		f.numbers[number] = append(f.numbers[number], value...) // occurrences of a message field are merged
		rest = rest[tag+length:]
	}
	return f, nil
}

func (c *apiCall) numbered() bool { return c.session != nil }

// body returns the body, with the request id that the call got.
func (c *apiCall) body() []byte {
	if !c.numbered() {
		return c.data
	}
	id := &quotav1.RequestId{Session: c.session.id, Seq: c.seq, AckedBelow: c.acked}
	if c.packed {
		encoded, err := proto.Marshal(id)
		if err != nil {
			return c.data // it has numbers only
		}
		out := protowire.AppendTag(bytes.Clone(c.data), requestIDField, protowire.BytesType)
		return protowire.AppendBytes(out, encoded)
	}
	at := bytes.IndexByte(c.data, '{') + 1
	member := fmt.Sprintf(`"requestId":{"session":"%d","seq":"%d","ackedBelow":"%d"}`, id.Session, id.Seq, id.AckedBelow)
	if rest := bytes.TrimLeft(c.data[at:], " \t\r\n"); rest[0] != '}' {
		member += ","
	}
	return append(append(bytes.Clone(c.data[:at]), member...), c.data[at:]...)
}

// finish records that the call will not be sent again.
func (c *apiCall) finish() {
	if c.numbered() {
		c.session.finish(c.seq)
	}
}

// apiSessions are the sessions that number commands without a request id, by the commands' token: a session belongs to a token.
type apiSessions struct {
	mu      sync.Mutex
	byToken map[string]*apiSession
}

// apiSession is a session of one token. It ends after an hour without use.
type apiSession struct {
	opened chan struct{}
	// id is 0 if it could not be opened.
	id uint64

	mu       sync.Mutex
	next     uint64
	inFlight map[uint64]bool
	// used is the time of the last use.
	used time.Time
}

const (
	// maxAPISessions bounds the sessions, maxAPINumbers the calls in flight of one session.
	maxAPISessions = 1_000
	maxAPINumbers  = 1_000
	// apiSessionLife is how long an unused session is kept: less than its life at the cluster.
	apiSessionLife = 50 * time.Minute
	// openWithin is how long a call waits for a session to be opened.
	openWithin = 2 * time.Second
)

// number gives a call a request id, if it may have one. If none is available now, the call is sent without one, and only once.
func (a *apiSessions) number(ctx context.Context, g *Gateway, c *apiCall, token string) {
	if !c.numbers {
		return
	}
	c.session, c.repeats = nil, false
	s := a.session(g, token)
	if s == nil {
		return
	}
	select {
	case <-s.opened:
	case <-ctx.Done():
		return
	}
	if s.id == 0 {
		a.drop(token, s)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.inFlight) >= maxAPINumbers {
		return
	}
	s.used = time.Now()
	c.session, c.seq, c.acked, c.repeats = s, s.next, s.next, true
	for before := range s.inFlight {
		c.acked = min(c.acked, before)
	}
	s.inFlight[s.next] = true
	s.next++
}

func (s *apiSession) finish(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inFlight, seq)
}

// session returns the session of a token, which may still be opening; nil: there are too many.
func (a *apiSessions) session(g *Gateway, token string) *apiSession {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.byToken[token]; s != nil {
		return s
	}
	if a.byToken == nil {
		a.byToken = map[string]*apiSession{}
	}
	if len(a.byToken) >= maxAPISessions {
		a.sweepLocked()
	}
	if len(a.byToken) >= maxAPISessions {
		return nil
	}
	s := &apiSession{opened: make(chan struct{}), next: 1, inFlight: map[uint64]bool{}, used: time.Now()}
	a.byToken[token] = s
	g.tasks.Go(func() {
		defer close(s.opened)
		s.id = g.openSession(token)
	})
	return s
}

func (a *apiSessions) sweepLocked() {
	for token, s := range a.byToken {
		s.mu.Lock()
		old := time.Since(s.used) > apiSessionLife
		s.mu.Unlock()
		if old {
			delete(a.byToken, token)
		}
	}
}

// forget drops the session of a call, which the cluster no longer knows.
func (a *apiSessions) forget(c *apiCall, token string) {
	c.finish()
	a.drop(token, c.session)
}

func (a *apiSessions) drop(token string, s *apiSession) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byToken[token] == s {
		delete(a.byToken, token)
	}
}

// openSession opens a session with a token and returns its id; 0: every node failed.
func (g *Gateway) openSession(token string) uint64 {
	ctx, cancel := context.WithTimeout(g.ctx, openWithin)
	defer cancel()
	for _, address := range g.nodesInOrder() {
		ctx, info := connect.NewClientContext(ctx)
		if token != "" {
			info.RequestHeader().Set("Authorization", token)
		}
		node := quotav1connect.NewQuotaServiceClient(g.cluster.http, base(address))
		if out, err := node.OpenSession(ctx, &quotav1.OpenSessionRequest{}); err == nil {
			return out.GetSession()
		}
	}
	return 0
}
