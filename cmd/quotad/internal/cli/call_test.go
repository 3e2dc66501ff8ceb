package cli

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeNode answers status and deletes with the given errors, then with success.
type fakeNode struct {
	quotav1connect.UnimplementedAdminServiceHandler

	mu     sync.Mutex
	errors []error
	keys   []string
	// always is the answer when errors are used up. With hangs there is no answer then.
	always error
	hangs  bool
}

func (f *fakeNode) next(key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys = append(f.keys, key)
	if len(f.errors) == 0 {
		return f.always
	}
	err := f.errors[0]
	f.errors = f.errors[1:]
	return err
}

func (f *fakeNode) DeleteQuota(ctx context.Context, r *quotav1.DeleteQuotaRequest) (*quotav1.DeleteQuotaResponse, error) {
	f.mu.Lock()
	hangs := f.hangs && len(f.errors) == 0
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
	}
	return &quotav1.DeleteQuotaResponse{}, f.next(r.RequestId.GetIdempotencyKey())
}

func (f *fakeNode) RemoveMember(context.Context, *quotav1.RemoveMemberRequest) (*quotav1.RemoveMemberResponse, error) {
	return &quotav1.RemoveMemberResponse{}, f.next("")
}

// typed returns an error as a node sends it.
func typed(code connect.Code, info *quotav1.ErrorInfo) error {
	err := connect.NewError(code, errors.New("from the node"))
	detail, detailErr := connect.NewErrorDetail(info)
	if detailErr != nil {
		panic(detailErr)
	}
	err.AddDetail(detail)
	return err
}

// fakeCluster serves fake nodes on loopback.
func fakeCluster(t *testing.T, fakes ...*fakeNode) *cluster {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c := &cluster{timeout: 10 * time.Second}
	for _, fake := range fakes {
		_, handler := quotav1connect.NewAdminServiceHandler(fake)
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		c.nodes = append(c.nodes, node{
			address: server.Listener.Addr().String(),
			admin:   quotav1connect.NewAdminServiceClient(&http.Client{Transport: transport}, server.URL),
		})
	}
	return c
}

func TestCall_RetriesOnlyWhereSafe(t *testing.T) {
	notAccepted := typed(connect.CodeUnavailable, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_NO_LEADER, NotAccepted: true})
	unknown := typed(connect.CodeUnavailable, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_OUTCOME})
	lostAnswer := connect.NewError(connect.CodeUnavailable, errors.New("cut off"))
	gone := typed(connect.CodeNotFound, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_QUOTA})
	wrong := typed(connect.CodeInvalidArgument, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_INVALID, NotAccepted: true})
	for name, c := range map[string]struct {
		again  repeat
		first  error
		asked  int // calls that the second node sees
		code   ExitCode
		answer bool
	}{
		"not accepted, once only":    {again: ifNotAccepted, first: notAccepted, asked: 1, answer: true},
		"not accepted, with an id":   {again: withID, first: notAccepted, asked: 1, answer: true},
		"unknown, once only":         {again: ifNotAccepted, first: unknown, code: ExitUnknown},
		"unknown, with an id":        {again: withID, first: unknown, asked: 1, answer: true},
		"lost answer, once only":     {again: ifNotAccepted, first: lostAnswer, code: ExitUnknown},
		"lost answer, with an id":    {again: withID, first: lostAnswer, asked: 1, answer: true},
		"lost answer, of a read":     {again: reads, first: lostAnswer, asked: 1, answer: true},
		"unknown, safe by nature":    {again: byNature, first: unknown, asked: 1, answer: true},
		"unknown, of a removal":      {again: removes, first: unknown, asked: 1, answer: true},
		"gone already":               {again: removes, first: gone, code: ExitNotFound},
		"wrong, whatever it carries": {again: withID, first: wrong, code: ExitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := &fakeNode{errors: []error{c.first}}, &fakeNode{}
			request := &quotav1.DeleteQuotaRequest{RequestId: &quotav1.RequestId{IdempotencyKey: name}, Name: "a"}
			answer, err := call(t.Context(), fakeCluster(t, first, second), c.again, 0,
				func(ctx context.Context, n node) (*quotav1.DeleteQuotaResponse, error) {
					return n.admin.DeleteQuota(ctx, request)
				})
			if (answer != nil) != c.answer || len(second.keys) != c.asked {
				t.Fatalf("answer %v, error %v, the second node saw %d calls", answer, err, len(second.keys))
			}
			if err != nil && describe(t.Context(), err).code != c.code {
				t.Errorf("exit code %d, want %d (%v)", describe(t.Context(), err).code, c.code, err)
			}
			if c.asked > 0 && first.keys[0] != second.keys[0] {
				t.Error("the second attempt carries another id")
			}
		})
	}
}

// TestCall_KeepsAnUnknownOutcome: a later attempt that is refused says nothing of an earlier one that may have been applied. What the state
// machine answers under the same id does.
func TestCall_KeepsAnUnknownOutcome(t *testing.T) {
	unknown := typed(connect.CodeUnavailable, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_OUTCOME})
	denied := typed(connect.CodePermissionDenied, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_NOT_ALLOWED, NotAccepted: true})
	full := typed(connect.CodeResourceExhausted, &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_CALLER_BUDGET, Budget: "result_bytes", NotAccepted: true,
	})
	gone := typed(connect.CodeNotFound, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_QUOTA})
	for name, c := range map[string]struct {
		again repeat
		then  error
		code  ExitCode
		room  bool
	}{
		"a token that one node does not know": {withID, denied, ExitUnknown, false},
		"no room":                             {withID, full, ExitUnknown, false},
		"an answer":                           {withID, gone, ExitNotFound, false},
		"a session that may have been opened": {withRoom, full, ExitUnavailable, true},
	} {
		_, err := call(t.Context(), fakeCluster(t, &fakeNode{errors: []error{unknown}}, &fakeNode{always: c.then}), c.again, 0,
			func(ctx context.Context, n node) (*quotav1.DeleteQuotaResponse, error) {
				return n.admin.DeleteQuota(ctx, &quotav1.DeleteQuotaRequest{Name: "a"})
			})
		if err == nil || describe(t.Context(), err).code != c.code || lacksRoom(err) != c.room {
			t.Errorf("%s: exit code %d, want %d (%v)", name, describe(t.Context(), err).code, c.code, err)
		}
	}
}

// TestCall_TakesAResetConnectionForALostAnswer: a node that takes a request and resets the connection may have executed it.
func TestCall_TakesAResetConnectionForALostAnswer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1<<10))
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			_ = conn.Close()
		}
	}()
	for name, c := range map[string]struct {
		again repeat
		asked int
		code  ExitCode
	}{
		"a read": {again: reads, asked: 1}, "with an id": {again: withID, asked: 1}, "once only": {again: ifNotAccepted, code: ExitUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			second := &fakeNode{}
			nodes := fakeCluster(t, second)
			resetting := node{admin: quotav1connect.NewAdminServiceClient(
				&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+listener.Addr().String())}
			nodes.nodes = append([]node{resetting}, nodes.nodes...)
			_, err := call(t.Context(), nodes, c.again, 0, func(ctx context.Context, n node) (*quotav1.DeleteQuotaResponse, error) {
				return n.admin.DeleteQuota(ctx, &quotav1.DeleteQuotaRequest{Name: "a"})
			})
			if len(second.keys) != c.asked || (err == nil) != (c.code == 0) || err != nil && describe(t.Context(), err).code != c.code {
				t.Errorf("%v after %d calls of the second node", err, len(second.keys))
			}
		})
	}
}

// TestCall_RemovesOnce: if an attempt may have been applied and the next one does not find the object, the first attempt
// removed it. An object that never existed is an error.
func TestCall_RemovesOnce(t *testing.T) {
	gone := typed(connect.CodeNotFound, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_QUOTA})
	unknown := typed(connect.CodeUnavailable, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_OUTCOME})
	none := typed(connect.CodeUnavailable, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_NO_LEADER, NotAccepted: true})
	for name, c := range map[string]struct {
		first error
		again repeat
		done  bool
	}{
		"after an unknown outcome":       {unknown, removes, true},
		"after nothing was accepted":     {none, removes, false},
		"of a call that removes nothing": {unknown, byNature, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := call(t.Context(), fakeCluster(t, &fakeNode{errors: []error{c.first}}, &fakeNode{always: gone}), c.again, 0,
				func(ctx context.Context, n node) (*quotav1.DeleteQuotaResponse, error) {
					return n.admin.DeleteQuota(ctx, &quotav1.DeleteQuotaRequest{Name: "a"})
				})
			if (err == nil) != c.done {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestCall_WaitsForLeader: call waits for an election and tries all nodes again until one leads.
func TestCall_WaitsForLeader(t *testing.T) {
	none := func() error {
		return typed(connect.CodeUnavailable, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_NO_LEADER, NotAccepted: true})
	}
	fake := &fakeNode{errors: []error{none(), none(), none()}}
	_, err := call(t.Context(), fakeCluster(t, fake), ifNotAccepted, 0,
		func(ctx context.Context, n node) (*quotav1.DeleteQuotaResponse, error) {
			return n.admin.DeleteQuota(ctx, &quotav1.DeleteQuotaRequest{Name: "a"})
		})
	if err != nil || len(fake.keys) != 4 {
		t.Errorf("%d calls, %v", len(fake.keys), err)
	}
}

// TestCall_KeepsMostSpecificError: a later cut-off attempt or an unreachable node does not hide an earlier answer.
func TestCall_KeepsMostSpecificError(t *testing.T) {
	none := typed(connect.CodeUnavailable, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_NO_LEADER, NotAccepted: true})
	lostAnswer := connect.NewError(connect.CodeUnavailable, errors.New("cut off"))
	dead := func() node {
		server := httptest.NewServer(nil)
		defer server.Close()
		return node{
			address: server.Listener.Addr().String(),
			admin:   quotav1connect.NewAdminServiceClient(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, server.URL),
		}
	}
	for name, c := range map[string]struct {
		again repeat
		first error
		then  error // of all later calls; nil: they hang
		code  ExitCode
		words string
	}{
		"a leader is missing, the last attempt is cut off": {again: ifNotAccepted, first: none, code: ExitUnavailable, words: "from the node"},
		"the same, with an id":                             {again: withID, first: none, code: ExitUnavailable, words: "from the node"},
		"the same, of a read":                              {again: reads, first: none, code: ExitUnavailable, words: "from the node"},
		"it may have happened at first":                    {again: withID, first: lostAnswer, then: none, code: ExitUnknown, words: "cut off"},
		"a read whose answer was lost at first": {
			again: reads, first: lostAnswer, then: none, code: ExitUnavailable, words: "from the node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake := &fakeNode{errors: []error{c.first}, always: c.then, hangs: c.then == nil}
			nodes := fakeCluster(t, fake)
			nodes.timeout = pauseBetweenRounds + shortest/2
			if c.then != nil {
				nodes.timeout = 3 * time.Second / 2
			}
			nodes.nodes = append(nodes.nodes, dead())
			_, err := call(t.Context(), nodes, c.again, 0, func(ctx context.Context, n node) (*quotav1.DeleteQuotaResponse, error) {
				return n.admin.DeleteQuota(ctx, &quotav1.DeleteQuotaRequest{Name: "a"})
			})
			if got := describe(t.Context(), err); got.code != c.code || !strings.Contains(got.message, c.words) {
				t.Errorf("exit code %d, %q; want %d, %q", got.code, got.message, c.code, c.words)
			}
		})
	}
	t.Run("nobody answers", func(t *testing.T) {
		nodes := &cluster{timeout: 10 * time.Second, nodes: []node{dead(), dead()}}
		_, err := call(t.Context(), nodes, ifNotAccepted, 0, func(ctx context.Context, n node) (*quotav1.DeleteQuotaResponse, error) {
			return n.admin.DeleteQuota(ctx, &quotav1.DeleteQuotaRequest{Name: "a"})
		})
		got := describe(t.Context(), err)
		for _, n := range nodes.nodes {
			if !strings.Contains(got.message, "\n"+n.address+": ") {
				t.Errorf("%q has no line for %s", got.message, n.address)
			}
		}
		if got.code != ExitUnavailable {
			t.Errorf("exit code %d", got.code)
		}
	})
}

// TestExitCodes_CoverEachAPICode lists all codes of the API with their exit codes, so that a new code needs a decision.
func TestExitCodes_CoverEachAPICode(t *testing.T) {
	for code, want := range map[connect.Code]ExitCode{
		connect.CodeCanceled: ExitFailure, connect.CodeUnknown: ExitFailure, connect.CodeInvalidArgument: ExitUsage,
		connect.CodeDeadlineExceeded: ExitUnknown, connect.CodeNotFound: ExitNotFound, connect.CodeAlreadyExists: ExitRefused,
		connect.CodePermissionDenied: ExitNotAllowed, connect.CodeResourceExhausted: ExitUnavailable,
		connect.CodeFailedPrecondition: ExitRefused, connect.CodeAborted: ExitRefused, connect.CodeOutOfRange: ExitRefused,
		connect.CodeUnimplemented: ExitUsage, connect.CodeInternal: ExitFailure, connect.CodeUnavailable: ExitUnavailable,
		connect.CodeDataLoss: ExitFailure, connect.CodeUnauthenticated: ExitNotAllowed,
	} {
		if got := exitOf(code, nil); got != want {
			t.Errorf("%v ends with %d, want %d", code, got, want)
		}
	}
	if got := exitOf(connect.CodeUnavailable, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_OUTCOME}); got != ExitUnknown {
		t.Errorf("an unknown outcome ends with %d", got)
	}
}

// TestFailure_PrintsNoControlCharacters: a node's error text cannot send control sequences to the reader's terminal.
func TestFailure_PrintsNoControlCharacters(t *testing.T) {
	var out strings.Builder
	f := &failure{message: "bad\x1b[2J name", hint: "\x1b]0;title\a", info: &quotav1.ErrorInfo{Quota: "a\x1b[31m"}}
	f.print(&out, formatTable)
	if strings.ContainsAny(out.String(), "\x1b\a") {
		t.Errorf("printed %q", out.String())
	}
}

// TestRootCause_IsTheSystemsError: the text for a failed connection repeats neither its address nor a code of the API.
func TestRootCause_IsTheSystemsError(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{Port: 1}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	unknown := &net.DNSError{Err: "no such host", Name: "none.example"}
	for _, test := range []struct {
		err  error
		want string
	}{
		{connect.NewError(connect.CodeUnavailable, refused), "connection refused"},
		{connect.NewError(connect.CodeUnavailable, &net.OpError{Op: "dial", Net: "tcp", Err: unknown}), "lookup none.example: no such host"},
		{connect.NewError(connect.CodeUnavailable, errors.New("reset")), "reset"},
	} {
		if got := rootCause(test.err).Error(); got != test.want {
			t.Errorf("%v: %q, want %q", test.err, got, test.want)
		}
	}
}
