package realcluster

import (
	"errors"
	"testing"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/rpc/quotav1"
)

// keys returns two quotas of a kind and the pool of both, with the members a and b.
func keys(name string, of func(name string) *quotav1.Quota) []*quotav1.Quota {
	return []*quotav1.Quota{
		of("a/" + name), of("b/" + name),
		{Name: name, Rule: &quotav1.Quota_Pool{Pool: &quotav1.Pool{
			Members: []*quotav1.PoolMember{{Name: "a", Quota: "a/" + name}, {Name: "b", Quota: "b/" + name}},
		}}},
	}
}

// pools starts a node with pools of tokens (1,000 a minute) and streams (1 at a time).
func pools(t *testing.T) (*cluster, *client.Client) {
	t.Helper()
	cluster := start(t, 1)
	cluster.apply(append(
		keys("tokens", func(name string) *quotav1.Quota { return rate(name, 1000, time.Minute) }),
		keys("streams", func(name string) *quotav1.Quota { return slots(name, 1) })...,
	)...)
	return cluster, cluster.client(client.WithHolder("picard"))
}

// TestPool_LeaseNamesItsMember: items of a lease are the member's quotas, found by the pools' names, and later calls name them.
func TestPool_LeaseNamesItsMember(t *testing.T) {
	_, c := pools(t)
	ctx := t.Context()
	both := []client.Item{{Quota: "tokens", Amount: 100}, {Quota: "streams", Amount: 1}}
	first, err := c.Reserve(ctx, client.ReserveRequest{Items: both, TTL: time.Minute, Member: "b"})
	if err != nil || first.Member() != "b" {
		t.Fatalf("%v, of member %q", err, first.Member())
	}
	if item, ok := first.For("tokens"); !ok || item.Quota != "b/tokens" || item.Amount != 100 {
		t.Fatalf("%+v, %t", item, ok)
	}
	second, err := c.Reserve(ctx, client.ReserveRequest{Items: both, TTL: time.Minute})
	if err != nil || second.Member() != "a" {
		t.Fatalf("%v, of member %q", err, second.Member())
	}
	granted := make(chan string, 1)
	go func() {
		lease, err := c.Reserve(ctx, client.ReserveRequest{Items: both, TTL: time.Minute, Wait: time.Minute})
		if err != nil {
			granted <- err.Error()
			return
		}
		granted <- lease.Member()
	}()
	eventually(t, "it waits for the pool", func() bool {
		pool, err := c.Quota(ctx, "streams")
		return err == nil && pool.Waiting == 1 && pool.Kind == client.KindPool && len(pool.Members) == 2 && pool.Members[1].Name == "b"
	})
	op, err := first.Consume(ctx, client.Item{Quota: "b/tokens"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := op.Settle(ctx, client.Settlement{Actual: []client.Item{{Quota: "b/tokens", Amount: 40}}, Release: true}); err != nil {
		t.Fatal(err)
	}
	if got := <-granted; got != "b" {
		t.Fatalf("the waiter was granted %q", got)
	}
	if _, err := c.Reserve(ctx, client.ReserveRequest{Items: both, Member: "c"}); !errors.Is(err, client.ReasonInvalid) {
		t.Fatalf("a member that does not exist: %v", err)
	}
}

// TestPool_LimiterNamesItsMember: each take names its member, and takes use all members.
func TestPool_LimiterNamesItsMember(t *testing.T) {
	_, c := pools(t)
	ctx := t.Context()
	for name, options := range map[string][]client.LimiterOption{"batches": nil, "single takes": {client.MaxBatch(1)}} {
		limiter := c.LimiterOf([]client.Item{{Quota: "tokens", Amount: 10}}, options...)
		seen := map[string]int{}
		for range 40 {
			taken, err := limiter.WaitTake(ctx, 1)
			if err != nil || !taken.OK() || taken.Member() != "a" && taken.Member() != "b" {
				t.Fatalf("%s: %v, of member %q", name, err, taken.Member())
			}
			seen[taken.Member()]++
		}
		if name == "single takes" && (seen["a"] == 0 || seen["b"] == 0) {
			t.Errorf("%s: taken by member: %v", name, seen)
		}
		if most := limiter.Burst(); most != 100 {
			t.Errorf("%s: at most %d units are taken at once, a member has 100", name, most)
		}
		limiter.Close()
	}
}

// TestPool_LimiterOfSlots: a limiter rejects slots, also in a pool.
func TestPool_LimiterOfSlots(t *testing.T) {
	_, c := pools(t)
	if _, err := c.Limiter("streams").WaitTake(t.Context(), 1); !errors.Is(err, client.ErrSlots) {
		t.Fatal(err)
	}
}
