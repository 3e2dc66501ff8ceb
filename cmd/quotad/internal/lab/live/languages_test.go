package live_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/client/providertest"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/local"
	"github.com/quotad/quotad/raftnode/loopback"
)

// loops are programs that make call after call at a base URL, in four languages: those of make test-clients, by the names
// of their agents.
var loops = map[string][]string{
	"node-1": {"node", "loop.mjs"}, "node-2": {"node", "loop.mjs"}, "node-3": {"node", "loop.mjs"},
	"go-1": {"./openai-go", "loop"}, "go-2": {"./openai-go", "loop"},
	"python-1": {"python3", "loop.py"}, "python-2": {"python3", "loop.py"},
	"shell-1": {"sh", "loop.sh"}, "shell-2": {"sh", "loop.sh"},
}

// loopGateway is the gateway's configuration: its address, the nodes, and the provider's address.
const loopGateway = `
listen: {tcp: [%q]}
cluster: {nodes: ["%s"]}
machine: loops
upstreams:
  openai: {base: %q, plain: true}
`

// lostCalls are the output lines for calls that were not served.
type lostCalls struct {
	mu    sync.Mutex
	lines []string
}

func (l *lostCalls) hear(name string, line []byte) {
	if bytes.HasPrefix(line, []byte("ok")) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, name+": "+string(line))
}

// TestClients_NineOnOneKeyForFiveMinutes: nine clients in four languages share a key through one gateway. The provider
// allows 60 requests and 60,000 tokens in any minute, and the leader is killed. The provider refuses nothing, its limit is
// used, and no call is lost.
func TestClients_NineOnOneKeyForFiveMinutes(t *testing.T) {
	clients := os.Getenv("QUOTAD_CLIENTS")
	if clients == "" {
		t.Skip("make test-clients fetches the clients and runs this")
	}
	f := pythonFleet{
		period: time.Minute, part: 1, requests: 60, latency: 500 * time.Millisecond, seconds: 300, kill: 150 * time.Second,
		edit: strings.NewReplacer("limit: 300, per: 1m", "limit: 60, per: 1m"),
	}
	var lost lostCalls
	dir := t.ArtifactDir()
	o, err := f.measure(t.Context(), dir, func(cluster *local.Cluster, provider string) ([]*local.Child, func(), error) {
		gateway, stop := startLoopGateway(t, dir, cluster, provider)
		until := time.Now().Add(time.Duration(f.seconds) * time.Second).Unix()
		command, err := exec.LookPath("env")
		if err != nil {
			return nil, stop, err
		}
		programs := local.NewNursery(command, dir)
		var children []*local.Child
		for name, program := range loops {
			args := append([]string{
				"-i", "-C", clients, "PATH=" + os.Getenv("PATH"), "HOME=" + dir, "OPENAI_API_KEY=sk-made-up", "UNTIL=" + strconv.FormatInt(until, 10),
				"OPENAI_BASE_URL=" + gateway + "/as/" + name + "/openai/v1",
			}, program...)
			child, err := programs.Start(name, func(line []byte) { lost.hear(name, line) }, args...)
			if err != nil {
				return nil, stop, err
			}
			children = append(children, child)
		}
		return children, func() { programs.Close(time.Second); stop() }, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	first := slices.MinFunc(o.records, func(a, b providertest.Record) int { return int(a.At - b.At) })
	o.start = first.At
	o.end = o.start + time.Duration(f.seconds)*time.Second
	use := o.use(f.requests, providertest.Each)
	t.Logf("%d calls, %d refused; %.2f %% of the requests used; outage %v", len(o.records), o.refused(), 100*use, o.back-o.killed)
	if o.refused() != 0 || use < 0.95 {
		t.Errorf("the provider refused %d calls; %.2f %% of its limit was used", o.refused(), 100*use)
	}
	if len(lost.lines) != 0 {
		t.Errorf("%d calls were lost:\n%s", len(lost.lines), strings.Join(lost.lines, "\n"))
	}
}

// startLoopGateway starts a gateway and returns its URL once it serves.
func startLoopGateway(t *testing.T, dir string, cluster *local.Cluster, provider string) (url string, stop func()) {
	t.Helper()
	addresses, err := loopback.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "gateway.yaml")
	text := fmt.Sprintf(loopGateway, addresses[0], strings.Join(cluster.Servers(), `", "`), provider)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	processes := local.NewNursery(binary, dir)
	child, err := processes.Start("gateway", nil, "gateway", "--config", path)
	if err != nil {
		t.Fatal(err)
	}
	url = "http://" + addresses[0]
	asks := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for child.Alive() {
		if answer, err := asks.Get(url + "/readyz"); err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return url, func() { processes.Close(5 * time.Second) }
			}
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
	t.Fatalf("the gateway ended: see %s", child.Log())
	return "", nil
}
