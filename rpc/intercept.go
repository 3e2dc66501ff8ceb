package rpc

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// maxCall bounds every unary call, waits included.
const maxCall = maxWait + 30*time.Second

// interceptors apply to every admitted call (Server.admitted), the outermost first: count and time the call, log operators' calls, take
// room for the answer, and refuse a message that could not be decoded.
func (s *Server) interceptors() []connect.Interceptor {
	return []connect.Interceptor{measuring{s}, auditing{s, new(raftnode.LoggedLines)}, answering(), decoding{}}
}

// answering takes room for answers: callers that do not read theirs would fill the memory. A call with side effects has taken effect, so
// it is answered even without room.
func answering() connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			res, err := next(ctx, req)
			if err != nil {
				return res, err
			}
			message, ok := res.Any().(proto.Message)
			if !ok {
				return res, nil
			}
			reads := req.Spec().IdempotencyLevel == connect.IdempotencyNoSideEffects
			if err := requestOf(ctx).room.answer(proto.Size(message), !reads); err != nil {
				return nil, err
			}
			return res, nil
		}
	}
}

// measuring counts and times calls.
type measuring struct{ s *Server }

// WrapUnary implements connect.Interceptor.
func (m measuring) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		started := time.Now()
		res, err := next(ctx, req)
		m.s.metrics.call(req.Spec().Procedure, err, time.Since(started))
		m.s.recordOutcome(ctx, req.Spec().Procedure, err, time.Now())
		if err != nil && connect.CodeOf(err) == connect.CodeInternal {
			m.s.logger.Error("internal error in a call", "procedure", req.Spec().Procedure, "error", err)
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

// identify finds the caller of a request. It fails for a missing or unknown token.
func (s *Server) identify(ctx context.Context, header http.Header, peer string) (context.Context, error) {
	received := time.Now()
	who, err := s.config.Tokens.identify(header.Get("Authorization"))
	if err != nil {
		return nil, err
	}
	if who.account == "" {
		who = who.at(s.callerAddress(ctx, header, peer))
	}
	return context.WithValue(ctx, requestKey{}, &request{who: who, received: received, header: header, budget: who.account}), nil
}

// recovered turns a handler's panic into a typed error. A panic of the state machine happens elsewhere, and stops the node.
func (s *Server) recovered(_ context.Context, spec connect.Spec, _ http.Header, cause any) error {
	s.metrics.panics.Inc()
	s.logger.Error("panic in the handler of a call", "procedure", spec.Procedure, "cause", cause, "stack", string(debug.Stack()))
	return newError(fmt.Sprintf("internal error in %s", spec.Procedure), &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_INTERNAL, Hint: "see the node's log",
	})
}

// setRetryAfter sets Retry-After in whole seconds, rounded up, and in milliseconds.
func setRetryAfter(header http.Header, wait time.Duration) {
	header.Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
	header.Set("Retry-After-Ms", strconv.FormatInt(wait.Milliseconds(), 10))
}
