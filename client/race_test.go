package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
)

// TestRace_AsksOthersAfterTheLeadersTime: nodes are asked as long after the beginning as patience says, also if the leader's attempt needs
// no goroutine since it ends by then.
func TestRace_AsksOthersAfterTheLeadersTime(t *testing.T) {
	const leader, others = 10 * time.Second, 50 * time.Millisecond
	for name, c := range map[string]struct {
		fails time.Duration // after this time, the first attempt
		asked [3]time.Duration
	}{
		"a silent leader":       {leader, [3]time.Duration{0, leader, leader + others}},
		"a leader that refuses": {time.Second, [3]time.Duration{0, time.Second, leader}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 3, func(t *testing.T, _ *fakequota.Cluster, client *Client) {
				order, _ := client.nodes.order()
				client.nodes.lead(order[0])
				began := time.Now()
				var mu sync.Mutex
				var asked []time.Duration
				bounds := patience{leader: leader, others: others, each: leader}
				_, _ = race(t.Context(), client, bounds, func(ctx context.Context, _ *node) (*int, error) {
					mu.Lock()
					asked = append(asked, time.Since(began))
					first := len(asked) == 1
					mu.Unlock()
					if first {
						<-time.After(c.fails)
						return nil, errors.New("no")
					}
					<-ctx.Done()
					return nil, ctx.Err()
				})
				if len(asked) != 3 || [3]time.Duration(asked) != c.asked {
					t.Errorf("nodes were asked after %v, want %v", asked, c.asked)
				}
			})
		})
	}
}
