package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/jepsen/canary"
	"github.com/quotad/quotad/jepsen/certs"
	"github.com/quotad/quotad/jepsen/check"
	"github.com/quotad/quotad/jepsen/cluster"
	"github.com/quotad/quotad/jepsen/disk"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/hostile"
	"github.com/quotad/quotad/jepsen/machine"
	"github.com/quotad/quotad/jepsen/nemesis"
	"github.com/quotad/quotad/jepsen/network"
	"github.com/quotad/quotad/jepsen/workload"
	"github.com/quotad/quotad/rpc/quotav1"
)

// plan is the specification of a run.
type plan struct {
	mixName, network, folder, summary, defect, store string
	length                                           time.Duration
	seed                                             uint64
	nodes                                            int
	proxied, plainDisks, tls, tlsPinned              bool
	load                                             float64
	builds                                           nemesis.Builds
	// faults are the named faults that replace the mix's.
	faults []string

	mix nemesis.Mix
}

// complete sets defaults and checks the rest.
func (p *plan) complete() error {
	var err error
	if p.mix, err = nemesis.MixNamed(p.mixName); err != nil {
		return err
	}
	if len(p.faults) > 0 {
		if p.mix, err = p.mix.Only(p.faults...); err != nil {
			return err
		}
	}
	if p.length == 0 {
		p.length = 10 * time.Minute
	}
	if p.seed == 0 {
		p.seed = rand.Uint64N(1_000_000_000) //nolint:gosec // no secret
	}
	if !p.tlsPinned {
		p.tls = p.wantsTLS()
	}
	if p.store != "" && p.store != "boltdb" && p.store != "wal" {
		return fmt.Errorf("a log store is boltdb or wal, not %q", p.store)
	}
	if p.nodes != 1 && p.nodes != 3 && p.nodes != 5 {
		return fmt.Errorf("a cluster has 1, 3 or 5 nodes, not %d", p.nodes)
	}
	if p.folder, err = filepath.Abs(p.folder); err != nil {
		return err
	}
	return p.findBuilds()
}

// findBuilds checks whether the builds of the run exist.
func (p *plan) findBuilds() error {
	if p.mix.Name == nemesis.Upgrade && (p.builds.Previous == "" || p.builds.Unfit == "") {
		return fmt.Errorf("the mix %s needs --previous and --unfit: builds to mix with; make test-upgrade has them", nemesis.Upgrade)
	}
	for _, path := range []*string{&p.builds.New, &p.builds.Previous, &p.builds.Unfit} {
		if *path == "" {
			continue
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
		if _, err := os.Stat(*path); err != nil {
			return err
		}
	}
	return nil
}

// wantsTLS says whether the nodes use TLS by default: always if each fault must come and certificates are rotated, and otherwise by the
// seed where certificates could be rotated.
func (p *plan) wantsTLS() bool {
	if !slices.Contains(p.mix.Names(), nemesis.Rotation) {
		return false
	}
	return p.mix.Each || rand.New(rand.NewPCG(p.seed, tlsDraw)).IntN(2) == 0 //nolint:gosec // no secret
}

// tlsDraw separates the draw of TLS from other draws of the same seed.
const tlsDraw = 0x715

// storeFlags are the flags of the nodes' log store.
func (p *plan) storeFlags() []string {
	if p.store == "" {
		return nil
	}
	return []string{"--log-store", p.store}
}

// stage is a run while it runs.
type stage struct {
	plan     *plan
	dir      history.Dir
	facts    *history.Facts
	network  *network.Network
	hosts    []*network.Host
	operator *network.Host
	// anonymous is the host of hostile callers, and of builds that ask to be added.
	anonymous *network.Host
	disks     map[string]*disk.Disk
	cluster   *cluster.Cluster
	provider  *workload.Provider
	workers   []*worker
	// gateway is the process through which programs of one machine call a model; nil: the mix needs none.
	gateway      *gateway
	gatewayToken string
	faults       *history.Writer[history.Fault]
	// certificates are the nodes'; nil: all connections are in clear text.
	certificates *certs.Set
	// faultCalls are the recorded calls of faults, judged like the workload's.
	faultCalls *history.Writer[history.Call]
	// secret is the token that all calls carry.
	secret string
	// hostile is the token of hostile callers.
	hostile string
	out     io.Writer
}

// run makes a run and returns its folder.
func (p *plan) run(ctx context.Context, out io.Writer) (history.Dir, error) {
	dir := history.Dir(filepath.Join(p.folder, fmt.Sprintf("%s-%s-%d", time.Now().UTC().Format("20060102-150405"), p.mix.Name, p.seed)))
	s := &stage{plan: p, dir: dir, out: out, facts: &history.Facts{Seed: p.seed, Mix: p.mix.Name, Defect: p.defect, Start: time.Now()}}
	s.say("seed %d, mix %s, %d nodes, %v of faults; history: %s", p.seed, p.mix.Name, p.nodes, p.length, dir)
	err := s.open(ctx)
	if err == nil {
		err = s.play(ctx)
	}
	if closeErr := s.close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return dir, err
	}
	return dir, dir.WriteFacts(s.facts)
}

func (s *stage) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// open builds network, disks, nodes, provider and workers.
func (s *stage) open(ctx context.Context) error {
	p := s.plan
	var err error
	s.network, err = network.Open(network.Options{Kind: network.Kind(p.network), Proxied: p.proxied})
	if err != nil {
		return err
	}
	s.facts.Network = string(s.network.Kind())
	if p.proxied {
		s.facts.Network += ", proxied"
	}
	if reason := s.network.Reason(); reason != "" {
		s.say("links are %s: %s", s.network.Kind(), reason)
	}
	if s.operator, err = s.network.AddHost("operator"); err != nil {
		return err
	}
	for i := range p.nodes {
		host, err := s.network.AddHost(fmt.Sprintf("n%d", i+1), cluster.Ports()...)
		if err != nil {
			return err
		}
		s.hosts = append(s.hosts, host)
	}
	if s.anonymous, err = s.network.AddHost("stranger", cluster.Ports()...); err != nil {
		return err
	}
	if err := s.mount(); err != nil {
		return err
	}
	if s.faults, err = history.Create[history.Fault](s.dir.Faults()); err != nil {
		return err
	}
	if s.faultCalls, err = history.Create[history.Call](s.dir.Calls("faults")); err != nil {
		return err
	}
	return s.startCluster(ctx)
}

// mount puts the suite's file systems under the nodes, where that is wanted and allowed.
func (s *stage) mount() error {
	s.facts.Disk = "plain"
	for _, host := range s.hosts {
		if err := os.MkdirAll(s.data(host.Name()), 0o700); err != nil {
			return err
		}
	}
	if s.plan.plainDisks {
		return nil
	}
	disks := map[string]*disk.Disk{}
	for _, host := range s.hosts {
		mounted, err := disk.Mount(s.backing(host.Name()), s.data(host.Name()))
		if errors.Is(err, disk.ErrUnavailable) {
			s.say("disks are plain: %v", err)
			return nil
		}
		if err != nil {
			return err
		}
		disks[host.Name()] = mounted
	}
	s.disks, s.facts.Disk = disks, "FUSE"
	return nil
}

func (s *stage) backing(host string) string { return filepath.Join(string(s.dir), "disks", host) }

func (s *stage) data(host string) string { return filepath.Join(string(s.dir), "data", host) }

// hostOf is the host of a node: the successor of a replaced node runs on the same host.
func hostOf(node string) string {
	host, _, _ := strings.Cut(node, ".")
	return host
}

// startCluster starts the nodes, applies the quotas and starts provider and workers.
func (s *stage) startCluster(ctx context.Context) error {
	hosts := make([]cluster.Host, len(s.hosts))
	for i, host := range s.hosts {
		hosts[i] = host
	}
	var tokens string
	var err error
	if s.secret, tokens, err = canary.New(ctx, s.plan.builds.New, string(s.dir)); err != nil {
		return err
	}
	if s.hostile, err = canary.Another(ctx, s.plan.builds.New, string(s.dir), "hostile", "use,report,read"); err != nil {
		return err
	}
	if s.gatewayToken, err = canary.Another(ctx, s.plan.builds.New, string(s.dir), "gateway", "use,report,read"); err != nil {
		return err
	}
	if s.plan.tls {
		if s.certificates, err = certs.New(ctx, s.plan.builds.New, filepath.Join(string(s.dir), "certs")); err != nil {
			return err
		}
		s.facts.Network += ", TLS"
	}
	if store := cmp.Or(s.plan.store, os.Getenv("QUOTAD_LOG_STORE")); store != "" {
		s.facts.Disk += ", " + store
	}
	s.cluster = cluster.New(cluster.Config{
		Secret: s.secret, Certificates: s.certificates, Binary: cmp.Or(s.plan.builds.Previous, s.plan.builds.New),
		Hosts: hosts, Operator: s.operator, Guest: s.anonymous, History: s.dir, RestartAfter: time.Second,
		Data: func(node string) string { return filepath.Join(s.data(hostOf(node)), "d-"+node) },
		Flags: append([]string{
			"--raft-snapshot-entries", "400", "--raft-snapshot-interval", "2s", "--raft-trailing-entries", "300",
			"--disk-refuse-below", "64KiB", "--disk-stop-below", "16KiB", "--tokens-file", tokens,
		}, s.plan.storeFlags()...),
	})
	ready, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := s.cluster.Start(ready); err != nil {
		return err
	}
	leader, err := s.cluster.AwaitLeader(ready)
	if err != nil {
		return err
	}
	_, err = leader.Admin().ApplyQuotas(ready, &quotav1.ApplyQuotasRequest{
		Quotas: slices.Concat(workload.Quotas(), workload.ModelQuotas(), hostile.Quotas()), Holders: workload.HolderRules(),
		ReplaceHolders: true, Workflows: workload.Workflows(), ReplaceWorkflows: true,
	})
	if err != nil {
		return err
	}
	limits := nemesis.SmallBudgets()
	limits.SessionIdle = durationpb.New(workload.SessionIdle)
	_, err = leader.Admin().SetLimits(ready, &quotav1.SetLimitsRequest{Limits: limits})
	if err != nil {
		return err
	}
	for _, node := range s.cluster.Nodes() {
		usage, err := node.Usage(ctx)
		if err != nil {
			return err
		}
		s.facts.Fresh = append(s.facts.Fresh, usage)
	}
	return s.startWorkers(ctx)
}

func (s *stage) startWorkers(ctx context.Context) error {
	host, err := s.network.AddHost("provider", 8080)
	if err != nil {
		return err
	}
	listener, err := host.Listen(8080)
	if err != nil {
		return err
	}
	if s.provider, err = workload.StartProvider(listener, s.dir); err != nil {
		return err
	}
	provider := fmt.Sprintf("%s:8080", host.IP())
	start := func(on *network.Host, profile workload.Profile, number int) error {
		w, err := s.startWorker(on, profile, number, provider)
		if err == nil {
			s.workers = append(s.workers, w)
		}
		return err
	}
	for _, profile := range workload.Profiles() {
		for number := range profile.Workers {
			if err := start(nil, profile, number); err != nil {
				return err
			}
		}
	}
	if !s.plan.mix.Gateway() {
		return nil
	}
	if err := s.startGateway(ctx, provider); err != nil {
		return err
	}
	return start(s.gateway.host, workload.Agents(), 0)
}

// play injects faults for the length of the plan, heals them, and records the final state.
func (s *stage) play(ctx context.Context) error {
	s.facts.Began = history.Now()
	busy := machine.Busy()
	broken, stop := context.WithTimeout(ctx, s.plan.length)
	defer stop()
	n := nemesis.New(s.env(), s.plan.seed, s.faults, func(line string) { s.say("%s", line) })
	mix := s.fitting()
	s.facts.Faults, s.facts.Demanded = mix.Names(), mix.Demanded(s.plan.length)
	if len(mix.Faults) == 0 {
		<-broken.Done()
	}
	if err := n.Run(broken, mix); err != nil {
		s.facts.Unhealed = err.Error() // judged: a failure to heal fails the run
		s.say("not all could be healed: %v", err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.facts.Healed, s.facts.Busy = history.Now(), busy()
	s.say("healed; the workload continues for %v", afterwards)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(afterwards):
	}
	for _, w := range s.workers {
		w.stop()
	}
	s.facts.Ended = history.Now()
	return s.observe(ctx)
}

// afterwards is how long the workload continues after everything is healed: longer than recovery may take.
const afterwards = 15 * time.Second

// fitting is the mix without faults that this stage does not support.
func (s *stage) fitting() nemesis.Mix {
	mix := s.plan.mix
	if !s.plan.proxied {
		mix = mix.Without("delay", "half-cut", "stalled-streams")
	}
	if s.certificates == nil {
		mix = mix.Without(nemesis.Rotation)
	}
	if s.network.Kind() != network.Namespaces {
		mix = mix.Without("loss")
	}
	if s.disks == nil {
		mix = mix.Without("slow-sync", "stalled-sync", "failing-sync", "disk-full", "power-cut")
	}
	return mix
}

// observe records the state of all nodes once they show one index and have released their callers' resources.
func (s *stage) observe(ctx context.Context) error {
	for _, node := range s.cluster.Nodes() {
		s.facts.Nodes = append(s.facts.Nodes, node.ID)
	}
	s.facts.Exits = s.cluster.Exits()
	if err := s.observeGateway(ctx); err != nil {
		return err
	}
	s.converge(ctx)
	s.settle(ctx)
	if status, err := s.cluster.Nodes()[0].Status(ctx); err == nil {
		s.facts.Version = status.Version
	}
	var err error
	s.facts.Installed, err = s.installed()
	return err
}

// converge records the nodes' states as soon as they are equal, or else the last states.
func (s *stage) converge(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		s.facts.Final = s.facts.Final[:0]
		for _, node := range s.cluster.Nodes() {
			if !node.Retired() {
				s.facts.Final = append(s.facts.Final, stateOf(ctx, node))
			}
		}
		if equal(s.facts.Final) || ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// settleWithin is how long a process may take to release its callers' resources: longer than a connection whose other end was cut off may
// be idle (two minutes, package rpc).
const settleWithin = 140 * time.Second

// settle records the usage of the processes after the last call: as soon as they are back at the usage before the workload, or else after
// settleWithin.
func (s *stage) settle(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range s.facts.Final {
		wg.Go(func() { s.settleOne(ctx, &s.facts.Final[i]) })
	}
	wg.Wait()
}

func (s *stage) settleOne(ctx context.Context, final *history.Final) {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	node := s.cluster.Node(final.Node)
	for {
		usage, err := node.Usage(ctx)
		if err == nil {
			final.Usage = usage
		}
		if ctx.Err() != nil || err == nil && check.Settled(&usage, s.facts.Fresh) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// stateOf returns a node's index and state hashes.
func stateOf(ctx context.Context, node *cluster.Node) history.Final {
	final := history.Final{Node: node.ID}
	hash, err := node.Admin().GetStateHash(ctx, &quotav1.GetStateHashRequest{})
	if err != nil {
		final.Error = err.Error()
		return final
	}
	final.Index, final.Ledger, final.Whole = hash.Index, hash.Ledger, hash.Whole
	return final
}

// equal says whether all nodes answered and show one index.
func equal(finals []history.Final) bool {
	for _, final := range finals {
		if final.Error != "" || final.Index != finals[0].Index {
			return false
		}
	}
	return true
}

// installed counts the snapshots that nodes installed from a leader, by their logs.
func (s *stage) installed() (int, error) {
	count := 0
	for _, node := range s.cluster.Nodes() {
		text, err := os.ReadFile(s.dir.Log(node.ID))
		if err != nil {
			return 0, err
		}
		count += strings.Count(strings.ToLower(string(text)), "installed remote snapshot")
	}
	return count, nil
}

// close stops everything. It may be called at any time.
func (s *stage) close() error {
	var err error
	for _, w := range s.workers {
		err = errors.Join(err, w.end())
	}
	if s.gateway != nil {
		s.gateway.Kill()
	}
	if s.cluster != nil {
		s.cluster.Close()
	}
	if s.provider != nil {
		err = errors.Join(err, s.provider.Close())
	}
	if s.faults != nil {
		err = errors.Join(err, s.faults.Close())
	}
	if s.faultCalls != nil {
		err = errors.Join(err, s.faultCalls.Close())
	}
	for _, mounted := range s.disks {
		err = errors.Join(err, mounted.Close())
	}
	if s.network != nil {
		err = errors.Join(err, s.network.Close())
	}
	return err
}
