package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/network"
	"github.com/quotad/quotad/jepsen/workload"
	"github.com/quotad/quotad/rpc/quotav1"
)

// gatewayPort is the port of a gateway on its host's loopback address.
const gatewayPort = "7452"

// gateway is the process that agents of its machine call instead of the provider. It implements nemesis.Gateway.
type gateway struct {
	host    *network.Host
	address string
	binary  string
	config  string
	key     string
	log     string
	accept  func(keys ...string)

	mu   sync.Mutex
	life *gatewayLife
	// keys counts the keys so far.
	keys  int
	exits []history.Exit
}

// gatewayLife is one process.
type gatewayLife struct {
	cmd   *exec.Cmd
	ended chan struct{}
	// asked says that its end was requested.
	asked bool
}

// startGateway starts a gateway on a machine of its own.
func (s *stage) startGateway(ctx context.Context, provider string) error {
	host, err := s.network.AddHost(history.Machine + "1")
	if err != nil {
		return err
	}
	dir := filepath.Join(string(s.dir), "canary") // secrets are not searched for there
	ip := "127.0.0.1"
	if s.network.Kind() == network.Loopback {
		ip = host.ListenIP()
	}
	g := &gateway{
		host: host, address: net.JoinHostPort(ip, gatewayPort), binary: s.plan.builds.New, config: filepath.Join(string(s.dir), "gateway.yaml"),
		key: filepath.Join(dir, "provider.key"), log: s.dir.Log("gateway"), accept: s.provider.Accept,
	}
	token := filepath.Join(dir, "gateway.token")
	if err := errors.Join(os.WriteFile(token, []byte(s.gatewayToken), 0o600), g.writeKey(), g.configure(s, token, provider)); err != nil {
		return err
	}
	g.accept(g.keyNamed(g.keys))
	s.gateway = g
	return g.Start(ctx)
}

// configure writes the configuration of the gateway.
func (g *gateway) configure(s *stage, token, provider string) error {
	nodes, err := json.Marshal(s.cluster.URLs())
	if err != nil {
		return err
	}
	authorities := ""
	if s.certificates != nil {
		authorities = fmt.Sprintf("\n  ca: %q", s.certificates.Bundle())
	}
	text := fmt.Sprintf(`listen: {tcp: [%q]}
machine: %s
trust: everyone-on-this-machine
cluster:
  nodes: %s
  token: {file: %q}%s
upstreams:
  openai:
    base: "http://%s%s"
    plain: true
    auth: inject
    keys: [{name: prod, from: {file: %q}}]
lease: 10s
`, g.address, g.host.Name(), nodes, token, authorities, provider, workload.ModelsPath, g.key)
	return os.WriteFile(g.config, []byte(text), 0o600)
}

func (g *gateway) keyNamed(number int) string { return fmt.Sprintf("made-up-%d", number) }

// writeKey replaces the key by the next one, atomically.
func (g *gateway) writeKey() error {
	g.keys++
	next := g.key + ".next"
	return errors.Join(os.WriteFile(next, []byte(g.keyNamed(g.keys)), 0o600), os.Rename(next, g.key))
}

// Host implements nemesis.Gateway.
func (g *gateway) Host() string { return g.host.Name() }

// Running implements nemesis.Gateway.
func (g *gateway) Running() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.life != nil
}

// Start implements nemesis.Gateway.
func (g *gateway) Start(ctx context.Context) error {
	log, err := openLog(g.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor
	cmd := exec.CommandContext(context.WithoutCancel(ctx), g.binary, "gateway", "--config", g.config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "GOTRACEBACK=all")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	g.mu.Lock()
	if g.life != nil {
		g.mu.Unlock()
		return errors.New("the gateway runs already")
	}
	if err := g.host.Start(cmd); err != nil {
		g.mu.Unlock()
		return fmt.Errorf("the gateway: %w", err)
	}
	life := &gatewayLife{cmd: cmd, ended: make(chan struct{})}
	g.life = life
	g.mu.Unlock()
	go g.supervise(life)
	return g.awaitReady(ctx, life)
}

// supervise records how a process ends.
func (g *gateway) supervise(life *gatewayLife) {
	err := life.cmd.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !life.asked {
		g.exits = append(g.exits, history.Exit{Node: "gateway", At: history.Now(), How: fmt.Sprint(err)})
	}
	g.life = nil
	close(life.ended)
}

// awaitReady waits until the gateway listens. It may listen while no node answers.
func (g *gateway) awaitReady(ctx context.Context, life *gatewayLife) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	asks := &http.Client{Transport: &http.Transport{DialContext: g.host.DialContext, DisableKeepAlives: true}}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.address+"/livez", nil)
		if err != nil {
			return err
		}
		if response, err := asks.Do(request); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			return nil
		}
		select {
		case <-life.ended:
			return errors.New("the gateway ended before it listened: see its log")
		case <-ctx.Done():
			return fmt.Errorf("the gateway does not listen: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Kill implements nemesis.Gateway.
func (g *gateway) Kill() bool { return g.end(syscall.SIGKILL) }

// end ends the process with a signal, and says whether there was one. It kills a process that does not end.
func (g *gateway) end(signal syscall.Signal) bool {
	g.mu.Lock()
	life := g.life
	if life != nil {
		life.asked = true
	}
	g.mu.Unlock()
	if life == nil {
		return false
	}
	_ = life.cmd.Process.Signal(signal) // a process that has just ended takes none
	select {
	case <-life.ended:
	case <-time.After(90 * time.Second):
		_ = life.cmd.Process.Kill()
		<-life.ended
	}
	return true
}

// SwapKey implements nemesis.Gateway.
func (g *gateway) SwapKey(overlap func()) error {
	old := g.keyNamed(g.keys)
	if err := g.writeKey(); err != nil {
		return err
	}
	next := g.keyNamed(g.keys)
	g.accept(old, next)
	overlap()
	g.accept(next)
	return nil
}

// held is what the quotas of the model hold now, by name.
func (s *stage) held(ctx context.Context) (map[string]int64, error) {
	leader, err := s.cluster.AwaitLeader(ctx)
	if err != nil {
		return nil, err
	}
	held := map[string]int64{}
	for _, quota := range workload.ModelQuotas() {
		status, err := leader.Quota().GetQuota(ctx, &quotav1.GetQuotaRequest{Name: quota.Name})
		if err != nil {
			return nil, err
		}
		held[quota.Name] = status.Quota.Held
	}
	return held, nil
}

// observeGateway ends the gateway in order, and records what its quotas still hold after its leases had time to expire.
func (s *stage) observeGateway(ctx context.Context) error {
	if s.gateway == nil {
		return nil
	}
	s.gateway.end(syscall.SIGTERM)
	s.gateway.mu.Lock()
	s.facts.Exits = append(s.facts.Exits, s.gateway.exits...)
	s.gateway.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		held, err := s.held(ctx)
		s.facts.Held = held
		var sum int64
		for _, n := range held {
			sum += n
		}
		if err == nil && sum == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}
