package rpc_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestReads_AnswerGET: each call without side effects answers a GET, at any node; other calls do not.
func TestReads_AnswerGET(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", applyRelease); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	messages := map[string]string{
		"GetQuota": `{"name":"t/core"}`, "GetWorkflow": `{"name":"release"}`, "CheckFence": `{"lease":"1","fence":"1"}`,
	}
	reads := 0
	for _, service := range []protoreflect.ServiceDescriptor{
		quotav1.File_quota_v1_quota_proto.Services().Get(0), quotav1.File_quota_v1_admin_proto.Services().Get(0),
		quotav1.File_quota_v1_task_proto.Services().Get(0),
	} {
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			options, _ := method.Options().(*descriptorpb.MethodOptions)
			poll := options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
			message := messages[string(method.Name())]
			if message == "" {
				message = "{}"
			}
			path := "/" + string(service.FullName()) + "/" + string(method.Name())
			for _, n := range nodes {
				status, body := get(t, n.url+path+"?connect=v1&encoding=json&message="+url.QueryEscape(message))
				if poll != (status == http.StatusOK) {
					t.Errorf("GET %s at %s: %d %s", path, n.node.ID(), status, body)
				}
			}
			if poll {
				reads++
			}
		}
	}
	if reads < 7 {
		t.Errorf("%d calls are looks", reads)
	}
}

// TestReads_StaleStayAtTheirNode: stale reads need no leader.
func TestReads_StaleStayAtTheirNode(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	for _, n := range nodes {
		api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url, persistent)
		res, err := api.ListQuotas(t.Context(), &quotav1.ListQuotasRequest{Read: quotav1.ReadMode_READ_MODE_STALE})
		if err != nil || res.Meta.Node != n.node.ID() {
			t.Errorf("%v %v at %s", res, err, n.node.ID())
		}
	}
}

// TestHealth_WithAndWithoutLeader: a process without a majority is alive, but not ready. Each check has a name by which it can be left
// out.
func TestHealth_WithAndWithoutLeader(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	for _, n := range nodes {
		eventually(t, "ready", func() bool {
			status, _ := get(t, n.url+"/readyz")
			return status == http.StatusOK
		})
	}
	for _, n := range nodes[1:] {
		n.kill()
	}
	alone := nodes[0]
	eventually(t, "not ready without a majority", func() bool {
		status, _ := get(t, alone.url+"/readyz")
		return status == http.StatusServiceUnavailable
	})
	if status, body := get(t, alone.url+"/livez"); status != http.StatusOK {
		t.Errorf("/livez: %d %s", status, body)
	}
	_, body := get(t, alone.url+"/readyz")
	exclude := url.Values{}
	for line := range strings.Lines(body) {
		if rest, failed := strings.CutPrefix(line, "[-]"); failed {
			exclude.Add("exclude", strings.Fields(rest)[0])
		}
	}
	if status, body := get(t, alone.url+"/readyz?"+exclude.Encode()); status != http.StatusOK {
		t.Errorf("with the failed checks left out: %d %s", status, body)
	}
	res, err := quotav1connect.NewAdminServiceClient(http.DefaultClient, alone.url).GetStatus(t.Context(), &quotav1.GetStatusRequest{})
	if err != nil || len(res.Members) != 3 {
		t.Errorf("the status without a majority: %v %v", res, err)
	}
}

// TestHealth_OfGRPC: load balancers can use gRPC's own health protocol.
func TestHealth_OfGRPC(t *testing.T) {
	n := newNodes(t, 1)[0]
	client := grpchealth.NewClient(h2c(t), n.url, connect.WithGRPC())
	ask := func(service string) (grpchealth.Status, error) {
		res, err := client.Check(t.Context(), &grpchealth.CheckRequest{Service: service})
		if err != nil {
			return 0, err
		}
		return res.Status, nil
	}
	eventually(t, "ready", func() bool {
		status, _ := get(t, n.url+"/readyz")
		return status == http.StatusOK
	})
	watched := client.Watch(t.Context(), &grpchealth.CheckRequest{})
	if event := <-watched; event.Err != nil || event.Response.Status != grpchealth.StatusServing {
		t.Errorf("watched: %+v", event)
	}
	for _, service := range []string{"", quotav1connect.QuotaServiceName, quotav1connect.AdminServiceName, quotav1connect.TaskServiceName} {
		if status, err := ask(service); err != nil || status != grpchealth.StatusServing {
			t.Errorf("%q: %v %v", service, status, err)
		}
	}
	if status, err := ask("nobody"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("an unknown service: %v %v", status, err)
	}
	if err := n.server.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"", quotav1connect.QuotaServiceName} {
		if status, err := ask(service); err != nil || status != grpchealth.StatusNotServing {
			t.Errorf("%q while it stops: %v %v", service, status, err)
		}
	}
}

// TestReflection lists the services and their schema, for grpcurl and similar tools.
func TestReflection(t *testing.T) {
	n := newNodes(t, 1)[0]
	stream := grpcreflect.NewClient(h2c(t), n.url).NewStream(t.Context())
	defer func() { _, _ = stream.Close() }()
	names, err := stream.ListServices()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []protoreflect.FullName{
		quotav1connect.QuotaServiceName, quotav1connect.AdminServiceName, quotav1connect.TaskServiceName, "grpc.health.v1.Health",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("%v has no %s", names, want)
		}
	}
	files, err := stream.FileContainingSymbol("quota.v1.ReserveRequest")
	if err != nil || len(files) == 0 {
		t.Errorf("%v %v", files, err)
	}
}

// TestMetrics_CountProcedures: calls count whatever their outcome, under names of procedures only.
func TestMetrics_CountProcedures(t *testing.T) {
	n := newNodes(t, 1)[0]
	for _, body := range []string{`{`, `{"holder":"a","items":[{"quota":"nowhere"}]}`} {
		_, _ = post(t, n.url, reservePath, body)
	}
	_, _ = post(t, n.url, "/quota.v1.QuotaService/Nonsense", `{}`)
	text := ""
	for _, want := range []string{
		`quotad_api_calls_total{code="invalid_argument",procedure="Reserve"} 1`,
		`quotad_api_calls_total{code="not_found",procedure="Reserve"} 1`, "quotad_api_calls_in_flight 0", "quotad_api_waiting 0",
	} {
		eventually(t, want, func() bool { // a call ends after its answer
			res := httptest.NewRecorder()
			n.server.Handler().ServeHTTP(res, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			text = res.Body.String()
			return strings.Contains(text, want)
		})
	}
	if strings.Contains(text, "Nonsense") {
		t.Error("a name that a caller made up became a label")
	}
}

// TestFaults_NeedTestingMode: a process that was not started for testing refuses the calls of fault suites.
func TestFaults_NeedTestingMode(t *testing.T) {
	n := newNodes(t, 1)[0]
	n.kill()
	n.config.Testing = false
	n.again(t)
	admin := quotav1connect.NewAdminServiceClient(http.DefaultClient, n.url, persistent)
	ahead := durationpb.New(time.Hour)
	_, hashed := admin.GetStateHash(t.Context(), &quotav1.GetStateHashRequest{})
	_, faulty := admin.SetFault(t.Context(), &quotav1.SetFaultRequest{WallOffset: ahead})
	stream, dumped := admin.DumpLog(t.Context(), &quotav1.DumpLogRequest{})
	if dumped == nil {
		for stream.Receive() {
			t.Errorf("an entry: %v", stream.Msg())
		}
		dumped = stream.Err()
		_ = stream.Close()
	}
	for name, err := range map[string]error{"a hash": hashed, "a fault": faulty, "a dump": dumped} {
		if got := reasonOf(t, err); got != quotav1.Reason_REASON_TESTING_ONLY {
			t.Errorf("%s: %v", name, err)
		}
	}
}
