package quotatest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/quotatest"
)

// summarize is the program under test: it reserves one request before it calls a model.
func summarize(ctx context.Context, c *client.Client) (string, error) {
	_, err := c.Reserve(ctx, client.ReserveRequest{Items: []client.Item{{Quota: "openai/requests", Amount: 1}}, Consume: true})
	if refusal, ok := errors.AsType[*client.RefusalError](err); ok {
		return "come back in " + refusal.RetryAfter.Round(time.Second).String(), nil
	}
	if err != nil {
		return "", err
	}
	return "a summary", nil
}

// In a test, use quotatest.New(t, ...) instead of Start and Close.
func Example() {
	cluster := quotatest.Start(quotatest.Rate("openai/requests", 60, time.Minute))
	defer cluster.Close()
	c := cluster.Client(client.WithHolder("picard"))
	ctx := context.Background()

	fmt.Println(summarize(ctx, c))
	cluster.Exhaust("openai/requests")
	fmt.Println(summarize(ctx, c))
	cluster.Clock().Advance(2 * time.Minute)
	fmt.Println(summarize(ctx, c))
	cluster.Cooldown("openai/requests", 30*time.Second)
	_, err := c.Reserve(ctx, client.ReserveRequest{Items: []client.Item{{Quota: "openai/requests", Amount: 1}}})
	fmt.Println(errors.Is(err, client.ReasonCooldown))
	// Output:
	// a summary <nil>
	// come back in 1m2s <nil>
	// a summary <nil>
	// true
}
