package client

import (
	"sync"
	"time"
)

// closures remembers which quotas are closed by a cooldown, as far as this client has heard, and tells who spends them.
type closures struct {
	mu      sync.Mutex
	until   map[string]time.Time
	spender map[string]map[*Limiter]struct{}
}

func newClosures() *closures {
	return &closures{until: map[string]time.Time{}, spender: map[string]map[*Limiter]struct{}{}}
}

// learn notes that a quota is closed for a while and makes its spenders give back what they have.
func (s *closures) learn(quota string, left time.Duration) {
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
		// The table holds what is closed now, not all that ever was.
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
		limiter.giveBackOf(quota)
	}
}

// LearnCooldown tells the client that a quota is closed for so long, where another client of the same program has heard of it: its
// limiters return what they have of the quota.
func (c *Client) LearnCooldown(quota string, left time.Duration) { c.closures.learn(quota, left) }

// left returns for how long some of the items' quotas are still closed; 0: none is.
func (s *closures) left(items []Item) time.Duration {
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

// register makes a limiter a spender of its quotas.
func (s *closures) register(l *Limiter, items []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, item := range items {
		if s.spender[item.Quota] == nil {
			s.spender[item.Quota] = map[*Limiter]struct{}{}
		}
		s.spender[item.Quota][l] = struct{}{}
	}
}

// unregister forgets a limiter.
func (s *closures) unregister(l *Limiter, items []Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, item := range items {
		delete(s.spender[item.Quota], l)
		if len(s.spender[item.Quota]) == 0 {
			delete(s.spender, item.Quota)
		}
	}
}
