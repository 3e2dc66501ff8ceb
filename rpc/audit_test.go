package rpc_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/rpc"
)

// lines keeps what servers log.
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

// TestTheLogSaysWhoDidWhat: one line per node that an operator's call passes, with the token that allowed it and what came of
// it; none for what only looks.
func TestTheLogSaysWhoDidWhat(t *testing.T) {
	t.Parallel()
	secret, entry, err := rpc.NewToken("op", "*", "", []rpc.Verb{rpc.VerbAdminQuota, rpc.VerbRead})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	file := fmt.Sprintf("tokens:\n  - {id: op, sha256: %s, holder: '*', verbs: [admin-quota, read]}\n", entry.SHA256)
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := rpc.LoadTokens(path)
	if err != nil {
		t.Fatal(err)
	}
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
