package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestAttempt_IsKeptAliveUntilItEnds: it is kept alive until its outcome is reported.
func TestAttempt_IsKeptAliveUntilItEnds(t *testing.T) {
	virtual(t, 3, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		ctx := context.Background()
		a, err := c.BeginTask(ctx, TaskRequest{Task: "t", TTL: 10 * time.Second, Quotas: []string{"t/core"}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.BeginTask(ctx, TaskRequest{Task: "t"})
		var refusal *RefusalError
		if !errors.As(err, &refusal) || refusal.Reason != ReasonTaskInFlight || refusal.RetryAfter <= 0 || strings.Contains(err.Error(), "of ,") {
			t.Errorf("%v", err)
		}
		pass(time.Minute)
		if a.Err() != nil || a.Number() != 1 || a.Task() != "t" || a.Fence() == 0 {
			t.Fatalf("%v, attempt %d of %s, fence %d", a.Err(), a.Number(), a.Task(), a.Fence())
		}
		if n := cluster.Executed("renew task"); n < 10 || n > 20 {
			t.Errorf("%d renewals in a minute, for 10 s each", n)
		}
		wait := 4 * time.Hour
		long := strings.Repeat("ä", 200) + "\xff"
		ended, err := a.End(ctx, Ending{Outcome: OutcomePlanExhausted, Wait: &wait, Detail: long, Report: CauseExhausted})
		if err != nil || ended.Done || ended.Shelved || ended.RetryAfter != wait || !errors.Is(a.Err(), ErrAttemptEnded) {
			t.Errorf("%+v, %v, %v", ended, err, a.Err())
		}
		_, reported, _ := cluster.Task("t")
		if len(reported.GetDetail()) != 300 || reported.GetReport() != quotav1.Cause_CAUSE_EXHAUSTED || reported.GetWait().AsDuration() != wait {
			t.Errorf("%v", reported)
		}
		if _, err := a.End(ctx, Ending{Outcome: OutcomePlanExhausted, Wait: &wait}); err != nil {
			t.Errorf("told again: %v", err)
		}
	})
}

// TestBeginTask_RefusesDoneAndShelved: done and shelved ones.
func TestBeginTask_RefusesDoneAndShelved(t *testing.T) {
	virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
		ctx := context.Background()
		for _, outcome := range []Outcome{OutcomeFinishedThenLimited, OutcomeFailed} {
			name := string(rune('a' + outcome))
			a, err := c.BeginTask(ctx, TaskRequest{Task: name})
			if err != nil {
				t.Fatal(err)
			}
			ended, err := a.End(ctx, Ending{Outcome: outcome})
			if err != nil || ended.Done == (outcome == OutcomeFailed) || ended.Shelved != (outcome == OutcomeFailed) || ended.RetryAfter != -1 {
				t.Errorf("%v: %+v, %v", outcome, ended, err)
			}
			_, err = c.BeginTask(ctx, TaskRequest{Task: name})
			if outcome == OutcomeFailed && !errors.Is(err, ReasonTaskShelved) || outcome != OutcomeFailed && !errors.Is(err, ErrTaskDone) {
				t.Errorf("%v: begun again: %v", outcome, err)
			}
		}
	})
}

// TestAttempt_IsLost: by the cluster's answer to the next renewal, by the clock while the cluster is away, and with the client.
func TestAttempt_IsLost(t *testing.T) {
	begin := func(t *testing.T, c *Client) *Attempt {
		t.Helper()
		a, err := c.BeginTask(context.Background(), TaskRequest{Task: "t", TTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	t.Run("forgotten", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			a := begin(t, c)
			cluster.ForgetTask("t")
			<-a.Done()
			if !errors.Is(a.Err(), ReasonStaleFence) {
				t.Errorf("%v", a.Err())
			}
			if _, err := a.End(context.Background(), Ending{Outcome: OutcomeDone}); !errors.Is(err, ReasonStaleFence) {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("away", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			began := time.Now()
			a := begin(t, c)
			cluster.Break(0, fakequota.Silent)
			<-a.Done()
			if took := time.Since(began); !errors.Is(a.Err(), ErrAttemptExpired) || took > 10*time.Second || took < 9*time.Second {
				t.Errorf("%v after %v", a.Err(), took)
			}
		})
	})
	t.Run("away for a while", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
			a := begin(t, c)
			cluster.Break(0, fakequota.Refusing)
			pass(8 * time.Second)
			cluster.Break(0, fakequota.Healthy)
			pass(time.Minute)
			if a.Err() != nil {
				t.Errorf("%v", a.Err())
			}
			_, _ = a.End(context.Background(), Ending{Outcome: OutcomeDone})
		})
	})
	t.Run("closed", func(t *testing.T) {
		virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
			a := begin(t, c)
			_ = c.Close()
			<-a.Done()
			if !errors.Is(a.Err(), ErrClosed) {
				t.Errorf("%v", a.Err())
			}
		})
	})
}

// TestBeginTask_LostAnswerBeginsNoSecondAttempt: nor does the first one count as abandoned.
func TestBeginTask_LostAnswerBeginsNoSecondAttempt(t *testing.T) {
	virtual(t, 3, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		if _, err := c.BeginTask(context.Background(), TaskRequest{Task: "s"}); err != nil { // opens the session
			t.Fatal(err)
		}
		cluster.Break(0, fakequota.Mute)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if _, err := c.BeginTask(ctx, TaskRequest{Task: "t"}); !errors.As(err, new(*UnknownOutcomeError)) {
			t.Errorf("%v", err)
		}
		cluster.Break(0, fakequota.Healthy)
		began := make(chan error, 1)
		cluster.Break(0, fakequota.Mute)
		go func() {
			_, err := c.BeginTask(context.Background(), TaskRequest{Task: "u"})
			began <- err
		}()
		pass(time.Second)
		cluster.Break(0, fakequota.Healthy)
		if err := <-began; err != nil {
			t.Errorf("%v", err)
		}
		if _, _, attempts := cluster.Task("u"); attempts != 1 {
			t.Errorf("%d attempts", attempts)
		}
	})
}

// TestBeginTask_AfterExpiredSession: after hours of idling its session has expired, and nothing was begun under it.
func TestBeginTask_AfterExpiredSession(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		for _, task := range []string{"t", "u"} {
			a, err := c.BeginTask(context.Background(), TaskRequest{Task: task})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.End(context.Background(), Ending{Outcome: OutcomeDone}); err != nil {
				t.Fatal(err)
			}
			cluster.ForgetSessions()
		}
		if _, _, attempts := cluster.Task("u"); attempts != 1 {
			t.Errorf("%d attempts", attempts)
		}
	})
}

// TestBeginTask_FailsWithoutCluster: the error says that nothing happened.
func TestBeginTask_FailsWithoutCluster(t *testing.T) {
	virtual(t, 1, func(t *testing.T, cluster *fakequota.Cluster, c *Client) {
		cluster.Break(0, fakequota.Refusing)
		_, err := c.BeginTask(context.Background(), TaskRequest{Task: "t"})
		if !errors.As(err, new(*NotAcceptedError)) || !errors.Is(err, ErrClusterAway) {
			t.Errorf("%v", err)
		}
	})
}
