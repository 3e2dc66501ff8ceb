package client

import (
	"sync"
	"time"
)

// cooldowns records the cooldowns of quotas that this client has learnt of, and notifies the limiters that spend them.
type cooldowns struct {
	mu      sync.Mutex
	until   map[string]time.Time
	spender map[string]map[*Limiter]struct{}
}

func newCooldowns() *cooldowns {
	return &cooldowns{until: map[string]time.Time{}, spender: map[string]map[*Limiter]struct{}{}}
}

// learn records that a quota is closed for a while, and makes its limiters return their units.
func (s *cooldowns) learn(quota string, left time.Duration) {
	if left <= 0 {
		return
	}
	now := time.Now()
	s.mu.Lock()
	until := now.Add(left)
	if until.After(s.until[quota]) {
		s.until[quota] = until
	}
	for name, end := range s.until {
		// Drop the ends that have passed, so that the table stays small.
		if !end.After(now) {
			delete(s.until, name)
		}
	}
	var spenders []*Limiter
	for limiter := range s.spender[quota] {
		spenders = append(spenders, limiter)
	}
	s.mu.Unlock()
	for _, limiter := range spenders {
		limiter.releaseBatchesOf(quota)
	}
}

// LearnCooldown tells the client that a quota is closed for the time left, as another client of the same program has learnt. Its
// limiters return their units of the quota.
func (c *Client) LearnCooldown(quota string, left time.Duration) { c.cooldowns.learn(quota, left) }

// left returns for how long any of the items' quotas stay closed; 0 if none is.
func (s *cooldowns) left(items []Item) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var most time.Duration
	for _, item := range items {
		if until, ok := s.until[item.Quota]; ok {
			most = max(most, time.Until(until))
		}
	}
	return most
}

// register adds a limiter to the spenders of its quotas.
func (s *cooldowns) register(l *Limiter, items []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, item := range items {
		if s.spender[item.Quota] == nil {
			s.spender[item.Quota] = map[*Limiter]struct{}{}
		}
		s.spender[item.Quota][l] = struct{}{}
	}
}

// unregister removes a limiter.
func (s *cooldowns) unregister(l *Limiter, items []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, item := range items {
		delete(s.spender[item.Quota], l)
		if len(s.spender[item.Quota]) == 0 {
			delete(s.spender, item.Quota)
		}
	}
}
