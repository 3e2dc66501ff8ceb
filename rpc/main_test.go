package rpc_test

import (
	"fmt"
	"net/http"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain checks that no goroutine outlives the tests, except those that wait for a future that raft forgot when it shut down
// (hashicorp/raft issues 145, 498).
func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	err := goleak.Find(goleak.IgnoreAnyFunction("github.com/quotad/quotad/raftnode.(*Node).await.func1"),
		goleak.IgnoreAnyFunction("github.com/quotad/quotad/raftnode.(*proposer).failed"))
	if err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // the tests are a main of their own
}
