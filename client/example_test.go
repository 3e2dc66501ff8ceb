package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/quotatest"
)

// cluster starts a cluster for an example. A real program connects to nodes by address, with client.New.
func cluster() *quotatest.Cluster {
	return quotatest.Start(
		quotatest.Window("github/core", 5_000), quotatest.Rate("t/core", 10, time.Minute), quotatest.Slots("t/streams", 2),
	)
}

func Example() {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello")
	}))
	defer provider.Close()
	nodes := cluster()
	defer nodes.Close()
	c := nodes.Client()
	// Without Hosts, the provider's host is api.github.com.
	github := &http.Client{Transport: client.NewTransport(c, nil, client.GitHub(client.Hosts("127.0.0.1")))}

	response, err := github.Get(provider.URL + "/repos/a/b")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(response.Body)
	fmt.Printf("%s, and %d of 5000 are left\n", body, nodes.Available("github/core"))
	// Output: hello, and 4999 of 5000 are left
}

// Quotas of several clusters: the first part of a quota's name selects the cluster.
func Example_severalClusters() {
	nodes := map[string]*quotatest.Cluster{"github": cluster(), "t": cluster()}
	clusters := map[string]*client.Client{}
	for group, of := range nodes {
		defer of.Close()
		clusters[group] = of.Client()
	}
	of := func(quota string) *client.Client {
		group, _, _ := strings.Cut(quota, "/")
		return clusters[group]
	}
	for _, quota := range []string{"github/core", "t/core"} {
		lease, err := of(quota).Reserve(context.Background(), client.ReserveRequest{Items: []client.Item{{Quota: quota, Amount: 3}}})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer func() { _, _ = lease.Release(context.Background()) }()
	}
	fmt.Println(nodes["github"].Available("github/core"), nodes["t"].Available("t/core"))
	// Output: 4997 7
}

func ExampleClient_Limiter() {
	nodes := cluster()
	defer nodes.Close()
	c := nodes.Client()

	limiter := c.Limiter("t/core")
	for range 3 {
		if err := limiter.Wait(context.Background()); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("call")
	}
	// Output:
	// call
	// call
	// call
}

func ExampleDo() {
	nodes := cluster()
	defer nodes.Close()
	c := nodes.Client()

	request := client.ReserveRequest{Items: []client.Item{{Quota: "t/streams", Amount: 1}}, Wait: time.Minute}
	words, err := client.Do(context.Background(), c, request, func(ctx context.Context, lease *client.Lease) (string, error) {
		return fmt.Sprintf("one of 2 streams, %d is free", nodes.Available("t/streams")), nil
	})
	fmt.Println(words, err)
	// Output: one of 2 streams, 1 is free <nil>
}

func ExampleClient_Reserve() {
	nodes := cluster()
	defer nodes.Close()
	c := nodes.Client()
	ctx := context.Background()

	lease, err := c.Reserve(ctx, client.ReserveRequest{Items: []client.Item{{Quota: "t/core", Amount: 7}}, TTL: 30 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	op, err := lease.Consume(ctx, client.Item{Quota: "t/core", Amount: 5})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A program makes up to 5 calls here, no later than op.LastTake(). This one made 3.
	if _, err := op.Settle(ctx, client.Settlement{Unspent: []client.Item{{Quota: "t/core", Amount: 2}}}); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := lease.Release(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(nodes.Available("t/core"), "of 10 are left")

	_, err = c.Reserve(ctx, client.ReserveRequest{Items: []client.Item{{Quota: "t/core", Amount: 9}}})
	if refusal, ok := errors.AsType[*client.RefusalError](err); ok {
		fmt.Println(refusal.Reason, refusal.Available, errors.Is(err, client.ReasonExhausted))
	}
	// Output:
	// 7 of 10 are left
	// EXHAUSTED 7 true
}

// Several providers under one transport: each call draws on the quotas of the provider that owns its host.
func ExampleNewTransport() {
	nodes := cluster()
	defer nodes.Close()
	c := nodes.Client()
	transport := client.NewTransport(c, nil,
		client.OpenAI(),
		client.Anthropic(client.Alias("claude-opus-4*", "opus-4")),
		client.GitHub(client.Hosts("ghe.corp.example"), client.Prefix("ghe")),
		client.AnswerRefusals(),
	)
	fmt.Println(transport.Stats().Calls)
	// Output: 0
}
