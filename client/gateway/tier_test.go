package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/rpc/quotav1"
)

// tier starts a gateway for tests of its own routes.
func tier(t *testing.T) *fixture {
	t.Helper()
	return tierOf(t, 0)
}

// tierOf is tier with a lease length; 0: the default.
func tierOf(t *testing.T, lease time.Duration) *fixture {
	t.Helper()
	c := startCluster(t, rate("t/core", 100), tokens("t/tokens", 10_000), slots("t/slots", 2), ratePer("t/small", 1, time.Hour))
	p := startProvider(t, speak(200, `{}`))
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")})
	conf.Lease = lease
	return startGateway(t, c, p, conf, gateway.Options{})
}

func TestTake_AllowsRefusesAndKnowsQuotas(t *testing.T) {
	f := tier(t)
	for name, want := range map[string]struct {
		path, body string
		status     int
		says       string
	}{
		"from a batch":  {"/take?quota=t/core", "", 200, `"spendIn":"`},
		"by name":       {"/take?quota=t/core&holder=picard&amount=3", "", 200, `"spendIn":"`},
		"several":       {"/take", `{"items":[{"quota":"t/core","amount":2},{"quota":"t/tokens","amount":5}]}`, 200, `"spendIn":"`},
		"unknown quota": {"/take?quota=t/none", "", 404, "the cluster has no quota"},
		"slots":         {"/take?quota=t/slots", "", 400, "use POST /slots"},
		"never fits":    {"/take?quota=t/core&amount=101&wait=0", "", 429, "NEVER_FITS"},
		"no quota":      {"/take", "", 400, "name 1 to 64 quotas"},
		"class":         {"/take?quota=t/core&class=urgent", "", 400, "is not a class"},
		"another place": {"/take?quota=t/core&holder=x@node-9", "", 403, "*@node-7"},
	} {
		t.Run(name, func(t *testing.T) {
			got := f.do(http.MethodPost, want.path, want.body)
			if got.status != want.status || !strings.Contains(got.body, want.says) {
				t.Errorf("got %d %s", got.status, got.body)
			}
			if got.header.Get("Cache-Control") != "no-store" {
				t.Error("the answer may be stored")
			}
		})
	}
	if got := f.do(http.MethodGet, "/take?quota=t/core", ""); got.status != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", got.status)
	}
	for i, want := range []int{200, 429} {
		got := f.do(http.MethodPost, "/take?quota=t/small&wait=0", "")
		if got.status != want || want == 429 && got.header.Get("Retry-After") == "" {
			t.Errorf("take %d: %d %s", i, got.status, got.body)
		}
	}
}

func TestTake_NamesSpendByOfBatch(t *testing.T) {
	quota := rate("t/brief", 100)
	quota.SpendBy, quota.Transit = durationpb.New(10*time.Second), durationpb.New(8*time.Second)
	c := startCluster(t, quota)
	p := startProvider(t, speak(200, `{}`))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	for _, path := range []string{
		"/take?quota=t/brief", "/take?quota=t/brief", "/take?quota=t/brief&wait=0", "/take?quota=t/brief&holder=picard",
	} {
		got := f.do(http.MethodPost, path, "")
		var said struct{ SpendIn string }
		if err := json.Unmarshal([]byte(got.body), &said); err != nil || got.status != 200 {
			t.Fatalf("%s: got %d %s", path, got.status, got.body)
		}
		// The call must reach the provider within the spend-by, and may take as long as the transit.
		if left, err := time.ParseDuration(said.SpendIn); err != nil || left > 2*time.Second {
			t.Errorf("%s: the call may be made within %s (%v), of a spend-by of 10s less a transit of 8s", path, said.SpendIn, err)
		}
	}
}

// TestOwnRoutes_ShowForecast: a take, from a batch or alone, has the cluster's forecast. A refusal also has it in a header, for
// callers that get the provider's form.
func TestOwnRoutes_ShowForecast(t *testing.T) {
	quota := rate("openai/gpt-5/requests", 600)
	quota.Policy = &quotav1.Policy{Prediction: &quotav1.Prediction{}}
	c := startCluster(t, quota)
	p := startProvider(t, speak(200, chatAnswer))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	const take = "/take?quota=openai/gpt-5/requests"
	for range 4 {
		if got := f.do(http.MethodPost, take+"&amount=100&holder=picard", ""); got.status != http.StatusOK {
			t.Fatalf("got %d %s", got.status, got.body)
		}
	}
	predicts := func(name, text string) {
		t.Helper()
		var said struct{ Forecast *dialect.Forecast }
		if err := json.Unmarshal([]byte(text), &said); err != nil || said.Forecast == nil {
			t.Fatalf("%s: got %s (%v)", name, text, err)
		}
		left, err := time.ParseDuration(said.Forecast.ExhaustedIn)
		if said.Forecast.Quota != quota.Name || said.Forecast.Smaller <= 0 || said.Forecast.Smaller > 1 || err != nil || left <= 0 {
			t.Errorf("%s: got %s (%v)", name, text, err)
		}
	}
	predicts("alone", f.do(http.MethodPost, take+"&holder=picard", "").body)
	predicts("from a batch", f.do(http.MethodPost, take, "").body)
	refused := f.do(http.MethodPost, take+"&amount=300&wait=0&holder=picard", "")
	predicts("a refusal", refused.body)
	said := refused.header.Get("X-Quotad-Forecast")
	if refused.status != http.StatusTooManyRequests || !strings.HasPrefix(said, `quota="openai/gpt-5/requests"; exhausted-in=`) {
		t.Errorf("a refused take: %d, X-Quotad-Forecast is %q", refused.status, said)
	}
}

func TestTake_IsSettledByUsage(t *testing.T) {
	f := tier(t)
	got := f.do(http.MethodPost, "/take", `{"quota":"t/tokens","amount":900,"settle":true}`)
	var said struct{ ID string }
	if err := json.Unmarshal([]byte(got.body), &said); err != nil || said.ID == "" {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	settle := `{"id":"` + said.ID + `","actual":[{"quota":"t/tokens","amount":40}]}`
	if got := f.do(http.MethodPost, "/take/settle", settle); got.status != 200 {
		t.Fatalf("settling: %d %s", got.status, got.body)
	}
	f.cluster.consumed("t/tokens", 40)
	if got := f.do(http.MethodPost, "/take/settle", settle); got.status != 404 {
		t.Errorf("settling twice: %d %s", got.status, got.body)
	}
}

// TestOwnRoutes_RefuseUnknownNames: the error names a misspelt name, and the rest of the request takes, holds or settles nothing.
func TestOwnRoutes_RefuseUnknownNames(t *testing.T) {
	f := tier(t)
	kept := f.do(http.MethodPost, "/take", `{"quota":"t/tokens","amount":900,"settle":true}`)
	var take struct{ ID string }
	if err := json.Unmarshal([]byte(kept.body), &take); err != nil || take.ID == "" {
		t.Fatal(kept, err)
	}
	settles := func(actual string) string { return `{"id":"` + take.ID + `","actual":[` + actual + `]}` }
	for name, want := range map[string]struct{ path, body, says string }{
		"amount in the query":         {"/take?quota=t/core&amuont=5", "", `parameter \"amuont\" is unknown; known: quota, amount`},
		"quota in the query":          {"/take?qouta=t/core", "", `\"qouta\" is unknown`},
		"settle in the query":         {"/take?quota=t/core&settel=1", "", `\"settel\" is unknown`},
		"settle that is none":         {"/take?quota=t/core&settle=maybe", "", `settle must be 1 or 0, not \"maybe\"`},
		"two quotas":                  {"/take?quota=t/core&quota=t/tokens", "", `repeats quota: name several as {\"items\":`},
		"two amounts":                 {"/take?quota=t/core&amount=1&amount=2", "", "repeats amount"},
		"slots: two quotas":           {"/slots?quota=t/slots&quota=t/slots", "", "repeats quota"},
		"an amount of 0":              {"/take?quota=t/core&amount=0", "", "at least 1"},
		"an amount alone":             {"/take?amount=5", `{"items":[{"quota":"t/core"}]}`, "amount needs a quota"},
		"a query that cannot be read": {"/take?quota=t/core&amount=%zz", "", "not percent-encoded"},
		"amount in JSON":              {"/take", `{"quota":"t/core","amuont":5}`, `unknown field \"amuont\"`},
		"amount in an item":           {"/take", `{"items":[{"quota":"t/core","amuont":5}]}`, `unknown field \"amuont\"`},
		"an amount of 0 in JSON":      {"/take", `{"quota":"t/core","amount":0}`, "at least 1"},
		"an amount as text":           {"/take", `{"quota":"t/core","amount":"5"}`, "amount cannot be a string"},
		"settle as text":              {"/take", `{"quota":"t/core","settle":"true"}`, "settle cannot be a string"},
		"a form":                      {"/take?quota=t/core", "amount=5", "the body is not JSON"},
		"two values":                  {"/take", `{"quota":"t/core"}{"amount":5}`, "more data follows"},
		"slots: amount":               {"/slots?quota=t/slots&amuont=2", "", `\"amuont\" is unknown`},
		"slots: settle":               {"/slots?quota=t/slots&settle=1", "", `\"settle\" is unknown`},
		"slots of a rate":             {"/slots?quota=t/core&amount=3", "", "t/core is not of kind slots: use POST /take"},
		"slots and a rate":            {"/slots", `{"items":[{"quota":"t/slots"},{"quota":"t/core"}]}`, "t/core is not of kind slots"},
		"a take of slots and a rate":  {"/take", `{"items":[{"quota":"t/core"},{"quota":"t/slots"}]}`, "t/slots is of kind slots"},
		"settle: another quota":       {"/take/settle", settles(`{"quota":"t/tokenz","amount":40}`), `did not name the quota \"t/tokenz\"`},
		"settle: a quota twice": {
			"/take/settle", settles(`{"quota":"t/tokens","amount":4},{"quota":"t/tokens","amount":0}`), "is repeated",
		},
		"settle: amount":               {"/take/settle", settles(`{"quota":"t/tokens","amuont":40}`), `unknown field \"amuont\"`},
		"settle: no amount":            {"/take/settle", settles(`{"quota":"t/tokens"}`), "actual amount"},
		"settle: actual":               {"/take/settle", `{"id":"` + take.ID + `","actaul":[]}`, `unknown field \"actaul\"`},
		"settle: no id":                {"/take/settle", `{"actual":[{"quota":"t/tokens","amount":4}]}`, "id of the take is missing"},
		"settle: in the query":         {"/take/settle?id=" + take.ID, "", "parameter"},
		"settle: nothing":              {"/take/settle", "", "the body is not JSON"},
		"report: a member of its JSON": {"/report?quota=t/core", `{"status":429,"header":{"retry-after":"30"}}`, `unknown field \"header\"`},
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range []string{"application/json", "application/x-www-form-urlencoded", "application/octet-stream"} {
				got := f.do(http.MethodPost, want.path, want.body, "Content-Type", kind)
				if got.status != http.StatusBadRequest || !strings.Contains(got.body, want.says) {
					t.Errorf("%s: got %d %s", kind, got.status, got.body)
				}
			}
		})
	}
	if q := f.cluster.quota("t/core"); q.Consumed != 0 || q.Leases != 0 || q.CooldownLeft != 0 {
		t.Errorf("t/core is %+v", q)
	}
	if q := f.cluster.quota("t/slots"); q.Available != 2 {
		t.Errorf("%d slots are available", q.Available)
	}
	// The take still waits for its settlement, and JSON is accepted with any type and white space.
	got := f.do(http.MethodPost, "/take/settle?key=made-up", "\n "+settles(`{"quota":"t/tokens","amount":40}`), "Content-Type", "text/plain")
	if got.status != http.StatusOK {
		t.Fatalf("settling: %d %s", got.status, got.body)
	}
	f.cluster.consumed("t/tokens", 40)
	for _, request := range [][2]string{
		{"/take?quota=t/core&settle=true&key=made-up", ""}, {"/take", " {\"quota\":\"t/core\"}\n"}, {"/take?quota=t/core&settle=0", ""},
	} {
		got := f.do(http.MethodPost, request[0], request[1], "Content-Type", "application/octet-stream")
		if got.status != http.StatusOK || strings.Contains(got.body, `"id"`) != strings.Contains(request[0], "settle=true") {
			t.Errorf("%v: got %d %s", request, got.status, got.body)
		}
	}
}

func TestA32_SlotIsFreeOnceItsConnectionIsGone(t *testing.T) {
	f := tierOf(t, time.Hour) // so that no lease's end frees the slot
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("curl is not installed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, curl, "-sN", "-X", "POST", f.url+"/slots?quota=t/slots")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line, `"lease":"`) || !strings.Contains(line, `"fence":"`) {
		t.Fatalf("got %q, %v", line, err)
	}
	if q := f.cluster.quota("t/slots"); q.Available != 1 {
		t.Fatalf("%d slots are available", q.Available)
	}
	cancel() // SIGKILL
	_ = cmd.Wait()
	eventually(t, "the slot is free", func() bool { return f.cluster.quota("t/slots").Available == 2 })
}

func TestAPI_IsPassedToTheCluster(t *testing.T) {
	f := tier(t)
	got := f.do(http.MethodPost, "/quota.v1.QuotaService/GetQuota", `{"name":"t/core"}`)
	if got.status != 200 || !strings.Contains(got.body, `"usable"`) {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	// A Go client needs only the gateway's address.
	asks, err := client.New([]string{strings.TrimPrefix(f.url, "http://")}, client.WithHolder("x@node-7"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = asks.Close() }()
	lease, err := asks.Reserve(t.Context(), client.ReserveRequest{Items: []client.Item{{Quota: "t/core", Amount: 7}}, Consume: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lease.Operation().Settle(t.Context(), client.Settlement{Final: true, Release: true}); err != nil {
		t.Fatal(err)
	}
	f.cluster.consumed("t/core", 7)
}

func TestStatus_ShowsNoSecretsAndNeedsAToken(t *testing.T) {
	f := openAI(t, speak(200, chatAnswer), nil)
	f.do(http.MethodPost, forms["openai"].path, `{"model":"gpt-6","input":"the prompt"}`, "Authorization", "Bearer sk-made-up")
	for _, format := range []string{"", "?format=json"} {
		got := f.do(http.MethodGet, "/status"+format, "")
		if got.status != 200 || !strings.Contains(got.body, "openai/gpt-5") || !strings.Contains(got.body, "gpt-6") {
			t.Errorf("got %d %s", got.status, got.body)
		}
		if strings.Contains(got.body, "sk-made-up") || strings.Contains(got.body, "the prompt") || strings.Contains(got.body, "<script") {
			t.Errorf("the status shows too much: %s", got.body)
		}
	}
}

func TestTake_CountsUntilItsSpendBy(t *testing.T) {
	quota := ratePer("t/core", 1, 10*time.Minute)
	quota.SpendBy = durationpb.New(10 * time.Minute)
	c := startCluster(t, quota)
	p := startProvider(t, speak(200, `{}`))
	f := startGateway(t, c, p, configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai")}), gateway.Options{})
	const path = "/take?quota=t/core&holder=picard&wait=0"
	if got := f.do(http.MethodPost, path, ""); got.status != http.StatusOK {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	eventually(t, "the lease has ended", func() bool { return c.quota("t/core").Leases == 0 })
	// The process may spend its amount until the spend-by, and the period counts from then.
	got := f.do(http.MethodPost, path, "")
	seconds, err := strconv.Atoi(got.header.Get("Retry-After"))
	if got.status != http.StatusTooManyRequests || err != nil || seconds <= 11*60 {
		t.Errorf("got %d, Retry-After %d, %v: %s", got.status, seconds, err, got.body)
	}
}

// TestOwnRoutes_AreCallsInFlight: requests that wait or take memory count under limits.calls, settlements do not. Slots stay held while
// the gateway drains, and no new ones are taken.
func TestOwnRoutes_AreCallsInFlight(t *testing.T) {
	c := startCluster(t, rate("t/core", 100), slots("t/slots", 2))
	conf := configOf(c, map[string]config.Upstream{"t": upstreamOf(startProvider(t, speak(200, `{}`)), "generic")})
	conf.Limits.Calls = 1
	f := startGateway(t, c, nil, conf, gateway.Options{})
	kept := f.do(http.MethodPost, "/take?quota=t/core&settle=1", "")
	var take struct{ ID string }
	if err := json.Unmarshal([]byte(kept.body), &take); err != nil || take.ID == "" {
		t.Fatal(kept, err)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	held := f.open(ctx, "/slots?quota=t/slots", "")
	first, err := bufio.NewReader(held.Body).ReadString('\n')
	if err != nil || !strings.Contains(first, "lease") {
		t.Fatal(first, err)
	}
	for _, path := range []string{"/take?quota=t/core", "/slots?quota=t/slots", "/quota.v1.QuotaService/ListQuotas"} {
		if got := f.do(http.MethodPost, path, "{}"); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "limits.calls") {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	if got := f.do(http.MethodPost, "/take/settle", fmt.Sprintf(`{"id":%q}`, take.ID)); got.status != http.StatusOK {
		t.Errorf("settling: %d %s", got.status, got.body)
	}
	f.gateway.Stop()
	got := f.do(http.MethodPost, "/take?quota=t/core", "")
	if got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "stopping") {
		t.Errorf("a take: %d %s", got.status, got.body)
	}
	drained := make(chan error, 1)
	go func() { drained <- f.gateway.Drained(t.Context()) }()
	if q := c.quota("t/slots"); q.Available != 1 {
		t.Errorf("%d slots are available while the gateway drains", q.Available)
	}
	leave()
	if err := <-drained; err != nil {
		t.Error(err)
	}
	eventually(t, "the slot is free", func() bool { return c.quota("t/slots").Available == 2 })
}

// TestOwnRoutes_ReadNothingOfUnknownCallers: a client that waits for 100 Continue shows whether its body was requested.
func TestOwnRoutes_ReadNothingOfUnknownCallers(t *testing.T) {
	conf := configOf(startCluster(t), map[string]config.Upstream{"openai": {}})
	conf.Tokens = "tokens.yaml"
	f := startGateway(t, nil, nil, conf, gateway.Options{Tokens: someTokens{"qtd_red_x": {ID: "red", Pattern: "*"}}})
	for _, path := range []string{"/take", "/take/settle", "/slots", "/report", "/quota.v1.QuotaService/ListQuotas", "/openai/v1/responses"} {
		for token, want := range map[string]string{"qtd_red_x": "100", "qtd_red_y": "401"} {
			if strings.HasPrefix(path, "/quota.v1.") && want == "100" {
				continue // the cluster checks the tokens of its API
			}
			header := "X-Quotad-Token: " + token
			got := raw(t, "tcp", strings.TrimPrefix(f.url, "http://"), "POST "+path+" HTTP/1.1\r\nHost: localhost\r\n"+header+
				"\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n", 1)
			if len(got) != 1 || got[0] != want {
				t.Errorf("%s with %s: got %v, want %s", path, token, got, want)
			}
		}
	}
}

// TestOwnRoutes_TakeMemoryThatIsThere: a settlement returns amounts, so it is served even without free memory.
func TestOwnRoutes_TakeMemoryThatIsThere(t *testing.T) {
	c := startCluster(t, rate("t/core", 100))
	conf := configOf(c, map[string]config.Upstream{"t": upstreamOf(startProvider(t, speak(200, `{}`)), "generic")})
	conf.Limits.Body, conf.Limits.Memory = 1<<10, 1<<10
	f := startGateway(t, c, nil, conf, gateway.Options{})
	space := strings.Repeat(" ", 2<<10)
	for path, want := range map[string]int{
		"/take?quota=t/core": 503, "/slots?quota=t/core": 503, "/report?quota=t/core": 503, "/quota.v1.QuotaService/ListQuotas": 503,
		"/take/settle": 404,
	} {
		body := `{"status":200` + space + `}`
		if path == "/take/settle" {
			body = `{"id":"none"` + space + `}`
		}
		if got := f.do(http.MethodPost, path, body); got.status != want || want == 503 && !strings.Contains(got.body, "limits.memory") {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	if got := f.do(http.MethodPost, "/take?quota=t/core", "{}"); got.status != 200 {
		t.Errorf("a take that fits: %d %s", got.status, got.body)
	}
}

// TestOwnRoutes_SettlementsAreBounded: they have a counter apart from calls, with the same bound.
func TestOwnRoutes_SettlementsAreBounded(t *testing.T) {
	conf := configOf(startCluster(t), map[string]config.Upstream{"openai": {}})
	conf.Limits.Calls = 1
	f := startGateway(t, nil, nil, conf, gateway.Options{})
	body, slow := io.Pipe()
	first := make(chan int, 1)
	go func() {
		response, err := http.Post(f.url+"/take/settle", "application/json", body)
		if err != nil {
			first <- 0
			return
		}
		_ = response.Body.Close()
		first <- response.StatusCode
	}()
	if _, err := slow.Write([]byte(`{"id":`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a second settlement is refused", func() bool {
		got := f.do(http.MethodPost, "/take/settle", `{"id":"none"}`)
		return got.status == 503 && strings.Contains(got.body, "limits.calls") && got.header.Get("Retry-After") == "1"
	})
	if _, err := slow.Write([]byte(`"none"}`)); err != nil {
		t.Fatal(err)
	}
	_ = slow.Close()
	if status := <-first; status != 404 {
		t.Errorf("the first: %d", status)
	}
}
