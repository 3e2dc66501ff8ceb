package rpc

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/raftnode/budget"
	"github.com/quotad/quotad/rpc/processor"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestMayUseOperatorsPart_NotToTakeQuota: an operator's token uses the part that is kept for operators, but not for calls that take
// quota.
func TestMayUseOperatorsPart_NotToTakeQuota(t *testing.T) {
	operator := &caller{id: "ops", verbs: verbs}
	user := &caller{id: "user", verbs: []Verb{VerbUse, VerbRead, VerbReport}}
	for procedure, want := range map[string]struct{ operator, user, nobody bool }{
		quotav1connect.QuotaServiceReserveProcedure:      {false, false, false},
		quotav1connect.QuotaServiceBatchProcedure:        {false, false, false},
		quotav1connect.TaskServiceBeginTaskProcedure:     {false, false, false},
		quotav1connect.QuotaServiceReleaseProcedure:      {true, false, false},
		quotav1connect.AdminServiceGetStatusProcedure:    {true, false, false},
		quotav1connect.AdminServiceApplyQuotasProcedure:  {true, false, true},
		quotav1connect.AdminServiceReopenQuotaProcedure:  {true, false, true},
		quotav1connect.AdminServiceRemoveMemberProcedure: {true, false, true},
	} {
		a, b, c := mayUseOperatorsPart(operator, procedure), mayUseOperatorsPart(user, procedure), mayUseOperatorsPart(anybody, procedure)
		if a != want.operator || b != want.user || c != want.nobody {
			t.Errorf("%s: an operator's token %t, a user's %t, none where there are no tokens %t", procedure, a, b, c)
		}
	}
}

// TestRefuseQueued_ReleasesItsPlace: refusals one after the other, however many, do not end the caller's connection.
func TestRefuseQueued_ReleasesItsPlace(t *testing.T) {
	b := newPortBudgets(DefaultMaxConnections, 16, 16)
	s := &Server{errors: connect.NewErrorWriter(codecs())}
	for n := range 2 * b.refusals.View().Capacity {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("{}"))
		s.refuseQueued(b, nil, w, r, stoppingError())
		if w.Header().Get("Connection") == "close" {
			t.Fatalf("refusal %d ends the connection", n)
		}
	}
	if used, callers := b.refusals.InUse(); used != 0 || callers != 0 {
		t.Errorf("%d refusals of %d callers are still being sent", used, callers)
	}
}

// TestPortBudgets_LeaveAnonymousCallersRoom: requests of anonymous callers that may hold a connection each hold at most half of their
// connections.
func TestPortBudgets_LeaveAnonymousCallersRoom(t *testing.T) {
	for _, connections := range []int{DefaultMaxConnections, DefaultMaxOpsConnections} {
		b := newPortBudgets(int64(connections), 16, 16)
		held := int64(0)
		for _, each := range []*budget.Budget{b.visits, b.watchers, b.scrapes, b.refusals} {
			held += each.View().Capacity
		}
		if held > anonymousOf(int64(connections))/2 {
			t.Errorf("anonymous callers hold %d of their %d connections", held, anonymousOf(int64(connections)))
		}
	}
}

// TestAdmit_AnonymousCallersAtTheOperatorsPort: they share no turns with anonymous callers at the API port, so their refusals wait for
// nobody.
func TestAdmit_AnonymousCallersAtTheOperatorsPort(t *testing.T) {
	shares := processor.New(t.Context(), func() int { return 0 }, processor.ReadClocks)
	tokens := new(Tokens)
	tokens.byID.Store(&map[string]*Token{})
	s := &Server{config: Config{Tokens: tokens}, shares: shares}
	for _, ops := range []bool{false, true} {
		b := newPortBudgets(DefaultMaxConnections, 16, 16)
		b.ownShares = ops
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		_, share, _, err := s.admit(b, quotav1connect.QuotaServiceReserveProcedure, false, r)
		if err == nil || (share == nil) != ops {
			t.Errorf("at the operators' port %t: %v, %v", ops, share, err)
		}
		share.Leave()
	}
}
