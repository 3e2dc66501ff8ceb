package daemon

import (
	"bytes"
	"maps"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/cmd/quotad/internal/config"
)

// TestAnnounce_WarnsOfEachInsecurePort: a node that other machines can use without protection warns at each start, once for
// each port, and names the setting that allows it. A node on loopback, or a secured one, logs no such warning.
func TestAnnounce_WarnsOfEachInsecurePort(t *testing.T) {
	type warning struct{ says, allowedBy string }
	wire, peers, tokens := warning{"api.listen 10.0.0.1:7450 is beyond loopback and api.tls_cert is not set", "api.insecure"},
		warning{"raft.listen 10.0.0.1:7451 is beyond loopback and raft.tls_cert is not set", "raft.insecure"},
		warning{"api.listen 10.0.0.1:7450 is beyond loopback and tokens_file is not set", "api.insecure"}
	beyond := map[string]string{"api-listen": "10.0.0.1:7450", "raft-listen": "10.0.0.1:7451", "api-insecure": "true", "raft-insecure": "true"}
	with := func(more ...string) map[string]string {
		flags := maps.Clone(beyond)
		for i := 0; i < len(more); i += 2 {
			flags[more[i]] = more[i+1]
		}
		return flags
	}
	for name, c := range map[string]struct {
		flags map[string]string
		want  []warning
	}{
		"nothing is secured": {with(), []warning{peers, wire, tokens}},
		"tokens, no TLS":     {with("tokens-file", "t"), []warning{peers, wire}},
		"TLS between nodes": {
			with("raft-tls-cert", "c", "raft-tls-key", "k", "raft-tls-ca", "a"), []warning{wire, tokens},
		},
		"the operators' port": {
			map[string]string{"ops-listen": "10.0.0.1:7453", "api-insecure": "true", "tokens-file": "t"},
			[]warning{{"ops.listen 10.0.0.1:7453 is beyond loopback and api.tls_cert is not set", "api.insecure"}},
		},
		"loopback": {map[string]string{"api-listen": "127.0.0.9:7450", "raft-listen": "[::1]:7451"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, err := config.Load(config.Input{Flags: c.flags})
			if err != nil {
				t.Fatal(err)
			}
			for start := range 2 {
				var said bytes.Buffer
				p := &process{config: loaded.Config, logger: hclog.New(&hclog.LoggerOptions{Output: &said, Level: hclog.Warn})}
				p.announce("10.0.0.1:7450")
				var warned []string
				for line := range strings.Lines(said.String()) {
					if strings.Contains(line, "INSECURE: ") {
						warned = append(warned, line)
					}
				}
				if len(warned) != len(c.want) {
					t.Fatalf("start %d: %d warnings, want %d:\n%s", start+1, len(warned), len(c.want), said.String())
				}
				for i, want := range c.want {
					if !strings.Contains(warned[i], "[WARN]  INSECURE: "+want.says) || !strings.Contains(warned[i], "allowed_by="+want.allowedBy) {
						t.Errorf("start %d: %q, want %q by %s", start+1, warned[i], want.says, want.allowedBy)
					}
				}
			}
		})
	}
}
