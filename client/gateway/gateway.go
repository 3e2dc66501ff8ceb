// Package gateway governs calls by base URL: a tool that is pointed at it instead of its provider needs to know nothing of quotad.
// For each call it names the caller, finds the quotas that the call draws on, reserves and consumes them at once, sends the call
// on unchanged, reports what the provider says of its limits, and settles the call by the usage that the answer names.
//
// Its rules: ask, then send; what the provider did not say was used is not given back; bytes pass unchanged; waiting happens here;
// a refusal has the provider's own form; and while the cluster is away nothing is sent, unless the configuration says how much.
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
	"github.com/quotad/quotad/client/gateway/identity"
)

// Options are what a gateway needs besides its configuration.
type Options struct {
	// Tokens are those that callers must show; nil: names are taken on trust. They go with Config.Tokens.
	Tokens identity.Tokens
	// Logger takes one line for each call; nil: nobody.
	Logger *slog.Logger
	// Registerer takes the metrics; nil: a registry of its own, which /metrics serves.
	Registerer *prometheus.Registry
	// Transport reaches the providers; nil: one that obeys HTTPS_PROXY and follows no redirect.
	Transport http.RoundTripper
	// Version is shown on the status page.
	Version string

	// dial reaches the nodes; nil: by the network.
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
	// state is what the configuration comes to; calls under way keep theirs over a reload.
	state atomic.Pointer[state]
	// buffered is the bytes of bodies in memory.
	buffered atomic.Int64
	calls    atomic.Int64
	settling atomic.Int64
	waiting  waiting
	refusals refusals
	reports  reportClock
	learner  *estimate.Learner
	// learnt: something was learnt since the file of state was written.
	learnt  atomic.Bool
	wrong   wrongTokens
	batches batches
	// unbatched are the upstreams and reasons of which it was said that calls are not taken out of batches.
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
	// drains is how many answers are read after their clients have left.
	drains atomic.Int64

	// stopping is set when no further calls are taken; ctx ends when waiting calls are to give up.
	stopping atomic.Bool
	ctx      context.Context
	cancel   context.CancelFunc
	// tasks are the goroutines of the gateway: refreshing, settling, draining.
	tasks   sync.WaitGroup
	refresh chan struct{}
}

// New returns a gateway of a configuration. It reads keys and certificates, but does not touch the network. The error of a wrong
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
	// Its own name is one that a token for the holders of this machine covers.
	g.client, err = g.cluster.client("gateway@"+built.machine, g.logger, g.batches.hooks())
	if err != nil {
		return nil, err
	}
	for _, warning := range Warnings(conf) {
		g.logger.Warn(warning)
	}
	g.state.Store(built) // of which metrics tell
	g.metrics = newMetrics(g)
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.tasks.Go(g.keepCatalog)
	g.loadLearnt(conf.State)
	g.tasks.Go(g.keepKeys)
	g.tasks.Go(g.keepLearnt)
	return g, nil
}

// Check returns what is wrong with a configuration, with the keys, certificates and the token that it names. It starts nothing.
func Check(conf config.Config, options Options) error {
	conf = conf.Complete()
	g := &Gateway{options: options, logger: slog.New(slog.DiscardHandler), seats: identity.NewSeats(1), secret: identity.NewSecret()}
	built, err := g.build(conf)
	if err != nil {
		return err
	}
	built.retire()
	_, nodes := newNodes(conf.Cluster, nil)
	return errors.Join(nodes, (&Server{}).loadCertificate(conf.Listen))
}

// Reload takes a new configuration, whole or not at all. Listeners, the cluster, its token and the machine's name stay as they are until a
// restart. So the configuration has to be right as it is, for then, and with the listeners that are open.
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
	conf.Machine = old.machine // the cluster's token and the batches that are at hand are for its holders
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

// state is what a configuration comes to.
type state struct {
	config    config.Config
	machine   string
	resolver  *identity.Resolver
	upstreams map[string]*upstream
	hosts     map[string]*upstream
	root      *upstream
}

// checked returns all that is wrong with a completed configuration.
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

// choosesKeys reports whether the gateway chooses a key by what is left of its quotas: an upstream has several, and the cluster no pools
// of them.
func (g *Gateway) choosesKeys() bool {
	for _, u := range g.state.Load().upstreams {
		if len(u.config.Pool) > 1 && len(g.catalog.Pools(u.config.Quotas)) == 0 {
			return true
		}
	}
	return false
}

// keysEvery is how often the files of keys are looked at.
const keysEvery = 5 * time.Second

// keepKeys reads keys again whose files have changed.
func (g *Gateway) keepKeys() {
	look := time.NewTicker(keysEvery)
	defer look.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-look.C:
			g.RefreshKeys()
		}
	}
}

// RefreshKeys reads the keys whose files have changed. Calls under way keep theirs.
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

// catalogEvery is how often the list of quotas is read.
const catalogEvery = 10 * time.Second

// choiceEvery is how often it is read where keys are chosen by it.
const choiceEvery = time.Second

// catalogSoon is how long after a call met an unknown quota the list is read.
const catalogSoon = 500 * time.Millisecond

// keepCatalog reads the list of quotas again and again.
func (g *Gateway) keepCatalog() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-pause.C:
		case <-g.refresh:
			// Callers that ask for unknown models must not make the nodes list their quotas all the time.
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

// refreshCatalog asks for the list of quotas soon: a quota is not known any more.
func (g *Gateway) refreshCatalog() {
	select {
	case g.refresh <- struct{}{}:
	default:
	}
}

// Stop lets no further call in and ends those that wait. Calls that are under way go on; Drained tells when they are over.
func (g *Gateway) Stop() {
	g.stopping.Store(true)
	g.cancel()
}

// Drained waits until no call is under way, or ctx ends.
func (g *Gateway) Drained(ctx context.Context) error {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for g.calls.Load() > 0 {
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("gateway: %d calls were still in flight: %w", g.calls.Load(), ctx.Err())
		}
	}
	return nil
}

// Close ends the gateway: what calls still hold is settled, and the client of the cluster is closed.
func (g *Gateway) Close() error {
	g.Stop()
	g.takes.close()
	g.saveLearnt() // before settlements, which a cluster that is away holds up for longer than a supervisor may wait
	g.tasks.Wait()
	g.saveLearnt()
	err := errors.Join(g.batches.close(), g.client.Close())
	g.state.Load().retire()
	g.cluster.close()
	return err
}
