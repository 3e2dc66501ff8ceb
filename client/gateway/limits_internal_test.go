package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/gateway/config"
)

// TestPatience_AStreamMayBeSilent: a client's deadline applies to single writes and reads. Longer silence, as while a model reasons,
// ends no stream, over either protocol.
func TestPatience_AStreamMayBeSilent(t *testing.T) {
	const patience = 300 * time.Millisecond
	for _, protocol := range []int{1, 2} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			patient := newPatientWriter(w, r, patience)
			defer patient.begin()
			body := &patientBody{ReadCloser: r.Body, control: patient.control, patience: patience}
			if _, err := io.ReadFull(body, make([]byte, 5)); err != nil {
				t.Errorf("HTTP/%d: the request's body: %v", protocol, err)
			}
			for _, part := range []string{"one,", "two,", "three"} {
				_, err := io.WriteString(patient, part)
				if err == nil {
					err = http.NewResponseController(patient).Flush()
				}
				if err != nil {
					t.Errorf("HTTP/%d: writing %q: %v", protocol, part, err)
				}
				time.Sleep(2 * patience) //nolint:forbidigo // the silence is what is tested
			}
		}))
		server.EnableHTTP2 = protocol == 2
		server.StartTLS()
		in, out := io.Pipe()
		go func() { _, _ = io.WriteString(out, "asked"); _ = out.Close() }()
		response, err := server.Client().Post(server.URL, "text/plain", in)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		if response.ProtoMajor != protocol || string(got) != "one,two,three" || err != nil {
			t.Errorf("HTTP/%d: %q, %v", response.ProtoMajor, got, err)
		}
		_ = response.Body.Close()
		server.Close()
	}
}

// TestPatience_AnInformationalAnswerMayBeLate: it has a deadline of its own, however long the call waited before.
func TestPatience_AnInformationalAnswerMayBeLate(t *testing.T) {
	const patience = 300 * time.Millisecond
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		patient := newPatientWriter(w, r, patience)
		defer patient.begin()
		time.Sleep(2 * patience) //nolint:forbidigo // the silence is what is tested
		patient.WriteHeader(http.StatusProcessing)
		_, _ = io.WriteString(patient, "answer")
	}))
	defer server.Close()
	response, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if got, err := io.ReadAll(response.Body); string(got) != "answer" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestIsAway_OnlyWithoutAnswer: only a cluster that does not answer lets calls pass ungoverned. One that refuses, or has no room, answers.
func TestIsAway_OnlyWithoutAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		away bool
	}{
		"nothing was heard":     {&client.NotAcceptedError{Err: context.DeadlineExceeded}, true},
		"no leader":             {&client.NotAcceptedError{Reason: client.ReasonNoLeader, Err: errors.New("no leader is known")}, true},
		"unknown":               {&client.UnknownOutcomeError{Err: io.ErrUnexpectedEOF}, true},
		"refused":               {&client.RefusalError{Reason: client.ReasonExhausted}, false},
		"wrong":                 {&client.RequestError{Reason: client.ReasonUnknownQuota}, false},
		"late":                  {client.ErrLate, false},
		"the caller's budget":   {&client.NotAcceptedError{Reason: client.ReasonCallerBudget, Err: errors.New("processor")}, false},
		"a full queue":          {fmt.Errorf("asking: %w", &client.NotAcceptedError{Reason: client.ReasonOverloaded}), false},
		"sessions":              {&client.NotAcceptedError{Reason: client.ReasonSessionsFull}, false},
		"too many in flight":    {&client.NotAcceptedError{Reason: client.ReasonTooManyInFlight}, false},
		"memory":                {&client.NotAcceptedError{Reason: client.ReasonMemoryFull}, false},
		"the client has left":   {context.Canceled, false},
		"the gateway is ending": {errStopping, false},
	} {
		if got := isAway(c.err); got != c.away {
			t.Errorf("%s: away is %t", name, got)
		}
		refusal, _ := (&call{gateway: &Gateway{cluster: &nodes{}}}).refusalOf(c.err)
		if reported := refusal.Reason == "CLUSTER_AWAY"; reported != c.away {
			t.Errorf("%s: told %+v", name, refusal)
		}
	}
}

// TestReload_AnOutageContinues: a reload keeps the start of an outage, its spent amounts, and its passed calls; the new bounds apply at
// once.
func TestReload_AnOutageContinues(t *testing.T) {
	began := time.Now()
	f := newFailOpen(&config.FailOpen{Count: 2, Per: time.Minute, For: 10 * time.Minute})
	passes := func(after time.Duration) bool {
		ok, _ := f.allow(began.Add(after))
		return ok
	}
	if !passes(0) || !passes(time.Second) || passes(2*time.Second) {
		t.Fatal("two pass in a minute")
	}
	key := spentKey{quota: "q"}
	f.spend(map[spentKey]int64{key: 3})
	f.reconfigure(&config.FailOpen{Count: 3, Per: time.Minute, For: 5 * time.Minute})
	if !passes(3*time.Second) || passes(4*time.Second) || !passes(time.Minute) {
		t.Error("three pass in a minute then, of which two had passed before")
	}
	f.reconfigure(&config.FailOpen{Count: 1, Per: time.Minute, For: 5 * time.Minute})
	if passes(time.Minute+time.Second) || !passes(2*time.Minute+time.Second) || passes(6*time.Minute) {
		t.Error("one passes in a minute then, for five minutes since the outage began")
	}
	f.reconfigure(nil)
	if passes(3 * time.Minute) {
		t.Error("nothing passes any more")
	}
	if spent, count := f.back(); spent[key] != 3 || count != 5 {
		t.Errorf("%d calls spent %v", count, spent)
	}
}

// TestChargeAll_WaitsForQuotasThatAreClosed: amounts spent without the cluster are charged once possible, however long a cooldown
// lasts.
func TestChargeAll_WaitsForQuotasThatAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		g := &Gateway{logger: slog.New(slog.NewTextHandler(&log, nil))}
		g.ctx, g.cancel = context.WithCancel(t.Context())
		defer g.cancel()
		began := time.Now()
		spent := map[spentKey]int64{{quota: "wrong"}: 1}
		for i := range 3 * charges {
			spent[spentKey{quota: fmt.Sprint("open-", i)}] = int64(i)
			spent[spentKey{quota: fmt.Sprint("closed-", i)}] = int64(i)
		}
		var mu sync.Mutex
		charged := map[string]int64{}
		g.chargeAll(spent, func(ctx context.Context, key spentKey, amount int64) error {
			after := time.Since(began)
			switch {
			case key.quota == "wrong":
				return &client.RequestError{Reason: client.ReasonNotAllowed}
			case strings.HasPrefix(key.quota, "closed-") && after < time.Hour:
				_ = sleep(ctx, settleWithin) // in the queue
				return &client.RefusalError{Reason: client.ReasonCooldown, RetryAfter: time.Hour - after}
			case after < 2*time.Hour && key.quota == "closed-1":
				return context.DeadlineExceeded // away again
			}
			mu.Lock()
			defer mu.Unlock()
			charged[key.quota] += amount
			return nil
		})
		if len(charged) != 6*charges {
			t.Errorf("%d quotas are charged, want %d", len(charged), 6*charges)
		}
		for key, amount := range spent {
			if got := charged[key.quota]; got != amount && key.quota != "wrong" {
				t.Errorf("%s is charged with %d, want %d", key.quota, got, amount)
			}
		}
		if n := strings.Count(log.String(), "could not charge"); n != 1 || !strings.Contains(log.String(), "quota=wrong") {
			t.Errorf("the log says %s", &log)
		}
	})
}
