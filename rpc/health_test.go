package rpc_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
)

// TestHealthWatchers_HearOfChanges: all of many watchers learn of a change, through one shared check.
func TestHealthWatchers_HearOfChanges(t *testing.T) {
	n := newNodes(t, 1)[0]
	n.kill()
	var free atomic.Int64
	free.Store(1 << 40)
	n.config.Free = func(string) (int64, error) { return free.Load(), nil }
	n.again(t)
	eventually(t, "ready", func() bool {
		status, _ := get(t, n.url+"/readyz")
		return status == http.StatusOK
	})
	client := grpchealth.NewClient(h2c(t), n.url, connect.WithGRPC())
	var ended, serving, changed sync.WaitGroup
	const watchers = 100
	serving.Add(watchers)
	changed.Add(watchers)
	for range watchers {
		ended.Go(func() {
			heard := make(map[grpchealth.Status]bool)
			for event := range client.Watch(t.Context(), &grpchealth.CheckRequest{}) {
				if event.Err != nil || heard[event.Response.Status] {
					continue
				}
				switch heard[event.Response.Status] = true; event.Response.Status {
				case grpchealth.StatusServing:
					serving.Done()
				case grpchealth.StatusNotServing:
					changed.Done()
				case grpchealth.StatusUnknown:
				}
			}
		})
	}
	serving.Wait()
	free.Store(100 << 20) // nothing new is granted
	changed.Wait()
	if status, body := get(t, n.url+"/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("with a full disk: %d %s", status, body)
	}
	if err := n.server.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended.Wait()
}

// TestMetrics_HaveTheChecks: metrics have each check that /readyz has, with its result.
func TestMetrics_HaveTheChecks(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 2)
	left := nodes[0]
	shows := func(ready string, metric ...string) func() bool {
		return func() bool {
			_, checks := get(t, left.url+"/readyz")
			_, metrics := get(t, left.url+"/metrics")
			shown := strings.Count(metrics, "\nquotad_check{") == strings.Count(checks, "\n")
			for _, m := range metric {
				shown = shown && strings.Contains(metrics, "\n"+m+"\n")
			}
			return shown && strings.Contains(checks, ready)
		}
	}
	eventually(t, "all checks pass", shows("[+]leader ok", `quotad_check{check="leader"} 1`, `quotad_check{check="space"} 1`))
	nodes[1].kill()
	eventually(t, "the check leader fails", shows("[-]leader failed", `quotad_check{check="leader"} 0`, `quotad_check{check="space"} 1`))
}

// TestReady_FailsWhileCallersFail: a node without a majority, which answers every caller that no leader is known, is unready. One
// whose callers are refused for their input is ready.
func TestReady_FailsWhileCallersFail(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes ten seconds until callers count as failed")
	}
	nodes := newNodes(t, 2)
	left := nodes[0]
	ended := make(chan struct{})
	calling, stop := context.WithCancel(t.Context())
	for range 4 { // each waits for a leader to be known
		go func() {
			for calling.Err() == nil {
				postOnce(t, left.url, "/quota.v1.QuotaService/Reserve", `{"holder":"a","items":[{"quota":"none"}]}`)
			}
			ended <- struct{}{}
		}()
	}
	defer func() {
		stop()
		for range 4 {
			<-ended
		}
	}()
	eventually(t, "ready", func() bool {
		status, body := get(t, left.url+"/readyz")
		return status == http.StatusOK && strings.Contains(body, "[+]answers ok")
	})
	nodes[1].kill()
	eventually(t, "callers are failed", func() bool {
		_, body := get(t, left.url+"/readyz")
		return strings.Contains(body, "[-]answers failed: for ")
	})
	nodes[1].again(t)
	eventually(t, "callers are served", func() bool {
		status, body := get(t, left.url+"/readyz")
		return status == http.StatusOK && strings.Contains(body, "[+]answers ok")
	})
}
