package keys

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/client/gateway/config"
)

// Key is one credential.
type Key struct {
	config.Key
	// Pooled: calls use it or another key of the pool.
	Pooled bool

	value atomic.Pointer[string]
	// mu is held while it is read; info describes the file that was read.
	mu   sync.Mutex
	info fs.FileInfo
	read time.Time
}

// Value returns the credential.
func (k *Key) Value() string { return *k.value.Load() }

// Age returns how long ago the credential was read.
func (k *Key) Age(now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return now.Sub(k.read)
}

// Set is the keys of an upstream.
type Set struct {
	keys   []*Key
	logger *slog.Logger
}

// Load reads the keys of an upstream.
func Load(upstream config.Upstream, logger *slog.Logger) (*Set, error) {
	s := &Set{logger: logger}
	pooled := map[string]bool{}
	for _, name := range upstream.Pool {
		pooled[name] = true
	}
	for _, conf := range upstream.Keys {
		k := &Key{Key: conf, Pooled: pooled[conf.Name]}
		if k.Quotas == "" {
			k.Quotas = upstream.Quotas
		}
		if err := k.load(); err != nil {
			return nil, fmt.Errorf("the key %s: %w", k.Name, err)
		}
		s.keys = append(s.keys, k)
	}
	return s, nil
}

// load reads a key.
func (k *Key) load() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var info fs.FileInfo
	if path, err := Path(k.From); err == nil && path != "" {
		info, _ = os.Stat(path)
	}
	value, err := Read(k.From)
	if err != nil {
		return err
	}
	k.info, k.read = info, time.Now()
	k.value.Store(&value)
	return nil
}

// changed reports whether the file of a key differs from the one that was read.
func (k *Key) changed() bool {
	path, err := Path(k.From)
	if err != nil {
		return false
	}
	info, err := os.Stat(path)
	k.mu.Lock()
	defer k.mu.Unlock()
	return err == nil && (k.info == nil || !os.SameFile(info, k.info) || !info.ModTime().Equal(k.info.ModTime()) ||
		info.Size() != k.info.Size())
}

// Refresh rereads keys whose files have changed. A key that cannot be read keeps its old value.
func (s *Set) Refresh() {
	for _, k := range s.keys {
		if k.changed() {
			s.reread(k)
		}
	}
}

// Reread rereads a key, because the provider rejected it.
func (s *Set) Reread(k *Key) { s.reread(k) }

func (s *Set) reread(k *Key) {
	if err := k.load(); err != nil {
		s.logger.Warn("could not read a key again: it keeps its old value", "key", k.Name, "error", err)
	}
}

// Named returns the key of that name; nil: there is none.
func Named(among []*Key, name string) *Key {
	for _, k := range among {
		if k.Name == name {
			return k
		}
	}
	return nil
}

// Keys returns all keys.
func (s *Set) Keys() []*Key { return s.keys }

// For returns the keys that a call may use: the first that matches, or if that is in the pool, all matching keys of the pool.
func (s *Set) For(class config.Class, holder string) []*Key {
	var out []*Key
	for _, k := range s.keys {
		if !k.For.Selects(class, holder) {
			continue
		}
		if len(out) == 0 && !k.Pooled {
			return []*Key{k}
		}
		if k.Pooled {
			out = append(out, k)
		}
	}
	return out
}
