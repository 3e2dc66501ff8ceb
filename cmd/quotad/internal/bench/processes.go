package bench

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// startIn is how long a cluster may take to serve.
const startIn = 20 * time.Second

// processes are a cluster's.
type processes struct {
	addresses []string
	all       []*exec.Cmd
}

// start starts one process, whose output goes into a file.
func (p *processes) start(dir, name, binary string, args ...string) error {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(binary, args...) //nolint:noctx // it is asked to stop, and killed if it does not
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	p.all = append(p.all, cmd)
	return nil
}

// stop ends all processes, in order if they can.
func (p *processes) stop() {
	for _, cmd := range p.all {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, cmd := range p.all {
		killer := time.AfterFunc(12*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		killer.Stop()
	}
}

// freeAddresses returns loopback addresses that are free now.
func freeAddresses(ctx context.Context, n int) ([]string, error) {
	addresses := make([]string, n)
	for i := range addresses {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		addresses[i] = l.Addr().String()
	}
	return addresses, nil
}

// startNodes starts three nodes and applies the quotas.
func startNodes(ctx context.Context, dir string) (*processes, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	free, err := freeAddresses(ctx, 6)
	if err != nil {
		return nil, err
	}
	p := &processes{addresses: free[:3]}
	peers := make([]string, 3)
	for i := range peers {
		peers[i] = fmt.Sprintf("n%d=%s/%s", i+1, free[3+i], free[i])
	}
	for i := range peers {
		name := fmt.Sprintf("n%d", i+1)
		err := p.start(dir, name, binary, "serve", "--node-id", name, "--data-dir", filepath.Join(dir, name),
			"--api-listen", free[i], "--raft-listen", free[3+i], "--peers", strings.Join(peers, ","))
		if err != nil {
			p.stop()
			return nil, err
		}
	}
	if err := p.applyQuotas(ctx); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// applyQuotas waits for the cluster and applies quotas with limits that are never reached.
func (p *processes) applyQuotas(ctx context.Context) error {
	request := &quotav1.ApplyQuotasRequest{}
	for i := -1; i < quotaCount; i++ {
		name := "bench/hot"
		if i >= 0 {
			name = fmt.Sprintf("bench/q%03d", i)
		}
		request.Quotas = append(request.Quotas, &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Rate{
			Rate: &quotav1.Rate{Limit: 1 << 50, Per: durationpb.New(time.Minute)},
		}})
	}
	admin := quotav1connect.NewAdminServiceClient(http.DefaultClient, "http://"+p.addresses[0])
	return retry(ctx, func(ctx context.Context) error {
		_, err := admin.ApplyQuotas(ctx, request)
		if connect.CodeOf(err) == connect.CodeInvalidArgument {
			return fmt.Errorf("the benchmark's quotas were refused: %w", err)
		}
		return err
	})
}

// retry tries until it works or startIn is over.
func retry(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startIn)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster does not serve: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// startEtcd starts three etcd processes on the same disk.
func startEtcd(ctx context.Context, dir string) (*processes, error) {
	binary, err := exec.LookPath("etcd")
	if err != nil {
		return nil, fmt.Errorf("etcd is not installed (Debian: etcd-server): %w", err)
	}
	free, err := freeAddresses(ctx, 6)
	if err != nil {
		return nil, err
	}
	p := &processes{addresses: free[:3]}
	members := make([]string, 3)
	for i := range members {
		members[i] = fmt.Sprintf("e%d=http://%s", i+1, free[3+i])
	}
	for i := range members {
		name := fmt.Sprintf("e%d", i+1)
		err := p.start(dir, name, binary, "--name", name, "--data-dir", filepath.Join(dir, name),
			"--listen-client-urls", "http://"+free[i], "--advertise-client-urls", "http://"+free[i],
			"--listen-peer-urls", "http://"+free[3+i], "--initial-advertise-peer-urls", "http://"+free[3+i],
			"--initial-cluster", strings.Join(members, ","), "--initial-cluster-state", "new", "--log-level", "error")
		if err != nil {
			p.stop()
			return nil, err
		}
	}
	err = retry(ctx, func(ctx context.Context) error {
		return etcdCall(ctx, p.addresses[0], "put", map[string]any{"key": etcdKey, "value": encode("0")}, nil)
	})
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// body makes a request's body.
func body(data []byte) *bytes.Reader { return bytes.NewReader(data) }
