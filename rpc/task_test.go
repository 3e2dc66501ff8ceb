package rpc_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

const taskPath = "/quota.v1.TaskService/"

// TestTasks_AtAnyNode: a task is begun at one node, renewed and ended at the others, and seen by all.
func TestTasks_AtAnyNode(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	apis := make([]quotav1connect.TaskServiceClient, len(nodes))
	for i, n := range nodes {
		apis[i] = quotav1connect.NewTaskServiceClient(http.DefaultClient, n.url, persistent)
	}
	request := &quotav1.BeginTaskRequest{RequestId: &quotav1.RequestId{IdempotencyKey: "k"}, Task: "t", Holder: "h"}
	begun, err := apis[0].BeginTask(t.Context(), request)
	if err != nil || begun.GetAttempt().GetNumber() != 1 || begun.GetAttempt().GetMaxFailures() != 3 {
		t.Fatalf("%v %v", begun, err)
	}
	again, err := apis[1].BeginTask(t.Context(), request)
	if err != nil || again.GetAttempt().GetFence() != begun.GetAttempt().Fence {
		t.Fatalf("under the same key: %v %v", again, err)
	}
	fence := begun.GetAttempt().Fence
	renewed, err := apis[1].RenewTask(t.Context(), &quotav1.RenewTaskRequest{Task: "t", Fence: fence, Ttl: durationpb.New(3600e9)})
	if err != nil || renewed.ExpiresIn.AsDuration().Minutes() < 59 {
		t.Fatalf("%v %v", renewed, err)
	}
	status, body := post(t, nodes[2].url, taskPath+"BeginTask", `{"task":"t","holder":"other"}`, rpc.HeaderRefusalStatus, "429")
	if status != http.StatusTooManyRequests || !strings.Contains(body, "REASON_TASK_IN_FLIGHT") {
		t.Fatalf("%d %s", status, body)
	}
	ended, err := apis[2].EndTask(t.Context(), &quotav1.EndTaskRequest{
		Task: "t", Fence: fence, Outcome: quotav1.TaskOutcome_TASK_OUTCOME_FAILED, Detail: "exit code 1",
	})
	if err != nil || ended.Phase != quotav1.TaskPhase_TASK_PHASE_WAITING || ended.Failures != 1 ||
		ended.RetryAfter.AsDuration().Minutes() < 4 {
		t.Fatalf("%v %v", ended, err)
	}
	for _, api := range apis {
		list, err := api.ListTasks(t.Context(), &quotav1.ListTasksRequest{})
		if err != nil || len(list.Tasks) != 1 || list.Tasks[0].Detail != "exit code 1" ||
			list.Tasks[0].Phase != quotav1.TaskPhase_TASK_PHASE_WAITING {
			t.Fatalf("%v %v", list, err)
		}
	}
	_, err = apis[0].EndTask(t.Context(), &quotav1.EndTaskRequest{Task: "t", Fence: fence, Outcome: quotav1.TaskOutcome_TASK_OUTCOME_DONE})
	if reasonOf(t, err) != quotav1.Reason_REASON_STALE_ATTEMPT || connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("another end: %v", err)
	}
	if _, err := apis[1].RetryTask(t.Context(), &quotav1.RetryTaskRequest{Task: "t"}); err != nil {
		t.Fatal(err)
	}
	list, err := apis[0].ListTasks(t.Context(), &quotav1.ListTasksRequest{Phase: quotav1.TaskPhase_TASK_PHASE_READY})
	if err != nil || len(list.Tasks) != 1 || list.Tasks[0].Failures != 0 || list.Tasks[0].RetryAfter != nil {
		t.Fatalf("%v %v", list, err)
	}
	if _, err := apis[2].ForgetTask(t.Context(), &quotav1.ForgetTaskRequest{Task: "t"}); err != nil {
		t.Fatal(err)
	}
	_, err = apis[0].ForgetTask(t.Context(), &quotav1.ForgetTaskRequest{Task: "t"})
	if reasonOf(t, err) != quotav1.Reason_REASON_UNKNOWN_TASK || connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("forgotten twice: %v", err)
	}
}

// TestValidate_TaskRequests: the error names the invalid field.
func TestValidate_TaskRequests(t *testing.T) {
	n := newNodes(t, 1)[0]
	for _, c := range []struct{ call, body, field string }{
		{"BeginTask", `{"holder":"h"}`, "task"},
		{"BeginTask", `{"task":"a b","holder":"h"}`, "task"},
		{"BeginTask", `{"task":"` + strings.Repeat("x", 129) + `","holder":"h"}`, "task"},
		{"BeginTask", `{"task":"t"}`, "holder"},
		{"BeginTask", `{"task":"t","holder":"h","maxFailures":101}`, "max_failures"},
		{"BeginTask", `{"task":"t","holder":"h","maxFailures":-1}`, "max_failures"},
		{"BeginTask", `{"task":"t","holder":"h","ttl":"0.5s"}`, "ttl"},
		{"BeginTask", `{"task":"t","holder":"h","attempt":-1}`, "attempt"},
		{"BeginTask", `{"task":"t","holder":"h","quotas":["a","a"]}`, "quotas[1]"},
		{"BeginTask", `{"task":"t","holder":"h","quotas":[""]}`, "quotas[0]"},
		{"BeginTask", `{"task":"t","holder":"h","quotas":[` + strings.Repeat(`"q",`, 16) + `"q"]}`, "quotas"},
		{"RenewTask", `{"task":"t"}`, "fence"},
		{"EndTask", `{"task":"t","fence":1}`, "outcome"},
		{"EndTask", `{"task":"t","fence":1,"outcome":"TASK_OUTCOME_LOST"}`, "outcome"},
		{"EndTask", `{"task":"t","fence":1,"outcome":"TASK_OUTCOME_DONE","wait":"-1s"}`, "wait"},
		{"EndTask", `{"task":"t","fence":1,"outcome":"TASK_OUTCOME_DONE","wait":"2678401s"}`, "wait"},
		{"EndTask", `{"task":"t","fence":1,"outcome":"TASK_OUTCOME_DONE","detail":"` + strings.Repeat("x", 301) + `"}`, "detail"},
		{"EndTask", `{"task":"t","fence":1,"outcome":"TASK_OUTCOME_DONE","report":77}`, "report"},
		{"ListTasks", `{"pageSize":1001}`, "page_size"},
		{"ListTasks", `{"phase":9}`, "phase"},
		{"RetryTask", `{}`, "task"},
		{"ForgetTask", `{}`, "task"},
	} {
		status, body := post(t, n.url, taskPath+c.call, c.body)
		if status != http.StatusBadRequest || !strings.Contains(body, `"field":"`+c.field+`"`) || !strings.Contains(body, "REASON_INVALID") {
			t.Errorf("%s %s: %d %s", c.call, c.body, status, body)
		}
	}
}

// TestTokens_CoverTasks: a token acts for the tasks of its holders and sees no others. It closes quotas only with the verb report.
func TestTokens_CoverTasks(t *testing.T) {
	path, secrets := tokenFile(t) // all for ralph*
	both, entry, err := rpc.NewToken("both", "picard*", "standard", []rpc.Verb{rpc.VerbUse, rpc.VerbReport, rpc.VerbRead, rpc.VerbAdminQuota})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Clean(path), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteString("- {id: both, sha256: " + entry.SHA256 + ", holder: 'picard*', verbs: [use, report, read, admin-quota]}\n")
	if closing := file.Close(); err != nil || closing != nil {
		t.Fatal(err, closing)
	}
	tokens, err := rpc.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	n := newNodes(t, 1, func(c *rpc.Config) { c.Tokens = tokens })[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas", applyCore, "Authorization",
		"Bearer "+both); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	api := quotav1connect.NewTaskServiceClient(http.DefaultClient, n.url, persistent)
	ralph, picard := bearer(t, secrets[rpc.VerbUse]), bearer(t, both)
	if _, err := api.BeginTask(ralph, &quotav1.BeginTaskRequest{Task: "t", Holder: "picard"}); reasonOf(t,
		err) != quotav1.Reason_REASON_NOT_ALLOWED {
		t.Errorf("for a foreign holder: %v", err)
	}
	begun, err := api.BeginTask(ralph, &quotav1.BeginTaskRequest{Task: "t", Holder: "ralph", Quotas: []string{"t/core"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.BeginTask(picard, &quotav1.BeginTaskRequest{Task: "t", Holder: "picard"}); reasonOf(t,
		err) != quotav1.Reason_REASON_FOREIGN_TASK {
		t.Errorf("a foreign task: %v", err)
	}
	if _, err := api.RetryTask(picard, &quotav1.RetryTaskRequest{Task: "t"}); reasonOf(t, err) != quotav1.Reason_REASON_FOREIGN_TASK {
		t.Errorf("a foreign task put back: %v", err)
	}
	if list, err := api.ListTasks(picard, &quotav1.ListTasksRequest{}); err != nil || len(list.Tasks) != 0 {
		t.Errorf("foreign tasks: %v %v", list, err)
	}
	end := &quotav1.EndTaskRequest{
		Task: "t", Fence: begun.GetAttempt().Fence, Outcome: quotav1.TaskOutcome_TASK_OUTCOME_SATURATED,
		Wait: durationpb.New(20e9), Report: quotav1.Cause_CAUSE_SATURATED,
	}
	if _, err := api.EndTask(ralph, end); reasonOf(t, err) != quotav1.Reason_REASON_NOT_ALLOWED {
		t.Errorf("a report without its verb: %v", err)
	}
	mine, err := api.BeginTask(picard, &quotav1.BeginTaskRequest{Task: "u", Holder: "picard", Quotas: []string{"t/core"}})
	if err != nil {
		t.Fatal(err)
	}
	mineEnds := proto.CloneOf(end)
	mineEnds.Task, mineEnds.Fence = "u", mine.GetAttempt().Fence
	if _, err := api.EndTask(picard, mineEnds); err != nil {
		t.Errorf("a report: %v", err)
	}
	closed, err := api.BeginTask(picard, &quotav1.BeginTaskRequest{Task: "v", Holder: "picard", Quotas: []string{"t/core"}})
	if err != nil || closed.GetRefusal().GetReason() != quotav1.Reason_REASON_COOLDOWN || closed.GetRefusal().GetQuota() != "t/core" {
		t.Errorf("after it: %v %v", closed, err)
	}
	end.Report = 0
	if _, err := api.EndTask(ralph, end); err != nil {
		t.Errorf("without a report: %v", err)
	}
}

// TestListTasks_Pages: tasks are listed in pages, and counted in metrics.
func TestListTasks_Pages(t *testing.T) {
	n := newNodes(t, 1)[0]
	api := quotav1connect.NewTaskServiceClient(http.DefaultClient, n.url, persistent)
	for _, task := range []string{"c", "a", "b"} {
		begun, err := api.BeginTask(t.Context(), &quotav1.BeginTaskRequest{Task: task, Holder: "h", MaxFailures: 1})
		if err != nil {
			t.Fatal(err)
		}
		if task == "c" {
			continue
		}
		if _, err := api.EndTask(t.Context(), &quotav1.EndTaskRequest{
			Task: task, Fence: begun.GetAttempt().Fence, Outcome: quotav1.TaskOutcome_TASK_OUTCOME_FAILED,
		}); err != nil {
			t.Fatal(err)
		}
	}
	names, request := "", &quotav1.ListTasksRequest{PageSize: 1}
	for range 4 {
		page, err := api.ListTasks(t.Context(), request)
		if err != nil || len(page.Tasks) > 1 {
			t.Fatalf("%v %v", page, err)
		}
		for _, task := range page.Tasks {
			names += task.Task
		}
		if request.PageToken = page.NextPageToken; request.PageToken == "" {
			break
		}
	}
	if names != "abc" || request.PageToken != "" {
		t.Errorf("the pages hold %q, then %q", names, request.PageToken)
	}
	_, metrics := get(t, n.url+"/metrics")
	for _, want := range []string{
		`quotad_tasks{phase="shelved"} 2`, `quotad_tasks{phase="in_flight"} 1`, `quotad_tasks{phase="resting"} 0`,
		`quotad_records{kind="tasks"} 3`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
}
