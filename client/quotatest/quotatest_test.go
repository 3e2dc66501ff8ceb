package quotatest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/quotatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func one(quota string, n int64) []client.Item { return []client.Item{{Quota: quota, Amount: n}} }

func TestClock_AdvanceRefillsARate(t *testing.T) {
	cluster := quotatest.New(t, quotatest.Rate("t/core", 4, time.Minute))
	c := cluster.Client()
	ask := func() error {
		_, err := c.Reserve(t.Context(), client.ReserveRequest{Items: one("t/core", 2), Consume: true})
		return err
	}
	for range 2 {
		if err := ask(); err != nil {
			t.Fatal(err)
		}
	}
	refusal, ok := errors.AsType[*client.RefusalError](ask())
	if !ok || refusal.Reason != client.ReasonExhausted || refusal.RetryAfter <= 0 {
		t.Fatalf("%+v", refusal)
	}
	cluster.Clock().Advance(refusal.RetryAfter - time.Nanosecond)
	if err := ask(); !errors.Is(err, client.ReasonExhausted) {
		t.Fatalf("before the time that the refusal named: %v", err)
	}
	cluster.Clock().Advance(time.Nanosecond)
	if err := ask(); err != nil {
		t.Fatalf("at the time that the refusal named: %v", err)
	}
}

func TestClock_AdvanceIsPassedOverInOrder(t *testing.T) {
	cluster := quotatest.New(t, quotatest.Slots("t/streams", 1))
	free := cluster.Exhaust("t/streams")
	if got := cluster.Available("t/streams"); got != 0 {
		t.Fatalf("%d are available", got)
	}
	granted := make(chan error, 1)
	go func() {
		_, err := cluster.Client().Reserve(context.Background(), client.ReserveRequest{Items: one("t/streams", 1), Wait: 5 * time.Minute})
		granted <- err
	}()
	waits := func() bool { return cluster.Quota("t/streams").Waiting == 1 }
	eventually(t, "it waits", waits)
	cluster.Clock().Advance(4 * time.Minute)
	if !waits() {
		t.Fatal("nobody waits after 4 minutes")
	}
	free()
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
}

// pass lets time pass in a bubble.
func pass(d time.Duration) { <-time.After(d) }

func TestClock_StandsStillOnceItIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := quotatest.New(t).Clock()
		start := clock.Now()
		passed := func(want time.Duration) {
			t.Helper()
			if got := clock.Now().Sub(start); got != want {
				t.Errorf("%v passed, want %v", got, want)
			}
		}
		pass(time.Minute)
		passed(0)
		ran := time.Now()
		clock.Run()
		clock.Run() // it runs already
		pass(time.Minute)
		want := time.Since(ran)
		passed(want)
		clock.Stop()
		clock.Stop()
		pass(time.Hour)
		passed(want)
		clock.Advance(time.Second)
		passed(want + time.Second)
		ran = time.Now()
		clock.Run()
		pass(time.Second)
		passed(want + time.Second + time.Since(ran))
	})
}

func TestTask_AnAttemptKnowsTheFailuresBeforeIt(t *testing.T) {
	cluster := quotatest.New(t)
	c := cluster.Client()
	for failed := range 3 {
		attempt, err := c.BeginTask(t.Context(), client.TaskRequest{Task: "t", MaxFailures: 3})
		if err != nil {
			t.Fatalf("after %d failures: %v", failed, err)
		}
		if before, most := attempt.Failures(); before != failed || most != 3 {
			t.Errorf("%d of %d failures before, want %d of 3", before, most, failed)
		}
		ended, err := attempt.End(t.Context(), client.Ending{Outcome: client.OutcomeFailed})
		if err != nil || ended.Failures != failed+1 || ended.MaxFailures != 3 || ended.Shelved != (failed == 2) {
			t.Fatalf("failure %d: %+v, %v", failed+1, ended, err)
		}
		cluster.Clock().Advance(max(0, ended.RetryAfter))
	}
	if _, err := c.BeginTask(t.Context(), client.TaskRequest{Task: "t"}); !errors.Is(err, client.ReasonTaskShelved) {
		t.Errorf("after three of three failures: %v", err)
	}
}

func TestClock_AdvanceEndsLeasesAndSessions(t *testing.T) {
	cluster := quotatest.New(t, quotatest.Slots("t/streams", 1))
	c := cluster.Client()
	lease, err := c.Reserve(t.Context(), client.ReserveRequest{Items: one("t/streams", 1), TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	cluster.Clock().Advance(48 * time.Hour)
	if got := cluster.Available("t/streams"); got != 1 {
		t.Errorf("%d are available", got)
	}
	if err := lease.Renew(t.Context(), 0); !errors.Is(err, client.ReasonStaleFence) {
		t.Errorf("%v", err)
	}
	if _, err := c.Reserve(t.Context(), client.ReserveRequest{Items: one("t/streams", 1)}); err != nil {
		t.Errorf("after its session has expired: %v", err)
	}
}

func TestClock_AdvanceOpensTheNextWindow(t *testing.T) {
	cluster := quotatest.New(t, quotatest.Window("t/hour", 10))
	cluster.Exhaust("t/hour")
	if got := cluster.Available("t/hour"); got != 0 {
		t.Fatalf("%d are available", got)
	}
	before := cluster.Clock().Now()
	cluster.Clock().Advance(31 * time.Minute)
	if got := cluster.Available("t/hour"); got != 10 {
		t.Errorf("%d are available in the next hour", got)
	}
	if passed := cluster.Clock().Now().Sub(before); passed != 31*time.Minute {
		t.Errorf("%v have passed", passed)
	}
}

func TestCluster_Cooldown(t *testing.T) {
	cluster := quotatest.New(t, quotatest.Rate("t/core", 100, time.Minute), quotatest.Slots("t/streams", 2))
	c := cluster.Client()
	for _, quota := range []string{"t/core", "t/streams"} {
		cluster.Cooldown(quota, 30*time.Second)
		_, err := c.Reserve(t.Context(), client.ReserveRequest{Items: one(quota, 1)})
		refusal, ok := errors.AsType[*client.RefusalError](err)
		if !ok || refusal.Reason != client.ReasonCooldown || refusal.RetryAfter < 30*time.Second {
			t.Fatalf("%s: %v", quota, err)
		}
		cluster.Clock().Advance(refusal.RetryAfter)
		if _, err := c.Reserve(t.Context(), client.ReserveRequest{Items: one(quota, 1)}); err != nil {
			t.Errorf("%s after its cooldown: %v", quota, err)
		}
	}
}

func TestCluster_URLServesOtherPrograms(t *testing.T) {
	cluster := quotatest.New(t, quotatest.Rate("t/core", 4, time.Minute))
	body := strings.NewReader(`{"holder":"me","items":[{"quota":"t/core","amount":3}]}`)
	other := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := other.Post(cluster.URL()+"/quota.v1.QuotaService/Reserve", "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil || !strings.Contains(string(answer), `"lease"`) || cluster.Available("t/core") != 1 {
		t.Errorf("%s, %v, %d are available", answer, err, cluster.Available("t/core"))
	}
}

// Each piece of Go code of the page occurs in a file that is compiled and run.
func TestPage_ShowsCodeThatRuns(t *testing.T) {
	page, err := os.ReadFile("../../docs/test-your-code.md")
	if err != nil {
		t.Fatal(err)
	}
	var code string
	for _, name := range []string{"page_test.go", "quotatest_test.go"} {
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code += string(file)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("the page shows no code")
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if !strings.Contains(code, block) {
			t.Errorf("the page shows what no file has:\n%s", block)
		}
	}
}

// eventually waits until a condition holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !holds() {
		select {
		case <-poll.C:
		case <-deadline.C:
			tb.Fatalf("never: %s", what)
		}
	}
}
