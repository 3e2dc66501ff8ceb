package demo

import (
	"context"
	"net/http"
	"strconv"
	"time"
)

// A fleet on its own backoff does what the usual retry libraries do. It waits 1 s, then twice as long each time up to a
// minute, with full jitter, or as long as a Retry-After says. The times are the provider's, scaled.
const (
	firstBackoff = time.Second / scale
	lastBackoff  = time.Minute / scale
	// mostTries is the number of attempts after which a call is cancelled. A lock-out of an hour takes about seventy.
	mostTries = 100
)

// ownCaller calls on its own backoff.
type ownCaller struct {
	provider *provider
	dice     *dice
}

func (c *ownCaller) do(ctx context.Context, w wish) (int, error) {
	through := &http.Client{Transport: c.provider}
	for try := 1; ; try++ {
		status, header, err := c.provider.send(ctx, through, w)
		if err != nil || !limited(status) || try == mostTries {
			return status, err
		}
		if !pause(ctx, c.backoff(try, header)) {
			return status, ctx.Err()
		}
	}
}

// backoff returns the pause after an attempt.
func (c *ownCaller) backoff(try int, header http.Header) time.Duration {
	if ms, err := strconv.ParseInt(header.Get("Retry-After-Ms"), 10, 64); err == nil {
		return time.Duration(ms) * time.Millisecond
	}
	if seconds, err := strconv.ParseInt(header.Get("Retry-After"), 10, 64); err == nil {
		return time.Duration(seconds) * time.Second
	}
	longest := lastBackoff
	if try < 8 {
		longest = min(firstBackoff<<(try-1), lastBackoff)
	}
	return time.Duration(c.dice.between(int64(longest)))
}

func (c *ownCaller) close() error {
	c.provider.base.CloseIdleConnections()
	return nil
}
