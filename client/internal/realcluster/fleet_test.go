package realcluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/providertest"
	"github.com/quotad/quotad/rpc/quotav1"
)

// A fleet calls as fast as its quota allows. A provider that independently enforces GitHub's primary limit refuses none of its calls,
// over the end of a window and while the leader stops.
func TestFleet_NeverMeetsGitHubLimit(t *testing.T) {
	const limit = 200
	hour, runs := 10*time.Second, 22*time.Second // the provider's hour, and the test
	if testing.Short() {
		hour, runs = 5*time.Second, 11*time.Second
	}
	provider, err := providertest.NewServer(providertest.Config{Scale: int(time.Hour / hour), GitHub: providertest.GitHub{
		Core: limit, Points: providertest.Unlimited, Concurrent: providertest.Unlimited,
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = provider.Close() })
	cluster := start(t, 3)
	cluster.apply(&quotav1.Quota{Name: "github/core", Rule: &quotav1.Quota_Window{Window: &quotav1.Window{
		Limit: limit, Every: hour.String(), Anchor: quotav1.Anchor_ANCHOR_PROVIDER, Skew: durationpb.New(500 * time.Millisecond),
	}}})
	ctx, cancel := context.WithTimeout(t.Context(), runs)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		<-time.After(runs / 3)
		cluster.stop(cluster.leader())
	})
	for i := range 3 {
		base := &http.Transport{}
		defer base.CloseIdleConnections()
		c := cluster.client(client.WithHolder(fmt.Sprintf("agent%d", i)))
		agent := &http.Client{Transport: client.NewTransport(c, base, client.GitHub(client.Hosts("127.0.0.1")))}
		for range 3 {
			wg.Go(func() {
				for ctx.Err() == nil {
					request, err := http.NewRequestWithContext(ctx, http.MethodGet, provider.URL+"/repos/a/b", nil)
					if err != nil {
						t.Error(err)
						return
					}
					request.Header.Set("Authorization", "Bearer key")
					if response, err := agent.Do(request); err == nil {
						_, _ = io.Copy(io.Discard, response.Body)
						_ = response.Body.Close()
					}
				}
			})
		}
	}
	wg.Wait()
	admitted := 0
	for _, record := range provider.Records() {
		if record.Verdict != providertest.Admitted {
			t.Errorf("the provider refused: %+v", record)
		}
		admitted++
	}
	if admitted < limit {
		t.Errorf("only %d calls in %v of a limit of %d per %v", admitted, runs, limit, hour)
	}
	t.Logf("%d calls in %v of a limit of %d per %v", admitted, runs, limit, hour)
}
