package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Recorder is an http.RoundTripper that records each unary call to quotad as sent and received, whatever the client library makes of it.
type Recorder struct {
	// Next carries the calls.
	Next http.RoundTripper
	// Client is the caller.
	Client string
	// To takes the calls.
	To *Writer[Call]
}

// RoundTrip implements http.RoundTripper.
func (r *Recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	procedure := req.URL.Path[strings.LastIndexByte(req.URL.Path, '/')+1:]
	if _, ok := Message(procedure); !ok {
		return r.Next.RoundTrip(req)
	}
	body, err := io.ReadAll(req.Body)
	_ = req.Body.Close()
	if err != nil {
		return nil, err
	}
	sent := req.Clone(req.Context())
	sent.Body = io.NopCloser(bytes.NewReader(body))
	sent.GetBody = nil // if net/http repeated a call, two calls would be one line
	sent.Header.Set("Accept-Encoding", "identity")
	call := &Call{Client: r.Client, Target: req.URL.Host, Procedure: procedure, Sent: Now()}
	if call.Request, err = canonical(procedure, req.Header.Get("Content-Type"), body, true); err != nil {
		return nil, err
	}
	defer func() { r.To.Write(call) }()

	res, err := r.Next.RoundTrip(sent)
	if err != nil {
		dial, ok := errors.AsType[*net.OpError](err)
		call.Returned, call.Error = Now(), &Error{Text: err.Error(), NotSent: ok && dial.Op == "dial", Canceled: canceled(req)}
		return nil, err
	}
	answer, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	call.Returned = Now()
	if err != nil {
		call.Error = &Error{Text: err.Error(), Canceled: canceled(req)}
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(answer))
	if res.StatusCode != http.StatusOK {
		call.Error = wireError(res, answer)
		return res, nil
	}
	if call.Response, err = canonical(procedure, res.Header.Get("Content-Type"), answer, false); err != nil {
		call.Error = &Error{Text: err.Error()}
	}
	return res, nil
}

// canceled says whether the caller ended a call before its timeout.
func canceled(req *http.Request) bool { return errors.Is(req.Context().Err(), context.Canceled) }

// wireError reads a Connect error from an answer.
func wireError(res *http.Response, body []byte) *Error {
	header := res.Header.Clone()
	replay := roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: res.StatusCode, Status: res.Status, Proto: res.Proto, ProtoMajor: res.ProtoMajor, ProtoMinor: res.ProtoMinor,
			Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		}, nil
	})
	client := connect.NewClient[quotav1.GetQuotaRequest, quotav1.GetQuotaResponse](&http.Client{Transport: replay}, "http://replay/")
	_, err := client.CallUnary(context.Background(), connect.NewRequest(&quotav1.GetQuotaRequest{}))
	return ErrorOf(err)
}

// ErrorOf describes the error of a call.
func ErrorOf(err error) *Error {
	described := &Error{Text: err.Error()}
	wire := new(connect.Error)
	if !errors.As(err, &wire) {
		return described
	}
	described.Code = wire.Code().String()
	for _, detail := range wire.Details() {
		if value, err := detail.Value(); err == nil {
			if info, ok := value.(*quotav1.ErrorInfo); ok {
				described.Reason, described.NotAccepted, described.Budget = int32(info.Reason), info.NotAccepted, info.Budget
			}
		}
	}
	return described
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// canonical returns a message in the binary encoding, whatever its encoding was.
func canonical(procedure, contentType string, body []byte, request bool) ([]byte, error) {
	if strings.HasPrefix(contentType, "application/proto") {
		return body, nil
	}
	pair, _ := Message(procedure)
	message := pair.Response
	if request {
		message = pair.Request
	}
	message = proto.Clone(message)
	if err := protojson.Unmarshal(body, message); err != nil {
		return nil, fmt.Errorf("a %s that is not its message: %w", procedure, err)
	}
	return proto.Marshal(message)
}

// Pair is the request and the response of a procedure.
type Pair struct{ Request, Response proto.Message }

var pairs = map[string]Pair{
	"OpenSession":   {&quotav1.OpenSessionRequest{}, &quotav1.OpenSessionResponse{}},
	"CloseSession":  {&quotav1.CloseSessionRequest{}, &quotav1.CloseSessionResponse{}},
	"Reserve":       {&quotav1.ReserveRequest{}, &quotav1.ReserveResponse{}},
	"Consume":       {&quotav1.ConsumeRequest{}, &quotav1.ConsumeResponse{}},
	"Settle":        {&quotav1.SettleRequest{}, &quotav1.SettleResponse{}},
	"Release":       {&quotav1.ReleaseRequest{}, &quotav1.ReleaseResponse{}},
	"Renew":         {&quotav1.RenewRequest{}, &quotav1.RenewResponse{}},
	"Withdraw":      {&quotav1.WithdrawRequest{}, &quotav1.WithdrawResponse{}},
	"Report":        {&quotav1.ReportRequest{}, &quotav1.ReportResponse{}},
	"Batch":         {&quotav1.BatchRequest{}, &quotav1.BatchResponse{}},
	"GetQuota":      {&quotav1.GetQuotaRequest{}, &quotav1.GetQuotaResponse{}},
	"ListQuotas":    {&quotav1.ListQuotasRequest{}, &quotav1.ListQuotasResponse{}},
	"ListLeases":    {&quotav1.ListLeasesRequest{}, &quotav1.ListLeasesResponse{}},
	"CheckFence":    {&quotav1.CheckFenceRequest{}, &quotav1.CheckFenceResponse{}},
	"ApplyQuotas":   {&quotav1.ApplyQuotasRequest{}, &quotav1.ApplyQuotasResponse{}},
	"DeleteQuota":   {&quotav1.DeleteQuotaRequest{}, &quotav1.DeleteQuotaResponse{}},
	"RevokeLease":   {&quotav1.RevokeLeaseRequest{}, &quotav1.RevokeLeaseResponse{}},
	"OverrideQuota": {&quotav1.OverrideQuotaRequest{}, &quotav1.OverrideQuotaResponse{}},
	"ResetClock":    {&quotav1.ResetClockRequest{}, &quotav1.ResetClockResponse{}},
	"ReopenQuota":   {&quotav1.ReopenQuotaRequest{}, &quotav1.ReopenQuotaResponse{}},
	"GetWorkflow":   {&quotav1.GetWorkflowRequest{}, &quotav1.GetWorkflowResponse{}},
	"BeginTask":     {&quotav1.BeginTaskRequest{}, &quotav1.BeginTaskResponse{}},
	"RenewTask":     {&quotav1.RenewTaskRequest{}, &quotav1.RenewTaskResponse{}},
	"EndTask":       {&quotav1.EndTaskRequest{}, &quotav1.EndTaskResponse{}},
	"RetryTask":     {&quotav1.RetryTaskRequest{}, &quotav1.RetryTaskResponse{}},
	"ForgetTask":    {&quotav1.ForgetTaskRequest{}, &quotav1.ForgetTaskResponse{}},
	"ListTasks":     {&quotav1.ListTasksRequest{}, &quotav1.ListTasksResponse{}},
}

// Message returns prototypes of a recorded procedure's messages.
func Message(procedure string) (Pair, bool) {
	pair, ok := pairs[procedure]
	return pair, ok
}

// Decode returns the request and the response (nil after an error) of a call.
func (c *Call) Decode() (request, response proto.Message, err error) {
	pair, ok := Message(c.Procedure)
	if !ok {
		return nil, nil, fmt.Errorf("history: %q is no recorded procedure", c.Procedure)
	}
	request = proto.Clone(pair.Request)
	if err := proto.Unmarshal(c.Request, request); err != nil {
		return nil, nil, err
	}
	if c.Error != nil {
		return request, nil, nil
	}
	response = proto.Clone(pair.Response)
	return request, response, proto.Unmarshal(c.Response, response)
}
