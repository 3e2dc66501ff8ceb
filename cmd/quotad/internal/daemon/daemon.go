// Package daemon runs one node as a process. It connects the Raft node, the API, the log, certificates, tokens and systemd,
// and shuts them down in order. It makes no decisions about quotas.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/quotad/quotad/cmd/quotad/internal/config"
	"github.com/quotad/quotad/cmd/quotad/internal/logging"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/raftnode/record"
	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/links"
)

// stopWithin bounds an orderly stop: drain, transfer leadership, close files.
const stopWithin = 9 * time.Second

// drainWithin is the part of stopWithin for calls in flight.
const drainWithin = 4 * time.Second

// Options are the inputs of Run.
type Options struct {
	// Load reads the configuration; Run calls it again at each Reload.
	Load func() (*config.Loaded, error)
	// LogTo receives the log.
	LogTo io.Writer
	// Version is the binary's version.
	Version string
	// Reload requests a reload of tokens, certificates and the log level; nil: never.
	Reload <-chan os.Signal
	// Quotas replaces the configuration's quotas file, and is applied in the same way; nil: none.
	Quotas *quotafile.File
	// Ready is called once, when the node accepts calls and the quotas (if any) are applied or have failed; nil: no
	// callback.
	Ready func(apiAddress string, quotas error)
}

// ErrStopped says that the node stopped because of an error, which follows it in the chain.
var ErrStopped = errors.New("the node stopped because of an error")

// process is the parts of a running node.
type process struct {
	options Options
	config  config.Config
	logger  hclog.Logger
	node    *raftnode.Node
	api     *rpc.Server
	http    *http.Server
	// ops serves operators at opsListener; both nil: no such port.
	ops         *http.Server
	opsListener net.Listener
	tokens      *rpc.Tokens
	// memory is the memory limit in bytes; 0: none.
	memory int64
	// callers are the open TLS connections of both ports of the API.
	callers links.Set
	// apiCertificates and raftCertificates are nil if TLS is off.
	apiCertificates, raftCertificates *certificates
}

// heapFloor is memory that is never touched, and so occupies none. The collector works as if the heap were larger by that
// amount: without it a node with a small state collects many times a second under load. In return a busy node takes about
// twice that amount of additional memory. GOGC and GOMEMLIMIT act as always.
func heapFloor() []byte { return make([]byte, 64<<20) }

// Run runs a node until ctx ends, then stops it in order and returns nil. It returns an error if the node cannot start or
// stops because of an error (ErrStopped), and a *logstore.UnsupportedError where no node can run.
func Run(ctx context.Context, options Options) error {
	if err := logstore.Supported(); err != nil {
		return err
	}
	loaded, err := options.Load()
	if err != nil {
		return err
	}
	floor := heapFloor()
	defer runtime.KeepAlive(floor)
	lines := logging.NewAsyncWriter(options.LogTo)
	defer closeLog(lines)
	p := &process{options: options, config: loaded.Config}
	p.logger = logging.New(lines, loaded.Config.Log.Level, loaded.Config.Log.Format)

	registry := newRegistry(lines)
	listener, err := p.start(registry)
	if err != nil {
		return err
	}
	served := make(chan error, 2)
	go func() { served <- serve(p.http, listener) }()
	if p.ops != nil {
		go func() { served <- serve(p.ops, p.opsListener) }()
		p.logger.Info("serving operators", "ops", p.opsListener.Addr().String(), "pprof", p.config.Ops.Pprof)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go p.api.FollowLimits(ctx)
	go p.settleIn(ctx, listener.Addr().String())
	go p.feedWatchdog(ctx)
	p.announce(listener.Addr().String())

	err = p.wait(ctx, served)
	return errors.Join(err, p.stop())
}

// start opens everything in an order that finds cheap and common mistakes before it writes anything: first the files, then
// the API's address, then the data.
func (p *process) start(registry *prometheus.Registry) (net.Listener, error) {
	if p.config.Testing {
		p.logger.Warn("STARTED FOR TESTING: every caller can dump the log, shift clocks and crash this node; never use this in production")
	}
	if err := p.loadFiles(); err != nil {
		return nil, err
	}
	if err := prepareDataDir(p.config.DataDir); err != nil {
		return nil, err
	}
	p.reportSyncTime()
	p.registerExpiry(registry)
	listener, err := rpc.Listen(p.config.API.Listen, rpc.DefaultMaxConnections)
	if err != nil {
		return nil, fmt.Errorf("api.listen: %w", err)
	}
	registry.MustRegister(listener)
	if p.config.Ops.Listen != "" {
		if p.opsListener, err = rpc.Listen(p.config.Ops.Listen, rpc.DefaultMaxOpsConnections); err != nil {
			return nil, errors.Join(fmt.Errorf("ops.listen: %w", err), listener.Close())
		}
	}
	if err := p.open(registry, listener); err != nil {
		return nil, errors.Join(err, listener.Close(), p.closeOps())
	}
	return listener, nil
}

// loadFiles reads certificates, tokens and the quotas file. A file that cannot be used is a mistake of the configuration.
func (p *process) loadFiles() error {
	var err error
	if p.apiCertificates, err = loadCertificates(p.config.API.TLS); err != nil {
		return mistake("api.tls_cert", err)
	}
	if p.raftCertificates, err = loadCertificates(p.config.Raft.TLS); err != nil {
		return mistake("raft.tls_cert", err)
	}
	if p.config.TokensFile != "" {
		if p.tokens, err = rpc.LoadTokens(p.config.TokensFile); err != nil {
			return mistake("tokens_file", err)
		}
	}
	if p.config.QuotasFile != "" && p.options.Quotas == nil {
		if p.options.Quotas, err = quotafile.Read(p.config.QuotasFile); err != nil {
			return mistake("quotas_file", err)
		}
	}
	return nil
}

// mistake is an error of one setting.
func mistake(setting string, err error) error {
	return &config.Error{Mistakes: []error{fmt.Errorf("%s: %w", setting, err)}}
}

// open starts the Raft node and the API in front of it.
func (p *process) open(registry *prometheus.Registry, listener *rpc.Listener) error {
	settings, err := p.nodeConfig(registry, listener.Addr().String())
	if err != nil {
		return err
	}
	if p.node, err = raftnode.Open(settings); err != nil {
		return err
	}
	p.api, err = rpc.New(rpc.Config{
		Node: p.node, Tokens: p.tokens, Registry: registry, Listener: listener, Logger: p.logger.Named("api"), Version: p.options.Version,
		PeerTLS: p.apiCertificates.apiClient(), PeerTrust: trust(p.config.API.TLS), Memory: settings.MemoryLimit,
		OpenFiles: p.openFiles(),
	})
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
		defer cancel()
		return errors.Join(err, p.node.Close(ctx))
	}
	p.http = rpc.NewHTTPServer(p.api.Handler(), p.apiCertificates.apiServer(), p.logger.Named("http"))
	p.callers.Watch(p.http)
	if p.opsListener != nil {
		p.ops = rpc.NewHTTPServer(p.api.OpsHandler(p.config.Ops.Pprof), p.apiCertificates.apiServer(), p.logger.Named("ops"))
		p.callers.Watch(p.ops)
	}
	return nil
}

// closeOps closes the operators' port.
func (p *process) closeOps() error {
	switch {
	case p.ops != nil:
		return p.ops.Close()
	case p.opsListener != nil:
		return p.opsListener.Close()
	}
	return nil
}

// nodeConfig translates the configuration. The port of an API address with port 0 is known only now.
func (p *process) nodeConfig(registry *prometheus.Registry, apiAddress string) (raftnode.Config, error) {
	peerTLS, err := p.raftCertificates.peers()
	if err != nil {
		return raftnode.Config{}, err
	}
	c := raftnode.DefaultConfig()
	c.Build.Version = p.options.Version
	c.ID, c.DataDir, c.Testing = p.config.NodeID, p.config.DataDir, p.config.Testing
	c.LogStore = logstore.Kind(p.config.LogStore)
	c.RaftAddress, c.AdvertiseRaft = p.config.Raft.Listen, p.config.Raft.Advertise
	c.APIAddress = p.config.API.Advertise
	if p.config.API.Advertise == p.config.API.Listen {
		c.APIAddress = apiAddress
	}
	for _, peer := range p.config.Peers {
		c.Peers = append(c.Peers, raftnode.Peer{ID: peer.ID, RaftAddress: peer.Raft, APIAddress: peer.API})
	}
	if len(c.Peers) == 1 {
		c.Peers[0].APIAddress = c.APIAddress
	}
	c.HeartbeatTimeout, c.ElectionTimeout = p.config.Times.Heartbeat, p.config.Times.Election
	c.LeaderLease = p.config.Times.Lease
	c.FreeLow, c.FreeStop = watermark(p.config.Disk.RefuseBelow), watermark(p.config.Disk.StopBelow)
	p.memory = p.memoryLimit()
	c.MemoryLimit = p.memory
	c.SnapshotThreshold, c.TrailingLogs = p.config.Snapshots.Entries, p.config.Snapshots.Trailing
	c.SnapshotInterval = p.config.Snapshots.Interval
	if p.config.TestingRecord != "" {
		file, err := record.Create(p.config.TestingRecord)
		if err != nil {
			return raftnode.Config{}, fmt.Errorf("testing_record: %w", err)
		}
		c.Applied = file.Applied
	}
	c.PeerTLS, c.PeerNames, c.Logger, c.Registerer = peerTLS, p.config.RaftNames, p.logger, registry
	return c, nil
}

// watermark translates 0 bytes, which means off, to -1, which means off for the node.
func watermark(bytes int64) int64 {
	if bytes == 0 {
		return -1
	}
	return bytes
}

// collectAbove is the percentage of the memory limit above which the collector works harder. It is below
// raftnode.MemoryMark, so that garbage alone never stops grants.
const collectAbove = 80

// MemoryLimit returns the memory limit in bytes that a configuration gives a process of this system; 0: none.
func MemoryLimit(c config.Config) (int64, error) {
	if c.MemoryLimit != 0 {
		return max(c.MemoryLimit, 0), nil
	}
	return raftnode.SystemMemoryLimit()
}

// memoryLimit returns the memory limit of this process, 0 for none, and sets the collector's limit accordingly.
func (p *process) memoryLimit() int64 {
	limit, err := MemoryLimit(p.config)
	if err != nil {
		p.logger.Warn("unknown memory limit: grants continue at any memory use; set memory.limit", "error", err)
	}
	if limit == 0 {
		return 0
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 100 * collectAbove)
	}
	return limit
}

// openFiles returns the process's limit of open files, 0 if unknown or unlimited.
func (p *process) openFiles() int64 {
	limit, err := openFilesLimit()
	if err != nil {
		p.logger.Warn("unknown limit of open files: the API takes as many connections as quotad limits says", "error", err)
		return 0
	}
	if limit > math.MaxInt64 { // unlimited
		return 0
	}
	return int64(limit)
}

// reportSyncTime warns if the disk is so slow that every grant would be slow.
func (p *process) reportSyncTime() {
	median, err := measureSync(p.config.DataDir)
	switch {
	case err != nil:
		p.logger.Warn("cannot measure the disk's speed", "error", err)
	case median > slowSync:
		p.logger.Warn("the disk is slow: every grant waits for a write on a majority of nodes", "median_sync", median, "wanted", slowSync)
	default:
		p.logger.Debug("measured the disk", "median_sync", median)
	}
}

func serve(server *http.Server, listener net.Listener) error {
	if server.TLSConfig != nil {
		return server.ServeTLS(listener, "", "")
	}
	return server.Serve(listener)
}

// announce reports to the log and to systemd that the node accepts calls.
func (p *process) announce(apiAddress string) {
	p.logger.Info("serving", "node", p.config.NodeID, "api", apiAddress, "raft", p.config.Raft.Listen,
		"data_dir", p.config.DataDir, "tls", p.apiCertificates != nil, "tokens", p.tokens != nil, "version", p.options.Version)
	if p.tokens == nil {
		p.logger.Info("no tokens_file: every caller and holder name is trusted")
	}
	for _, port := range p.config.Insecurities() {
		p.logger.Warn("INSECURE: "+port.Message, "allowed_by", port.Key)
	}
	p.warnOfNoTokens()
	p.warnOfExpiry()
	for _, mistake := range CheckCertificates(p.config) {
		p.logger.Warn("the other nodes would reject a certificate", "reason", mistake)
	}
	p.notify(daemon.SdNotifyReady)
}

// wait returns nil when ctx ends, and an error when a part ends unexpectedly.
func (p *process) wait(ctx context.Context, served <-chan error) error {
	for {
		select {
		case <-ctx.Done():
			p.logger.Info("stopping", "within", stopWithin)
			return nil
		case <-p.node.Done():
			return fmt.Errorf("%w: %w", ErrStopped, p.node.Err())
		case err := <-served:
			return fmt.Errorf("%w: the API ended: %w", ErrStopped, err)
		case <-p.options.Reload:
			p.reload()
		}
	}
}

// stop shuts the node down. The order matters: first waits and streams end, leadership is transferred and calls in flight
// finish (rpc.Server.Drain); then the ports close; last the files.
func (p *process) stop() error {
	p.notify(daemon.SdNotifyStopping)
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	drain, drained := context.WithTimeout(ctx, drainWithin)
	defer drained()
	if err := p.api.Drain(drain); err != nil {
		p.logger.Warn("aborted calls in flight", "error", err)
	}
	if err := p.http.Shutdown(drain); err != nil {
		_ = p.http.Close() // only idle connections and callers that do not read remain
	}
	_ = p.closeOps()
	if err := p.node.Close(ctx); err != nil {
		return err
	}
	p.logger.Info("stopped")
	return nil
}

// closeLog waits up to 500 ms for the last lines: a reader that is stuck must not keep the process alive.
func closeLog(lines *logging.AsyncWriter) {
	giveUp := make(chan struct{})
	timer := time.AfterFunc(500*time.Millisecond, func() { close(giveUp) })
	defer timer.Stop()
	lines.Close(giveUp)
}

// newRegistry makes the registry of /metrics, with the metrics of the process.
func newRegistry(lines *logging.AsyncWriter) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "quotad", Name: "log_lines_dropped_total", Help: "Log lines lost because their reader was too slow.",
		}, func() float64 { return float64(lines.Dropped()) }),
	)
	return registry
}
