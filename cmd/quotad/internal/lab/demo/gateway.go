package demo

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/quotad/quotad/raftnode/loopback"
)

// gatewayYAML is the gateway's configuration: its address, the nodes, and the provider's address twice.
const gatewayYAML = `# Made by quotad demo.
listen: {tcp: [%q]}
cluster: {nodes: [%s]}
machine: demo
identity: {names: [%s]}
limits: {drain: 1s}
upstreams:
  github: {base: %q, plain: true}
  openai: {base: %q, plain: true}
`

// speaks returns the governed agents whose calls another language makes, if the machine has its program.
func speaks(packages string) map[string]language {
	out := map[string]language{}
	for _, r := range roles {
		if r.Speaks != "" && r.Speaks.found(packages) {
			out[r.Name] = r.Speaks
		}
	}
	return out
}

// startGateway starts a gateway for agents that cannot use the Go client, waits until it serves, and returns its URL.
func (d *demo) startGateway(ctx context.Context, provider string, names []string) (string, error) {
	addresses, err := loopback.Free(1)
	if err != nil {
		return "", err
	}
	path := filepath.Join(d.options.Dir, "gateway.yaml")
	quoted := make([]string, 0, len(d.cluster.Nodes))
	for _, server := range d.cluster.Servers() {
		quoted = append(quoted, fmt.Sprintf("%q", server))
	}
	text := fmt.Sprintf(gatewayYAML, addresses[0], strings.Join(quoted, ", "), strings.Join(names, ", "), provider, provider)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", err
	}
	child, err := d.nursery.Start("gateway", nil, "gateway", "--config", path)
	if err != nil {
		return "", err
	}
	url := "http://" + addresses[0]
	for {
		if ready(ctx, url+"/readyz") {
			return url, nil
		}
		if !child.Alive() {
			return "", fmt.Errorf("the gateway ended: see %s", child.Log())
		}
		if !pause(ctx, 20*time.Millisecond) {
			return "", fmt.Errorf("the gateway does not serve: %w", context.Cause(ctx))
		}
	}
}

func ready(ctx context.Context, url string) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	through := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := through.Do(r)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}
