package rpc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Paths for callers that have only an HTTP client. POST /take?quota=Q answers 200 if the call may be made now, and otherwise 429 with
// Retry-After, which curl --retry obeys. POST /report takes the provider's answer. A gateway serves both as well, from batches.
const (
	takePath   = "/take"
	reportPath = "/report"
)

// takeWait is the default wait of a take, takeTTL the life of its lease, for a report.
const (
	takeWait = 30 * time.Second
	takeTTL  = time.Minute
	// takeReleaseWithin bounds the release of a lease that cannot be a take.
	takeReleaseWithin = 5 * time.Second
)

// takeRoutes returns the routes of a port's takes and reports.
func (s *Server) takeRoutes(b *portBudgets) []route {
	post := limits{methods: []string{http.MethodPost}, body: smallMessage, whole: maxCall}
	plain := func(path, procedure string, serve func(*http.Request) (proto.Message, error)) route {
		return route{pattern: path, handler: s.admitted(b, procedure, false, s.plain(procedure, serve)), limits: post}
	}
	return []route{
		plain(takePath, quotav1connect.QuotaServiceReserveProcedure, s.take),
		plain(reportPath, quotav1connect.QuotaServiceReportProcedure, s.reportPlain),
	}
}

// plain serves a call in JSON outside Connect. Web pages of other origins must not make it: browsers send a simple POST without a
// preflight.
func (s *Server) plain(procedure string, serve func(*http.Request) (proto.Message, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		var answer proto.Message
		err := notOfPages(r)
		if err == nil {
			answer, err = serve(r)
		}
		s.metrics.call(procedure, err, time.Since(started))
		s.recordOutcome(r.Context(), procedure, err, time.Now())
		w.Header().Set("Cache-Control", "no-store")
		if err != nil {
			r.Header.Del("Content-Type") // the error is JSON, whatever was sent
			_ = s.errors.Write(w, r, err)
			return
		}
		body, err := protojson.Marshal(answer)
		if err != nil {
			_ = s.errors.Write(w, r, apiError(err))
			return
		}
		w.Header().Set("Content-Type", jsonType)
		_, _ = w.Write(append(body, '\n'))
	})
}

// notOfPages refuses a request that a browser sent for a page of another origin.
func notOfPages(r *http.Request) error {
	if origin := r.Header.Get("Origin"); origin != "" {
		return newError("origin: web pages must not call this path", &quotav1.ErrorInfo{
			Reason: quotav1.Reason_REASON_NOT_ALLOWED, Field: "Origin", Hint: "call the API with application/json", NotAccepted: true,
		})
	}
	return nil
}

// take is POST /take: a Reserve that consumes.
func (s *Server) take(r *http.Request) (proto.Message, error) {
	known := requestOf(r.Context())
	req, err := takeRequest(r, known)
	if err != nil {
		return nil, err
	}
	if err := s.noSlots(r.Context(), req.Items); err != nil {
		return nil, err
	}
	res, err := (&quotaService{s}).Reserve(r.Context(), req)
	if err != nil {
		return nil, err
	}
	if refusal := res.GetRefusal(); refusal != nil {
		return nil, refusalError(refusal)
	}
	if res.GetWaiting() != nil { // a node without memory for waits does not wait
		return nil, apiError(&raftnode.UnknownError{Err: errors.New("the request still waits")})
	}
	return s.taken(r.Context(), res.GetLease())
}

// taken makes the answer to a take. A lease with slots, which this node did not know when it checked, ends here: its caller would not
// release them.
func (s *Server) taken(ctx context.Context, lease *quotav1.Lease) (proto.Message, error) {
	op := lease.GetOperation()
	if len(op.GetItems()) < len(lease.GetItems()) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeReleaseWithin)
		defer cancel()
		if op != nil {
			_, _ = (&quotaService{s}).Settle(ctx, &quotav1.SettleRequest{Lease: lease.Id, Fence: lease.Fence, Op: op.Op, Unspent: itemsOf(op)})
		}
		_, _ = (&quotaService{s}).Release(ctx, &quotav1.ReleaseRequest{Lease: lease.Id, Fence: lease.Fence}) // otherwise it ends with its ttl
		return nil, slotsError("quota")
	}
	return &quotav1.TakeResponse{
		SpendIn: durationpb.New(max(op.SpendIn.AsDuration()-op.Transit.AsDuration(), 0)), Lease: lease.Id, Fence: lease.Fence, Op: op.Op,
		Items: lease.Items, Forecast: lease.Forecast,
	}, nil
}

// itemsOf returns the amounts of an operation.
func itemsOf(op *quotav1.Operation) []*quotav1.Item {
	items := make([]*quotav1.Item, len(op.Items))
	for i, item := range op.Items {
		items[i] = &quotav1.Item{Quota: item.Quota, Amount: new(item.Amount)}
	}
	return items
}

func slotsError(field string) error {
	return invalid(field, "is of kind slots, which cannot be taken", "hold slots with Reserve, or with /slots of a gateway")
}

// noSlots refuses takes of slots, which are held and not consumed, and of pools of slots.
func (s *Server) noSlots(ctx context.Context, items []*quotav1.Item) (refused error) {
	err := s.node.Read(ctx, raftnode.Stale, func(state *fsm.State, clock fsm.Clock, _ raftnode.Position) {
		for i, item := range items {
			v, ok := state.Quota(item.GetQuota(), clock)
			if !ok {
				continue // the leader decides
			}
			if members := v.Definition.GetPool().GetMembers(); len(members) > 0 { // all are of one kind
				v, _ = state.Quota(members[0].Quota, clock)
			}
			if _, slots := v.Definition.GetRule().(*logpb.Quota_Slots); slots {
				refused = slotsError(fmt.Sprintf("items[%d].quota", i))
			}
		}
	})
	if err != nil {
		return apiError(err)
	}
	return refused
}

// takeRequest reads a take from its query and its body, which has the fields of a Reserve.
func takeRequest(r *http.Request, known *request) (*quotav1.ReserveRequest, error) {
	req := &quotav1.ReserveRequest{}
	if err := readBody(r, req); err != nil {
		return nil, err
	}
	query, err := queryOf(r, "quota", "amount", "holder", "class", "wait")
	if err != nil {
		return nil, err
	}
	if quota := query.Get("quota"); quota != "" {
		item := &quotav1.Item{Quota: quota}
		if text := query.Get("amount"); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, invalid("amount", "must be a whole number", "such as amount=1")
			}
			item.Amount = &n
		}
		req.Items = append(req.Items, item)
	}
	if len(req.Items) == 0 {
		return nil, invalid("quota", "is missing",
			`name one in the query (?quota=github/core&amount=1), or several as JSON: {"items":[{"quota":"github/core","amount":1}]}`)
	}
	fields := req.ProtoReflect().Descriptor().Fields()
	for _, name := range []string{"class", "wait"} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		if err := setText(req, fields.ByName(protoreflect.Name(name)), text); err != nil {
			return nil, err
		}
	}
	req.Holder = cmp.Or(query.Get("holder"), req.Holder, holderOf(known, r.RemoteAddr))
	req.Consume, req.Resume, req.NoBlock = true, false, false
	if req.Wait == nil {
		req.Wait = durationpb.New(takeWait)
	}
	if req.Ttl == nil {
		req.Ttl = durationpb.New(takeTTL)
	}
	return req, nil
}

// holderOf names a caller without a holder: by its token, or else by its address. A token whose id its pattern does not cover acts for
// the pattern with the id for each *, as at a gateway.
func holderOf(known *request, address string) string {
	switch who := known.who; {
	case who.id == "":
		return "take@" + strings.TrimPrefix(accountOfAddress(address), addressAccount)
	case who.covers(who.id):
		return who.id
	default:
		return strings.ReplaceAll(who.pattern, "*", who.id)
	}
}

// setText sets a field from a word of a query, read as in JSON.
func setText(to proto.Message, field protoreflect.FieldDescriptor, text string) error {
	word, err := json.Marshal(text)
	if err != nil {
		return invalid(string(field.Name()), "is not UTF-8", "")
	}
	part := to.ProtoReflect().New().Interface()
	_ = jsonCodec{}.Unmarshal(fmt.Appendf(nil, "{%q:%s}", field.JSONName(), word), part)
	if err := malformed(part); err != nil {
		return err
	}
	proto.Merge(to, part)
	return nil
}

// reportPlain is POST /report: the provider's answer as the body, and the take that it belongs to in the query.
func (s *Server) reportPlain(r *http.Request) (proto.Message, error) {
	req := &quotav1.ReportRequest{Answer: &quotav1.Answer{}}
	if err := readBody(r, req.Answer); err != nil {
		return nil, err
	}
	query, err := queryOf(r, "lease", "fence", "op")
	if err != nil {
		return nil, err
	}
	req.Op = 1
	for name, to := range map[string]*uint64{"lease": &req.Lease, "fence": &req.Fence, "op": &req.Op} { // in any order
		text := query.Get(name)
		if text == "" {
			continue
		}
		if *to, err = strconv.ParseUint(text, 10, 64); err != nil {
			return nil, invalid(name, "must be a whole number", "copy lease, fence and op from the answer of the take")
		}
	}
	return (&quotaService{s}).Report(r.Context(), req)
}

// queryOf parses a query, which may have only these names, each at most once.
func queryOf(r *http.Request, names ...string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalid("query", "cannot be parsed", "such as ?"+names[0]+"=...")
	}
	for name, values := range query {
		switch {
		case !slices.Contains(names, name):
			return nil, invalid(strconv.Quote(shortened([]byte(name))), "is unknown", strings.Join(names, ", ")+" are allowed")
		case len(values) > 1 && name == "quota":
			return nil, invalid(name, "is repeated", `name several as JSON: {"items":[{"quota":"github/core","amount":1}]}`)
		case len(values) > 1:
			return nil, invalid(name, "is repeated", "give it once")
		}
	}
	return query, nil
}

// readBody reads a body of JSON, if there is one.
func readBody(r *http.Request, to proto.Message) error {
	if !hasBody(r) {
		return nil
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return apiError(err)
	}
	if len(data) == 0 {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != jsonType {
		return invalid("content-type", "must be application/json", "send it with -H 'content-type: application/json', or without a body")
	}
	_ = jsonCodec{}.Unmarshal(data, to)
	if err := malformed(to); err != nil {
		return err
	}
	return nil
}
