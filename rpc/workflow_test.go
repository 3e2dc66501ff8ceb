package rpc_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// applyRelease applies a workflow of three steps, as curl would.
const applyRelease = `{"workflows":[{"name":"release","threshold":2,"within":"20s","calm":"30s","batonTime":"40s","pause":"50s","steps":[
	{"holder":"triage"},{"holder":"build","after":["triage"]},{"holder":"deploy","after":["build"]}]}],"replaceWorkflows":true}`

// TestWorkflows_OverTheAPI: an applied workflow is read back. Answers, reads and events at any node show what holds a holder back.
func TestWorkflows_OverTheAPI(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	apply := `{"quotas":[{"name":"models","rate":{"limit":10,"per":"60s"}},{"name":"other","slots":{"limit":9}}],` + applyRelease[1:]
	if status, body := post(t, nodes[1].url, "/quota.v1.AdminService/ApplyQuotas", apply); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, nodes[2].url, persistent)
	stream, err := api.Watch(t.Context(), &quotav1.WatchRequest{Holder: "triage"})
	if err != nil {
		t.Fatal(err)
	}
	reserve := func(holder, quota string, amount int64) *quotav1.ReserveResponse {
		t.Helper()
		res, err := api.Reserve(t.Context(), &quotav1.ReserveRequest{
			Holder: holder, Items: []*quotav1.Item{{Quota: quota, Amount: &amount}}, Consume: quota == "models",
		})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	show := func() *quotav1.WorkflowStatus {
		t.Helper()
		res, err := api.GetWorkflow(t.Context(), &quotav1.GetWorkflowRequest{Name: "release"})
		if err != nil {
			t.Fatal(err)
		}
		return res.Workflow
	}
	gauges := func(sequential, limited, paused int) {
		t.Helper()
		for name, value := range map[string]int{"sequential": sequential, "limited_steps": limited, "paused_steps": paused} {
			want := fmt.Sprintf(`quotad_workflow_%s{workflow="release"} %d`, name, value)
			eventually(t, want, func() bool { // this node may be behind
				shown := httptest.NewRecorder()
				nodes[0].server.Handler().ServeHTTP(shown, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				return strings.Contains(shown.Body.String(), want+"\n")
			})
		}
	}
	reserve("somebody", "models", 10)
	if r := reserve("build", "models", 1).GetRefusal(); r.GetReason() != quotav1.Reason_REASON_EXHAUSTED ||
		r.BackPressure.GetSide() != quotav1.Side_SIDE_SELF {
		t.Fatalf("%v", r)
	}
	if event, _ := nextEvent(t, stream); event.Kind != quotav1.EventKind_EVENT_KIND_BACK_PRESSURE || event.Workflow != "release" ||
		event.Step != "build" || event.Quota != "models" || event.Duration.GetSeconds() < 50 || event.Reason != quotav1.Reason_REASON_EXHAUSTED {
		t.Errorf("the event: %v", event)
	}
	if r := reserve("triage", "other", 1).GetRefusal(); r.GetReason() != quotav1.Reason_REASON_BACK_PRESSURE ||
		r.RetryAfter.GetSeconds() < 40 ||
		r.BackPressure.GetStep() != "build" || r.BackPressure.State != quotav1.WorkflowState_WORKFLOW_STATE_PARALLEL ||
		r.BackPressure.LimitedFor.GetSeconds() < 50 {
		t.Errorf("upstream: %v", r)
	}
	gauges(0, 1, 1)
	w := show()
	if w.State != quotav1.WorkflowState_WORKFLOW_STATE_PARALLEL || w.CalmIn != nil || w.Steps[0].PausedFor == nil ||
		w.Steps[1].LimitedFor == nil ||
		w.Steps[1].LimitedAgo == nil || w.Steps[2].LimitedAgo != nil {
		t.Errorf("%v", w)
	}
	reserve("deploy", "models", 1)
	lease := reserve("deploy", "other", 1).GetLease()
	p := lease.GetBackPressure()
	if p.GetState() != quotav1.WorkflowState_WORKFLOW_STATE_SEQUENTIAL || p.Baton != "deploy" || lease.ExpiresIn.GetSeconds() > 40 {
		t.Errorf("who has the baton: %v", lease)
	}
	r := reserve("triage", "other", 1).GetRefusal()
	if r.GetReason() != quotav1.Reason_REASON_SEQUENTIAL || r.BackPressure.GetBaton() != "deploy" {
		t.Errorf("another: %v", r)
	}
	w = show()
	if w.State != quotav1.WorkflowState_WORKFLOW_STATE_SEQUENTIAL || w.CalmIn == nil || w.Baton.GetHolder() != "deploy" ||
		w.Baton.Fence != lease.GetFence() {
		t.Errorf("%v", w)
	}
	listed, err := api.ListWorkflows(t.Context(), &quotav1.ListWorkflowsRequest{Holder: "build"})
	if err != nil || len(listed.Workflows) != 1 || !proto.Equal(listed.Workflows[0].Definition, w.Definition) ||
		w.Definition.Pause.GetSeconds() != 50 || len(w.Definition.Steps) != 3 {
		t.Errorf("%v %v", listed, err)
	}
	gauges(1, 2, 0)
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/DeleteWorkflow", `{"name":"release"}`); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	if reserve("triage", "other", 1).GetLease() == nil {
		t.Error("a workflow that is gone keeps its holders back")
	}
}
