package client

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/quotad/quotad/client/internal/fakequota"
)

// TestCooldowns_TheLaterEndCounts: learning of a second does not open a quota that is closed for a minute.
func TestCooldowns_TheLaterEndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := newCooldowns()
		known.learn("t/core", time.Minute)
		known.learn("t/core", time.Second)
		pass(10 * time.Second)
		if left := known.left(one("t/core", 1)); left != 50*time.Second {
			t.Errorf("closed for %v more", left)
		}
	})
}

// TestReservation_DelayLastsAsLongAsACooldown: asking earlier is useless.
func TestReservation_DelayLastsAsLongAsACooldown(t *testing.T) {
	virtual(t, 1, func(t *testing.T, _ *fakequota.Cluster, c *Client) {
		limiter := c.Limiter("t/core")
		c.cooldowns.learn("t/core", time.Minute)
		if r := limiter.TryTake(); r.OK() || r.Delay() != time.Minute {
			t.Errorf("OK %v, ask again in %v", r.OK(), r.Delay())
		}
	})
}
