package rpc_test

import (
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// TestSpendIn_CountsTimeWithoutALeader: cluster time stands still while nobody leads, and a provider's window does not. A window's
// operation that is asked for again after an election has less time to be spent, by all the time that has passed.
func TestSpendIn_CountsTimeWithoutALeader(t *testing.T) {
	t.Parallel() // mostly waiting
	nodes := newNodes(t, 3)
	const quotas = `{"quotas":[{"name":"w","window":{"limit":100,"every":"day"}}]}`
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", quotas); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	asked := &quotav1.ReserveRequest{
		Holder: "h", Items: []*quotav1.Item{{Quota: "w", Amount: new(int64(1))}}, Consume: true,
		RequestId: &quotav1.RequestId{IdempotencyKey: "k"},
	}
	ask := func(n *testNode) (*quotav1.Operation, error) {
		res, err := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url, persistent).Reserve(t.Context(), proto.CloneOf(asked))
		return res.GetLease().GetOperation(), err
	}
	leader, follower := leaderAndFollower(t, nodes)
	other := 3 - leader - follower
	first, err := ask(nodes[leader])
	if err != nil || first.GetSpendIn().AsDuration() <= 0 {
		t.Fatalf("%v %v", first, err)
	}
	answered := time.Now()
	if first.SpendIn.AsDuration() < 30*time.Second {
		t.Skip("a day ends: the operation has too little left to be seen shrinking")
	}
	nodes[leader].kill()
	nodes[other].kill()
	const alone = 4 * time.Second
	<-time.After(alone) // nobody can be elected meanwhile
	nodes[other].again(t)
	var again *quotav1.Operation
	eventually(t, "another leader answers", func() bool {
		again, err = ask(nodes[follower])
		if err != nil && connect.CodeOf(err) != connect.CodeUnavailable {
			t.Fatal(err)
		}
		return err == nil
	})
	nodes[leader].again(t)
	// The views of Unix time are a round trip wide; cluster time lacks far more.
	const slack = time.Second
	if left, was := again.GetSpendIn().AsDuration(), first.SpendIn.AsDuration(); left > was-alone+slack {
		t.Errorf("%v are left %v after %v were", left, time.Since(answered), was)
	}
}
