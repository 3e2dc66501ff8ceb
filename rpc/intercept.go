package rpc

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// maxCall bounds every unary call, waits included.
const maxCall = maxWait + 30*time.Second

// interceptors are what every call passes, the outermost first: count and time it, bound it, say who calls, write down what
// operators do, and only then whether it could be read.
func (s *Server) interceptors() []connect.Interceptor {
	return []connect.Interceptor{measuring{s}, bounding{s}, identifying{s}, auditing{s}, decoding{}}
}

// measuring counts and times calls.
type measuring struct{ s *Server }

// WrapUnary implements connect.Interceptor.
func (m measuring) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		started := time.Now()
		res, err := next(ctx, req)
		m.s.metrics.call(req.Spec().Procedure, err, time.Since(started))
		if err != nil && connect.CodeOf(err) == connect.CodeInternal {
			m.s.logger.Error("a call failed", "procedure", req.Spec().Procedure, "error", err)
		}
		return res, err
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (measuring) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (m measuring) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		started := time.Now()
		err := next(ctx, conn)
		m.s.metrics.call(conn.Spec().Procedure, err, time.Since(started))
		return err
	}
}

// bounding refuses more calls at once than the node can have under way, and all but looks at it when it stops. It gives
// unary calls a deadline.
type bounding struct{ s *Server }

// ofHolding are the calls about what is held already. They find room, in the last eighth, where those that take more,
// and may wait for it, do not.
var ofHolding = map[string]bool{
	quotav1connect.QuotaServiceConsumeProcedure: true, quotav1connect.QuotaServiceSettleProcedure: true,
	quotav1connect.QuotaServiceReleaseProcedure: true, quotav1connect.QuotaServiceRenewProcedure: true,
	quotav1connect.QuotaServiceWithdrawProcedure: true, quotav1connect.QuotaServiceReportProcedure: true,
	quotav1connect.QuotaServiceCloseSessionProcedure: true, quotav1connect.AdminServiceGetStatusProcedure: true,
	quotav1connect.TaskServiceRenewTaskProcedure: true, quotav1connect.TaskServiceEndTaskProcedure: true,
}

func (b bounding) enter(procedure string) error {
	if b.s.refusing.Load() && procedure != quotav1connect.AdminServiceGetStatusProcedure {
		return stoppingError()
	}
	most := b.s.config.MaxInFlight
	if !ofHolding[procedure] {
		most -= most / 8
	}
	if b.s.inFlight.Add(1) > most {
		b.s.inFlight.Add(-1)
		return newError("too many calls are under way", &quotav1.ErrorInfo{
			Reason: quotav1.Reason_REASON_OVERLOADED, Hint: "send less at once, or come back", NotAccepted: true,
		})
	}
	b.s.metrics.inFlight.Inc()
	return nil
}

func (b bounding) leave() {
	b.s.inFlight.Add(-1)
	b.s.metrics.inFlight.Dec()
}

// WrapUnary implements connect.Interceptor.
func (b bounding) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := b.enter(req.Spec().Procedure); err != nil {
			return nil, err
		}
		defer b.leave()
		ctx, cancel := context.WithTimeout(ctx, maxCall)
		defer cancel()
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (bounding) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (b bounding) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := b.enter(conn.Spec().Procedure); err != nil {
			return err
		}
		defer b.leave()
		return next(ctx, conn)
	}
}

// identifying says who calls.
type identifying struct{ s *Server }

func (i identifying) identify(ctx context.Context, header http.Header) (context.Context, error) {
	received := time.Now()
	who, err := i.s.config.Tokens.identify(header.Get("Authorization"))
	if err != nil {
		return nil, err
	}
	return context.WithValue(ctx, requestKey{}, &request{who: who, received: received, header: header}), nil
}

// WrapUnary implements connect.Interceptor.
func (i identifying) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		ctx, err := i.identify(ctx, req.Header())
		if err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (identifying) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (i identifying) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx, err := i.identify(ctx, conn.RequestHeader())
		if err != nil {
			return err
		}
		return next(ctx, conn)
	}
}

// recovered turns a handler's panic into a typed error. A panic of the state machine is elsewhere, and stops the node.
func (s *Server) recovered(_ context.Context, spec connect.Spec, _ http.Header, cause any) error {
	s.metrics.panics.Inc()
	s.logger.Error("a handler panicked", "procedure", spec.Procedure, "cause", cause, "stack", string(debug.Stack()))
	return newError(fmt.Sprintf("%s failed inside", spec.Procedure), &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_INTERNAL, Hint: "see the node's log",
	})
}

// setRetryAfter sets Retry-After in whole seconds, rounded up, and in milliseconds.
func setRetryAfter(header http.Header, wait time.Duration) {
	header.Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
	header.Set("Retry-After-Ms", strconv.FormatInt(wait.Milliseconds(), 10))
}
