package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
)

// Option changes how a Client works.
type Option func(*settings) error

// settings are what options change.
type settings struct {
	holder string
	class  Class
	ttl    time.Duration
	token  string
	http   connect.HTTPClient
	tls    *tls.Config
	// leave ends the use of the process's connections; nil: http is the user's.
	leave          func()
	logger         *slog.Logger
	hooks          hookList
	callTimeout    time.Duration
	attemptTimeout time.Duration
	closeTimeout   time.Duration
	wall           func() time.Time
}

func defaults() settings {
	return settings{
		holder:         defaultHolder(),
		logger:         slog.New(warnings{}),
		callTimeout:    10 * time.Second,
		attemptTimeout: 2 * time.Second,
		closeTimeout:   3 * time.Second,
		wall:           time.Now,
	}
}

// defaultHolder names a process by its program and machine, which is stable over restarts.
func defaultHolder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return strings.ToValidUTF8(filepath.Base(os.Args[0])+"@"+host, "?")
}

// WithHolder sets the holder: a stable name of 1 to 128 bytes of UTF-8, such as picard or ralph@node-7. The default is the program's
// name and the machine's.
func WithHolder(holder string) Option {
	return func(s *settings) error {
		if holder == "" || len(holder) > 128 || !utf8.ValidString(holder) {
			return errors.New("quotad: a holder's name must have 1 to 128 bytes of UTF-8")
		}
		s.holder = holder
		return nil
	}
}

// WithClass lowers the class of all requests that do not name one. The default is the holder's own class.
func WithClass(class Class) Option {
	return func(s *settings) error {
		if class < ClassDefault || class > Background {
			return fmt.Errorf("quotad: unknown class %d", class)
		}
		s.class = class
		return nil
	}
}

// WithTTL sets the ttl of leases that do not name one, 1 s to 24 h. The default is the cluster's, 5 min.
func WithTTL(ttl time.Duration) Option {
	return func(s *settings) error {
		if ttl < time.Second || ttl > 24*time.Hour {
			return fmt.Errorf("quotad: the lease's length %v must be 1 s to 24 h", ttl)
		}
		s.ttl = ttl
		return nil
	}
}

// WithToken sets the bearer token that identifies the caller to the cluster. The default is none.
func WithToken(token string) Option {
	return func(s *settings) error {
		s.token = token
		return nil
	}
}

// WithTLS sets the TLS configuration for nodes: RootCAs if a CA of your own signed their certificates, Certificates for mutual TLS.
// Addresses without a scheme are then reached by https. The default is http for these, and the system's CAs for https URLs. Clients with
// the same *tls.Config share connections until they are closed. Do not change it afterwards.
func WithTLS(config *tls.Config) Option {
	return func(s *settings) error {
		if config == nil {
			return errors.New("quotad: the TLS configuration is nil")
		}
		s.tls = config
		return nil
	}
}

// scheme returns the scheme of addresses without one.
func (s *settings) scheme() string {
	if s.tls != nil {
		return "https"
	}
	return "http"
}

// WithHTTPClient sets the HTTP client for nodes, such as for proxies or tests. It must not follow redirects to unknown hosts, and
// no Transport of this client may govern it. The default uses HTTP/2, with or without TLS, over one or two connections to each node that
// all clients of the process share. It uses HTTP/1.1 if a server or proxy on the path supports nothing else.
func WithHTTPClient(client connect.HTTPClient) Option {
	return func(s *settings) error {
		if client == nil {
			return errors.New("quotad: the HTTP client is nil")
		}
		s.http = client
		return nil
	}
}

// warnings forwards warnings and errors to slog.Default, as it is at that time.
type warnings struct {
	change []func(slog.Handler) slog.Handler
}

func (w warnings) handler() slog.Handler {
	handler := slog.Default().Handler()
	for _, change := range w.change {
		handler = change(handler)
	}
	return handler
}

func (w warnings) with(change func(slog.Handler) slog.Handler) slog.Handler {
	return warnings{append(slices.Clip(w.change), change)}
}

// Enabled implements slog.Handler.
func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.handler().Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (w warnings) Handle(ctx context.Context, record slog.Record) error {
	return w.handler().Handle(ctx, record)
}

// WithAttrs implements slog.Handler.
func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return w.with(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (w warnings) WithGroup(name string) slog.Handler {
	return w.with(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

// WithLogger sets the client's logger. The default is slog.Default, for warnings only.
func WithLogger(logger *slog.Logger) Option {
	return func(s *settings) error {
		if logger == nil {
			return errors.New("quotad: the logger is nil")
		}
		s.logger = logger
		return nil
	}
}

// WithCallTimeout bounds calls whose context has no deadline, in addition to their wait in the cluster's queue. The default is 10 s.
func WithCallTimeout(timeout time.Duration) Option {
	return positive(timeout, func(s *settings) { s.callTimeout = timeout })
}

// WithAttemptTimeout bounds one attempt at one node. The default is 2 s.
func WithAttemptTimeout(timeout time.Duration) Option {
	return positive(timeout, func(s *settings) { s.attemptTimeout = timeout })
}

// WithCloseTimeout bounds Close, which returns unspent amounts. The default is 3 s.
func WithCloseTimeout(timeout time.Duration) Option {
	return positive(timeout, func(s *settings) { s.closeTimeout = timeout })
}

// WithWallClock replaces the wall clock, which leases are compared with in addition to the monotonic one. It is for tests of a machine
// that slept or whose clock was set. The default is time.Now.
func WithWallClock(now func() time.Time) Option {
	return func(s *settings) error {
		if now == nil {
			return errors.New("quotad: the clock is nil")
		}
		s.wall = now
		return nil
	}
}

func positive(d time.Duration, set func(*settings)) Option {
	return func(s *settings) error {
		if d <= 0 {
			return fmt.Errorf("quotad: the timeout %v must be above 0", d)
		}
		set(s)
		return nil
	}
}
