package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/jepsen/disk"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/hostile"
	"github.com/quotad/quotad/jepsen/nemesis"
	"github.com/quotad/quotad/jepsen/network"
	"github.com/quotad/quotad/jepsen/workload"
)

// worker is a process of the workload.
type worker struct {
	host  *network.Host
	cmd   *exec.Cmd
	input io.WriteCloser
	ended chan error
}

// startWorker starts a worker on a host; nil: on a host of its own.
func (s *stage) startWorker(host *network.Host, profile workload.Profile, number int, provider string) (*worker, error) {
	name := fmt.Sprintf("%s-%d", profile.Name, number)
	var err error
	if host == nil {
		if host, err = s.network.AddHost(name); err != nil {
			return nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{host: host, ended: make(chan error, 1)}
	w.cmd = exec.Command(self, "worker") //nolint:noctx // its input's end ends it
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if w.input, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	log, err := openLog(s.dir.Log("worker-" + name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor
	w.cmd.Stdout, w.cmd.Stderr = log, log
	if err := host.Start(w.cmd); err != nil {
		return nil, err
	}
	go func() { w.ended <- w.cmd.Wait() }()
	spec := workload.Spec{
		Name: name, Profile: profile.Name, Actors: profile.Actors, Pace: profile.Pace * s.plan.load, Nodes: s.cluster.URLs(), Bundle: s.bundle(),
		Provider: provider, Secret: s.secret, LocalIP: host.ListenIP(), Seed: s.plan.seed + uint64(len(s.workers)), History: s.dir,
	}
	if s.gateway != nil && host == s.gateway.host {
		spec.Gateway = s.gateway.address
	}
	return w, json.NewEncoder(w.input).Encode(&spec)
}

// bundle is the file of the CAs that callers trust; empty: all connections are in clear text.
func (s *stage) bundle() string {
	if s.certificates == nil {
		return ""
	}
	return s.certificates.Bundle()
}

// attack starts a hostile caller as a process of its own: its files and processor time are not those of the suite, which serves disks and
// provider. It ends with its input, and with the suite.
func (s *stage) attack(spec *hostile.Spec) (end func() (*hostile.Report, error), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	spec.LocalIP = s.anonymous.ListenIP()
	cmd := exec.Command(self, "hostile") //nolint:noctx // its input's end ends it
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	log, err := openLog(s.dir.Log("hostile"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, log
	if err := s.anonymous.Start(cmd); err != nil {
		return nil, err
	}
	end = func() (*hostile.Report, error) {
		late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		report := new(hostile.Report)
		if err := errors.Join(input.Close(), cmd.Wait()); err != nil {
			return report, fmt.Errorf("the hostile caller: %w", err)
		}
		return report, json.Unmarshal(said.Bytes(), report)
	}
	if err := json.NewEncoder(input).Encode(spec); err != nil {
		_, endErr := end()
		return nil, errors.Join(err, endErr)
	}
	return end, nil
}

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// stop ends a worker's input, and with it the worker.
func (w *worker) stop() { _ = w.input.Close() }

// end waits for a worker's end; after a while it kills it.
func (w *worker) end() error {
	w.stop()
	_ = w.cmd.Process.Signal(syscall.SIGCONT) // a paused worker cannot end
	select {
	case err := <-w.ended:
		return err
	case <-time.After(30 * time.Second):
		return errors.Join(fmt.Errorf("the worker on %s did not end", w.host.Name()), w.cmd.Process.Kill())
	}
}

// Host implements nemesis.Worker.
func (w *worker) Host() string { return w.host.Name() }

// Pause implements nemesis.Worker.
func (w *worker) Pause() error { return w.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume implements nemesis.Worker.
func (w *worker) Resume() error { return w.cmd.Process.Signal(syscall.SIGCONT) }

// env is the part of the run that the nemesis may break.
func (s *stage) env() *nemesis.Env {
	e := &nemesis.Env{
		Cluster: s.cluster, Links: links{s.network}, Trouble: s.provider.Trouble, Dial: s.operator.DialContext, Hostile: s.hostile,
	}
	e.Attack, e.Builds = s.attack, s.plan.builds
	if s.gateway != nil {
		e.Gateway, e.CutStreams, e.Cut = s.gateway, s.provider.CutStreams, s.provider.Cut
	}
	e.Roomy = s.network.Kind() == network.Namespaces && !s.plan.proxied
	e.Folder = string(s.dir)
	e.Recorded = func(client string) http.RoundTripper {
		return &history.Recorder{Next: s.cluster.Transport(), Client: client, To: s.faultCalls}
	}
	e.Data = func(node string) string { return s.data(hostOf(node)) + "/d-" + node }
	for _, w := range s.workers {
		e.Clients = append(e.Clients, w.Host())
		if strings.HasPrefix(w.Host(), "sleepers") {
			e.Sleepers = append(e.Sleepers, w)
		}
	}
	if s.disks != nil {
		e.Disk = func(node string) nemesis.Disk { return faultyDisk{s.disks[hostOf(node)]} }
	}
	return e
}

// links gives the nemesis hosts by the names of their nodes.
type links struct{ network *network.Network }

func (l links) Cut(from, to string) error      { return l.network.Cut(hostOf(from), hostOf(to)) }
func (l links) HealLink(from, to string) error { return l.network.HealLink(hostOf(from), hostOf(to)) }

func (l links) Loss(from, to string, percent int) error {
	return l.network.Loss(hostOf(from), hostOf(to), percent)
}
func (l links) Rate(host string, bytes int64) error { return l.network.Rate(hostOf(host), bytes) }
func (l links) Delay(from, to string, mean, jitter time.Duration) error {
	return l.network.Delay(hostOf(from), hostOf(to), mean, jitter)
}

func (l links) ResetAfter(from, to string, bytes int64) error {
	return l.network.ResetAfter(hostOf(from), hostOf(to), bytes)
}

func (l links) Stall(from, to string, on bool) error {
	return l.network.Stall(hostOf(from), hostOf(to), on)
}
func (l links) Heal() error { return l.network.Heal() }

// Dropped implements nemesis.Links.
func (l links) Dropped() uint64 {
	var sum uint64
	all, err := l.network.Hits()
	if err != nil {
		return 0 // uncounted drops do not count as seen
	}
	for _, hits := range all {
		sum += hits.Dropped
	}
	return sum
}

// faultyDisk adapts a disk to nemesis.Disk.
type faultyDisk struct{ *disk.Disk }

// FailSyncs implements nemesis.Disk.
func (d faultyDisk) FailSyncs(times int) { d.FailSync(syscall.EIO, 1, times) }

// Injected implements nemesis.Disk.
func (d faultyDisk) Injected() int64 {
	c := d.Counters()
	return int64(c.SlowSyncs + c.FailedSyncs + c.NoSpace)
}

func mixesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "mixes", Short: "List the mixes of faults", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, mix := range nemesis.Mixes() {
				cmd.Printf("%-10s %s\n", mix.Name, strings.Join(mix.Faults, " "))
				for _, pair := range mix.Pairs {
					cmd.Printf("%-10s %s + %s\n", "", pair[0], pair[1])
				}
			}
			return nil
		},
	}
}
