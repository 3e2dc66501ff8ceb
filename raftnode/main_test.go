package raftnode_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain checks that no goroutine outlives the tests, except those that wait for a future that raft dropped on shutdown (hashicorp/raft
// issues 145, 498).
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/quotad/quotad/raftnode.(*Node).await.func1"),
		goleak.IgnoreAnyFunction("github.com/quotad/quotad/raftnode.(*proposer).failed"))
}
