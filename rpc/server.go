package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Config configures a Server.
type Config struct {
	// Node does the work. Required.
	Node *raftnode.Node
	// Tokens, if set, are needed by every caller.
	Tokens *Tokens
	// Registry takes metrics and is served at /metrics. Default: a new one.
	Registry *prometheus.Registry
	// Logger takes messages. Default: none.
	Logger hclog.Logger
	// Version is the binary's, for GetStatus.
	Version string
	// PeerTLS, if set, is used to call other nodes' APIs.
	PeerTLS *tls.Config
	// MaxInFlight is how many calls may be under way at once. Default 20,000.
	MaxInFlight int64
	// ReadBody is how long the body of a call may take to come; for Restore, each piece of it. Default 10 s.
	ReadBody time.Duration
	// WriteAnswer is how long a caller may take to read an answer; for streams, each message. Default 30 s.
	WriteAnswer time.Duration
}

// Server serves the API.
type Server struct {
	node    *raftnode.Node
	config  Config
	logger  hclog.Logger
	metrics *metrics
	leaders *leaders
	started time.Time

	inFlight atomic.Int64
	running  underWay
	// drain ends when the node drains, by startDrain: waits and streams end with it. refusing is set when that is done.
	drain      context.Context
	startDrain context.CancelFunc
	waits      underWay
	refusing   atomic.Bool
}

// New makes a server.
func New(config Config) (*Server, error) {
	if config.Node == nil {
		return nil, errors.New("the API needs a node")
	}
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	if config.Registry == nil {
		config.Registry = prometheus.NewRegistry()
	}
	if config.MaxInFlight == 0 {
		config.MaxInFlight = 20_000
	}
	if config.ReadBody == 0 {
		config.ReadBody = defaultReadBody
	}
	if config.WriteAnswer == 0 {
		config.WriteAnswer = defaultWrite
	}
	s := &Server{
		node: config.Node, config: config, logger: config.Logger, metrics: newMetrics(config.Registry, newUsageCollector(config.Node)), started: time.Now(),
		leaders: &leaders{http: &http.Client{Transport: peerTransport(config.PeerTLS)}, scheme: "http", of: map[string]leader{}},
	}
	config.Registry.MustRegister(stateCounts{config.Node})
	s.drain, s.startDrain = context.WithCancel(context.Background())
	if config.PeerTLS != nil {
		s.leaders.scheme = "https"
	}
	return s, nil
}

// peerTransport carries calls to the leader: many streams on few connections.
func peerTransport(conf *tls.Config) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(conf != nil)
	protocols.SetUnencryptedHTTP2(conf == nil)
	return &http.Transport{
		Protocols: protocols, TLSClientConfig: conf, MaxIdleConnsPerHost: 8, IdleConnTimeout: 90 * time.Second,
		TLSHandshakeTimeout: 5 * time.Second,
	}
}

// compressFrom is how long an answer is that is worth packing for a caller that asks for it. A quarter of a leader's processor
// time in batches went into packing answers for callers next to it.
const compressFrom = 1 << 20

// Handler returns all that the API port serves.
func (s *Server) Handler() http.Handler {
	options := []connect.HandlerOption{
		connect.WithInterceptors(s.interceptors()...),
		connect.WithRecover(s.recovered), codecs(),
		connect.WithReadMaxBytes(maxMessage), connect.WithSendMaxBytes(maxAnswer), connect.WithCompressMinBytes(compressFrom),
	}
	mux := http.NewServeMux()
	mux.Handle(quotav1connect.NewQuotaServiceHandler(&quotaService{s}, options...))
	mux.Handle(quotav1connect.NewAdminServiceHandler(&adminService{s}, options...))
	mux.Handle(quotav1connect.NewTaskServiceHandler(&taskService{s}, options...))
	path, health := grpchealth.NewHandler(grpcHealth{s})
	mux.Handle(path, health)
	mux.Handle(path+"Watch", s.untilDrained(health))
	reflector := grpcreflect.NewStaticReflector(
		quotav1connect.QuotaServiceName, quotav1connect.AdminServiceName, quotav1connect.TaskServiceName, grpchealth.HealthV1ServiceName)
	for _, reflect := range []func(*grpcreflect.Reflector, ...connect.HandlerOption) (string, http.Handler){
		grpcreflect.NewHandlerV1, grpcreflect.NewHandlerV1Alpha,
	} {
		path, reflection := reflect(reflector)
		mux.Handle(path, s.untilDrained(reflection))
	}
	mux.HandleFunc("/livez", s.serveLive)
	mux.HandleFunc("/readyz", s.serveReady)
	mux.Handle("/metrics", promhttp.HandlerFor(s.config.Registry, promhttp.HandlerOpts{}))
	return s.limited(mux)
}

// Drain makes the node unready and ends what waits and streams, each with a typed error, while the node can still take
// their places out of the queue. Then a leader hands leadership over: calls that others hand on to it find the next one.
// From then on calls are refused, and Drain waits for those under way, bounded by ctx.
func (s *Server) Drain(ctx context.Context) error {
	s.startDrain()
	err := s.waits.wait(ctx)
	if s.node.LeadsOthers() && err == nil {
		s.handOver(ctx)
	}
	s.refusing.Store(true)
	return s.running.wait(ctx)
}

// handOverWithin bounds how long a node that stops waits for another one to lead; there may be none that can.
const handOverWithin = 2 * time.Second

func (s *Server) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, handOverWithin)
	defer cancel()
	to, err := s.node.TransferLeadership(ctx, "")
	if err != nil {
		s.logger.Info("leadership could not be handed over", "error", err)
		return
	}
	s.logger.Info("handed leadership over", "to", to)
}

// underWay counts calls that are under way.
type underWay struct {
	mu    sync.Mutex
	calls int
	// none, if set, is closed when there are none.
	none chan struct{}
}

func (u *underWay) enter() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls++
}

func (u *underWay) leave() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls--; u.calls == 0 && u.none != nil {
		close(u.none)
		u.none = nil
	}
}

// wait waits until none is under way.
func (u *underWay) wait(ctx context.Context) error {
	u.mu.Lock()
	if u.calls == 0 {
		u.mu.Unlock()
		return nil
	}
	if u.none == nil {
		u.none = make(chan struct{})
	}
	none := u.none
	u.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Server) isDraining() bool { return s.drain.Err() != nil }
