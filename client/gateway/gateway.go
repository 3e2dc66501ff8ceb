// Package gateway governs calls by base URL: a tool that uses the gateway's URL instead of its provider's needs to know nothing of
// quotad. For each call it identifies the caller, finds the quotas to draw on, and reserves and consumes them in one step. It forwards
// the call unchanged, reports the provider's statements about its limits, and settles the call by the usage in the answer.
//
// Its rules: ask, then send; a sent call's amount is returned only if the provider states a lower use; bytes pass unchanged; waiting
// happens here; a refusal has the provider's own form; while the cluster is away nothing is sent, except as the configuration allows.
//
// All methods are safe for concurrent use.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/gateway/catalog"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/genai"
	"github.com/quotad/quotad/client/gateway/identity"
)

// Options are a gateway's dependencies, in addition to its configuration.
type Options struct {
	// Tokens are the tokens that callers must present; nil: names are trusted. They go with Config.Tokens.
	Tokens identity.Tokens
	// Logger receives one line for each call; nil: no log.
	Logger *slog.Logger
	// Registerer receives the metrics; nil: a new registry, which /metrics serves.
	Registerer *prometheus.Registry
	// Transport sends to the providers; nil: one that obeys HTTPS_PROXY and follows no redirect.
	Transport http.RoundTripper
	// Version is shown on the status page.
	Version string
	// Recorder records calls of models, and waits for quota, with OpenTelemetry; nil: nothing is recorded.
	Recorder *genai.Recorder

	// dial connects to the nodes; nil: by the network.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Gateway is a running gateway. Make it with New, serve Handler or call Serve, and Close it.
type Gateway struct {
	options Options
	logger  *slog.Logger
	client  *client.Client
	cluster *nodes
	catalog catalog.Catalog
	seats   *identity.Seats
	secret  identity.Secret
	metrics *metrics
	// state is built from the configuration; calls in flight keep theirs over a reload.
	state atomic.Pointer[state]
	// buffered is the bytes of bodies in memory.
	buffered atomic.Int64
	calls    atomic.Int64
	settling atomic.Int64
	waiting  waiting
	refusals refusals
	reports  reportClock
	learner  *estimate.Learner
	// learnt: something was learnt since the state file was written.
	learnt  atomic.Bool
	wrong   wrongTokens
	batches batches
	// unbatched are the upstreams and reasons that were logged for calls without batches.
	unbatched sync.Map
	takes     takes
	api       apiSessions
	// listed is closed once the cluster has listed its quotas; unlisted is why it has not.
	listed   chan struct{}
	listOnce sync.Once
	unlisted atomic.Pointer[error]
	// away: the cluster did not answer the last call.
	away atomic.Bool
	// awayAt is when a call last found the cluster away, in nanoseconds of Unix time.
	awayAt atomic.Int64
	// drains counts the answers read after their clients have left.
	drains atomic.Int64

	// stopping is set once no further calls are admitted; ctx ends when waiting calls have to stop.
	stopping atomic.Bool
	ctx      context.Context
	cancel   context.CancelFunc
	// tasks are the goroutines of the gateway: refreshing, settling, draining.
	tasks   sync.WaitGroup
	refresh chan struct{}
}

// New returns a gateway with a configuration. It reads keys and certificates, but makes no connection. The error of an invalid
// configuration names every problem.
func New(conf config.Config, options Options) (*Gateway, error) {
	g := &Gateway{
		options: options, logger: options.Logger, refresh: make(chan struct{}, 1), listed: make(chan struct{}),
		learner: estimate.NewLearner(nil),
	}
	if g.logger == nil {
		g.logger = slog.New(slog.DiscardHandler)
	}
	conf = conf.Complete()
	g.seats, g.secret = identity.NewSeats(max(conf.Identity.Seats.Count, 1)), identity.NewSecret()
	built, err := g.build(conf)
	if err != nil {
		return nil, err
	}
	g.cluster, err = newNodes(conf.Cluster, options.dial)
	if err != nil {
		return nil, err
	}
	// A token for the holders of this machine covers this name.
	g.client, err = g.cluster.client("gateway@"+built.machine, g.logger, g.batches.hooks())
	if err != nil {
		g.cluster.close()
		return nil, err
	}
	for _, warning := range Warnings(conf) {
		g.logger.Warn(warning)
	}
	g.state.Store(built) // the metrics read it
	g.metrics = newMetrics(g)
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.tasks.Go(g.keepCatalog)
	g.loadLearnt(conf.State)
	g.tasks.Go(g.keepKeys)
	g.tasks.Go(g.keepLearnt)
	return g, nil
}

// Check returns the problems of a configuration, including the keys, certificates and token that it names. It starts nothing.
func Check(conf config.Config, options Options) error {
	conf = conf.Complete()
	g := &Gateway{options: options, logger: slog.New(slog.DiscardHandler), seats: identity.NewSeats(1), secret: identity.NewSecret()}
	built, err := g.build(conf)
	if err != nil {
		return err
	}
	built.retire()
	nodes, err := newNodes(conf.Cluster, nil)
	if err == nil {
		nodes.close()
	}
	return errors.Join(err, (&Server{}).loadCertificate(conf.Listen))
}

// Reload adopts a new configuration, entirely or not at all. Listeners, the cluster, its token and the machine's name stay unchanged
// until a restart. So the configuration has to be valid both as it is, for the restart, and with the open listeners.
func (g *Gateway) Reload(conf config.Config) error {
	conf = conf.Complete()
	if err := checked(conf); err != nil {
		return err
	}
	conf.Listen = g.state.Load().config.Listen.Reloaded(conf.Listen)
	if err := checked(conf); err != nil {
		return fmt.Errorf("a change of listen takes effect only after a restart, and with the present one: %w", err)
	}
	if (conf.Tokens != "") != (g.options.Tokens != nil) {
		return errors.New("tokens: adding or removing the file takes a restart of the gateway")
	}
	old := g.state.Load()
	conf.Machine = old.machine // the cluster's token and the current batches belong to its holders
	built, err := g.build(conf)
	if err != nil {
		return err
	}
	for _, warning := range Warnings(conf) {
		g.logger.Warn(warning)
	}
	g.seats.Resize(max(conf.Identity.Seats.Count, 1))
	for name, u := range built.upstreams {
		was := old.upstreams[name]
		if was == nil {
			continue
		}
		u.affinity = was.affinity
		if was.open != nil {
			was.open.reconfigure(u.config.FailOpen)
			u.open = was.open
		}
	}
	g.state.Store(built)
	old.retire()
	return nil
}

// state is the form of a configuration that calls use.
type state struct {
	config    config.Config
	machine   string
	resolver  *identity.Resolver
	upstreams map[string]*upstream
	hosts     map[string]*upstream
	root      *upstream
}

// checked returns all problems of a completed configuration.
func checked(conf config.Config) error {
	problems := conf.Check()
	all := make([]error, len(problems))
	for i, problem := range problems {
		all[i] = problem
	}
	return errors.Join(all...)
}

// build makes a state.
func (g *Gateway) build(conf config.Config) (*state, error) {
	if err := checked(conf); err != nil {
		return nil, err
	}
	if (conf.Tokens != "") != (g.options.Tokens != nil) {
		return nil, errors.New("gateway: Config.Tokens and Options.Tokens belong together")
	}
	s := &state{config: conf, machine: conf.Machine, upstreams: map[string]*upstream{}, hosts: map[string]*upstream{}}
	if s.machine == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("gateway: cannot determine the host's name, set machine: %w", err)
		}
		s.machine = name
	}
	s.resolver = identity.New(s.machine, conf.Identity, g.options.Tokens, g.seats, g.secret)
	for name, configured := range conf.Upstreams {
		u, err := newUpstream(name, configured, g.options.Transport, g.logger)
		if err != nil {
			return nil, err
		}
		s.upstreams[name] = u
		for _, host := range configured.Hosts {
			s.hosts[host] = u
		}
	}
	s.root = s.upstreams[conf.Root]
	return s, nil
}

// choosesKeys reports whether the gateway chooses keys by the remaining amounts of their quotas: an upstream has several keys, and the
// cluster has no pools for them.
func (g *Gateway) choosesKeys() bool {
	for _, u := range g.state.Load().upstreams {
		if len(u.config.Pool) > 1 && len(g.catalog.Pools(u.config.Quotas)) == 0 {
			return true
		}
	}
	return false
}

// keysEvery is how often the key files are checked.
const keysEvery = 5 * time.Second

// keepKeys rereads keys whose files have changed.
func (g *Gateway) keepKeys() {
	poll := time.NewTicker(keysEvery)
	defer poll.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-poll.C:
			g.RefreshKeys()
		}
	}
}

// RefreshKeys rereads keys whose files have changed. Calls in flight keep theirs.
func (g *Gateway) RefreshKeys() {
	for _, u := range g.state.Load().upstreams {
		if u.keys != nil {
			u.keys.Refresh()
		}
	}
}

func (s *state) retire() {
	for _, u := range s.upstreams {
		u.close()
	}
}

// catalogEvery is how often the quotas are listed.
const catalogEvery = 10 * time.Second

// choiceEvery is how often they are listed if keys are chosen by the list.
const choiceEvery = time.Second

// catalogSoon is how soon after a call with an unknown quota the quotas are listed.
const catalogSoon = 500 * time.Millisecond

// keepCatalog lists the quotas periodically.
func (g *Gateway) keepCatalog() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-pause.C:
		case <-g.refresh:
			// Calls with unknown models must not make the nodes list their quotas all the time.
			if err := sleep(g.ctx, catalogSoon); err != nil {
				return
			}
		}
		next := catalogEvery
		if g.choosesKeys() {
			next = choiceEvery
		}
		if err := g.readCatalog(g.ctx); err != nil && !g.catalog.Loaded() {
			next = time.Second
		}
		pause.Reset(next)
	}
}

func (g *Gateway) readCatalog(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	asked := time.Now()
	list, err := g.cluster.list(ctx)
	if err != nil {
		g.logger.Debug("could not read the list of quotas", "error", err)
		g.unlisted.Store(&err)
		return err
	}
	g.setCatalog(list)
	g.listedAt(asked)
	return nil
}

// refreshCatalog requests a listing soon: a quota is unknown.
func (g *Gateway) refreshCatalog() {
	select {
	case g.refresh <- struct{}{}:
	default:
	}
}

// Stop admits no further call and ends waiting ones. Calls in flight continue; Drained waits for them.
func (g *Gateway) Stop() {
	g.stopping.Store(true)
	g.cancel()
}

// Drained waits until no call is in flight, or ctx ends.
func (g *Gateway) Drained(ctx context.Context) error {
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for g.calls.Load() > 0 {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("gateway: %d calls were still in flight: %w", g.calls.Load(), ctx.Err())
		}
	}
	return nil
}

// Close ends the gateway: it settles what calls still hold, and closes the client of the cluster.
func (g *Gateway) Close() error {
	g.Stop()
	g.takes.close()
	g.saveLearnt() // before settlements, for which an absent cluster may take longer than a supervisor waits
	g.tasks.Wait()
	g.saveLearnt()
	err := errors.Join(g.batches.close(), g.client.Close())
	g.state.Load().retire()
	g.cluster.close()
	return err
}
