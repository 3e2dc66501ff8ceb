package workload

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/jepsen/history"
)

// governed uses the Go client as an agent does, and calls the provider, which counts by itself. A third of the actors share a limiter's
// batches, a third use the transport, a third take one of few slots.
func governed(ctx context.Context, w *worker, number int) {
	recorder := &history.Recorder{Next: w.cluster, Client: w.holder(number), To: w.calls}
	c, err := client.New(w.Nodes, client.WithHolder(w.holder(number)), client.WithHTTPClient(&http.Client{Transport: recorder}))
	if err != nil {
		panic(fmt.Sprintf("the client refuses its options: %v", err)) // a defect of the suite
	}
	defer func() { _ = c.Close() }()
	agents := []func(context.Context, *client.Client, *worker, int){limited, transported, slotted}
	agents[number%len(agents)](ctx, c, w, number)
}

// limited asks a limiter before each call.
func limited(ctx context.Context, c *client.Client, w *worker, number int) {
	limiter := c.Limiter(ProviderRate)
	r := w.rand(number)
	for w.rest(ctx, r) {
		if limiter.Wait(ctx) != nil {
			continue
		}
		w.visit(ctx, 0, w.providerClient(w.transport), ProviderRate, number, 0)
	}
}

// transported makes calls through a transport that reserves for them.
func transported(ctx context.Context, c *client.Client, w *worker, number int) {
	item := client.Item{Quota: ProviderRate, Amount: 1}
	governing := client.NewTransport(c, w.transport, client.QueueWait(5*time.Second), client.RetryWait(5*time.Second),
		client.Match(func(*http.Request) client.Call { return client.Call{Items: []client.Item{item}} }))
	r := w.rand(number)
	for w.rest(ctx, r) {
		w.visit(ctx, 20*time.Second, w.providerClient(governing), ProviderRate, number, 0)
	}
}

// slotted holds a slot while it works.
func slotted(ctx context.Context, c *client.Client, w *worker, number int) {
	request := client.ReserveRequest{
		Items: []client.Item{{Quota: ProviderSlotsQuota, Amount: 1}}, TTL: 2 * time.Second, Wait: 3 * time.Second,
	}
	r := w.rand(number)
	for w.rest(ctx, r) {
		work := time.Duration(20+r.IntN(1500)) * time.Millisecond
		_, _ = client.Do(ctx, c, request, func(ctx context.Context, _ *client.Lease) (struct{}, error) {
			w.visit(ctx, 0, w.providerClient(w.transport), ProviderSlotsQuota, number, work)
			return struct{}{}, nil
		})
	}
}

func (w *worker) providerClient(transport http.RoundTripper) *http.Client {
	return &http.Client{Transport: transport}
}

// visit makes one call to the provider, which takes work there. With timeout 0 the bound is work and a second.
func (w *worker) visit(ctx context.Context, timeout time.Duration, c *http.Client, quota string, number int, work time.Duration) {
	if timeout == 0 {
		timeout = work + time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	address := fmt.Sprintf("http://%s/?quota=%s&by=%s&work=%d", w.Provider, quota, w.holder(number), work)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		panic(fmt.Sprintf("the provider's address: %v", err)) // a defect of the suite
	}
	response, err := c.Do(request)
	if err != nil {
		return // the cluster or the provider was not reached in time: nothing was spent, or the provider recorded it
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
}
