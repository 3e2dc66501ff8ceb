package rpc_test

import (
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// lines records what servers log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// oneToken makes one token, for all holders.
func oneToken(t *testing.T, id string, verbs ...rpc.Verb) (secret string, tokens *rpc.Tokens) {
	t.Helper()
	secret, entry, err := rpc.NewToken(id, "*", "", verbs)
	if err != nil {
		t.Fatal(err)
	}
	words := make([]string, len(verbs))
	for i, verb := range verbs {
		words[i] = string(verb)
	}
	at := filepath.Join(t.TempDir(), "tokens.yaml")
	file := fmt.Sprintf("tokens:\n  - {id: %s, sha256: %s, holder: '*', verbs: [%s]}\n", id, entry.SHA256, strings.Join(words, ", "))
	if err := os.WriteFile(at, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	if tokens, err = rpc.LoadTokens(at); err != nil {
		t.Fatal(err)
	}
	return secret, tokens
}

// TestAudit_LogsTokenAndOutcome: an operator's call leaves one line on each node that it passes, with the token that allowed it and the
// outcome. A read leaves none.
func TestAudit_LogsTokenAndOutcome(t *testing.T) {
	t.Parallel()
	secret, tokens := oneToken(t, "op", rpc.VerbAdminQuota, rpc.VerbRead)
	log := new(lines)
	nodes := newNodes(t, 3, func(c *rpc.Config) {
		c.Tokens, c.Logger = tokens, hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: log})
	})
	leader, follower := leaderAndFollower(t, nodes)
	ask := func(at int, method, body string) int {
		status, _ := post(t, nodes[at].url, "/quota.v1.AdminService/"+method, body, "Authorization", "Bearer "+secret)
		return status
	}
	if status := ask(follower, "ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatal(status)
	}
	ask(leader, "ApplyQuotas", `{"quotas":[{"name":"t/dry","slots":{"limit":1}}],"dryRun":true}`)
	ask(leader, "DeleteQuota", `{"name":"t/none","force":true}`)
	ask(leader, "RemoveMember", `{"id":"n7"}`)
	ask(leader, "DeleteWorkflow", `{"name":"nowhere"}`)
	ask(leader, "ReopenQuota", `{"name":"t/core"}`)
	ask(leader, "GetStatus", `{}`)
	for _, want := range []string{
		`INFO.* call=ApplyQuotas target=t/core token=op from=127\.0\.0\.1:\d+ outcome=done`,
		`INFO.* call=ApplyQuotas target=t/core token=op from=127\.0\.0\.1:\d+ via=` + nodes[follower].node.ID() + ` outcome=done`,
		`WARN.* call=DeleteQuota target="t/none \(forced\)" token=op from=\S+ outcome=`,
		`WARN.* call=DeleteWorkflow target="workflow nowhere" token=op`,
		`INFO.* call=ReopenQuota target=t/core token=op from=\S+ outcome=done`,
		`WARN.* call=RemoveMember target=n7 token=op from=\S+ outcome="this needs the verb admin-cluster`,
	} {
		if !regexp.MustCompile(want).MatchString(log.String()) {
			t.Errorf("no line matches %s in\n%s", want, log)
		}
	}
	if count := strings.Count(log.String(), "an operator's call"); count != 6 {
		t.Errorf("%d lines, not 6:\n%s", count, log)
	}
}

// TestAudit_HasALineOfEachCall: each of an operator's calls leaves one line, also a stream, and also where the token does not allow it.
func TestAudit_HasALineOfEachCall(t *testing.T) {
	t.Parallel()
	secret, tokens := oneToken(t, "looker", rpc.VerbRead)
	log := new(lines)
	nodes := newNodes(t, 1, func(c *rpc.Config) {
		c.Tokens, c.Logger = tokens, hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: log})
	})
	for _, procedure := range rpc.Audited() {
		req := requestOf(t, nodes[0].url+procedure, "{}", "Authorization", "Bearer "+secret)
		if procedure == quotav1connect.AdminServiceBackupProcedure || procedure == quotav1connect.AdminServiceRestoreProcedure {
			req = requestOf(t, nodes[0].url+procedure, "\x00\x00\x00\x00\x02{}", "Authorization", "Bearer "+secret,
				"Content-Type", "application/connect+json")
		}
		_, answer := send(t, http.DefaultClient, req)
		if !strings.Contains(answer, "permission_denied") {
			t.Errorf("%s: %s", procedure, answer)
		}
		line := regexp.MustCompile(`WARN.* an operator's call: call=` + path.Base(procedure) +
			` .*token=looker from=127\.0\.0\.1:\d+ .*outcome="this needs the verb`)
		if found := line.FindAllString(log.String(), -1); len(found) != 1 {
			t.Errorf("%s: %d lines, want one:\n%s", procedure, len(found), log)
		}
	}
}

// TestAudit_CallersDoNotFillTheLog: a token without an operator's verb leaves one line per call and interval, however often it calls and
// whatever it sends. An operator leaves a line each time. No line is long.
func TestAudit_CallersDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	const times, longest = 20, 8 << 10
	long := strings.Repeat("x", 20_000)
	for name, c := range map[string]struct {
		verb rpc.Verb
		want int
	}{
		"a caller": {rpc.VerbUse, 1}, "an operator": {rpc.VerbAdminQuota, times},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			secret, tokens := oneToken(t, "it", c.verb)
			log := new(lines)
			nodes := newNodes(t, 1, func(conf *rpc.Config) {
				conf.Tokens, conf.Logger = tokens, hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: log})
			})
			for method, body := range map[string]string{
				"ApplyQuotas": `{"quotas":[{"name":"%d` + long + `"}]}`, "DeleteWorkflow": `{"name":"w","%d` + long + `":1}`,
			} {
				for i := range times {
					post(t, nodes[0].url, "/quota.v1.AdminService/"+method, fmt.Sprintf(body, i), "Authorization", "Bearer "+secret,
						rpc.HeaderForwarded, long[:8<<10])
				}
				if got := strings.Count(log.String(), "call="+method); got != c.want {
					t.Errorf("%s: %d lines, want %d", method, got, c.want)
				}
			}
			for line := range strings.Lines(log.String()) {
				if len(line) > longest {
					t.Errorf("a line of %d bytes: %.200s", len(line), line)
				}
			}
		})
	}
}
