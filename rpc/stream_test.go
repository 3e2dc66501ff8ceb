package rpc_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

func reserveAs(t *testing.T, n *testNode, holder string) *quotav1.ReserveResponse {
	t.Helper()
	res, err := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url, persistent).Reserve(t.Context(), &quotav1.ReserveRequest{
		Holder: holder, Items: []*quotav1.Item{{Quota: "t/core"}},
	})
	if err != nil || res.GetLease() == nil {
		t.Fatalf("%v %v", res, err)
	}
	return res
}

// TestWatch_ShowsEachEventOnce: every node sends events in every protocol, once, in order, filtered; and again from an index on.
func TestWatch_ShowsEachEventOnce(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	for i, options := range [][]connect.ClientOption{{connect.WithGRPC()}, {connect.WithGRPCWeb()}, {}} {
		n, holder := nodes[i], fmt.Sprintf("holder-%d", i)
		ctx, cancel := context.WithCancel(t.Context())
		api := quotav1connect.NewQuotaServiceClient(h2c(t), n.url, options...)
		stream, err := api.Watch(ctx, &quotav1.WatchRequest{QuotaPrefix: "t/", Holder: holder})
		if err != nil {
			t.Fatal(err)
		}
		reserveAs(t, nodes[0], "somebody-else")
		granted := reserveAs(t, nodes[0], holder)
		event, at := nextEvent(t, stream)
		if event.Kind != quotav1.EventKind_EVENT_KIND_GRANTED || event.Holder != holder || event.Lease != granted.GetLease().Id ||
			at.Index != granted.Meta.Index {
			t.Errorf("%v at %v, want the grant of %v at %v", event, at, granted.GetLease(), granted.Meta)
		}
		again, err := api.Watch(ctx, &quotav1.WatchRequest{Holder: holder, FromIndex: at.Index})
		if err != nil {
			t.Fatal(err)
		}
		if repeated, _ := nextEvent(t, again); repeated.String() != event.String() {
			t.Errorf("again from %d: %v", at.Index, repeated)
		}
		cancel()
		_, _ = stream.Close(), again.Close()
	}
}

// nextEvent reads until the next event, past bookmarks, whose indices never fall.
func nextEvent(t *testing.T, stream *connect.ServerStreamForClient[quotav1.WatchResponse]) (*quotav1.Event, *quotav1.Meta) {
	t.Helper()
	last := uint64(0)
	for stream.Receive() {
		at := stream.Msg().Meta
		if at.Index < last {
			t.Fatalf("index %d after %d", at.Index, last)
		}
		last = at.Index
		if events := stream.Msg().Events; len(events) > 0 {
			return events[0], at
		}
	}
	t.Fatalf("the stream ended: %v", stream.Err())
	return nil, nil
}

// TestWatch_SplitsManyEventsOfOneIndex: they arrive in several responses, each below a client's limit, and all but the last say that there
// is more. A caller that asks for the index again receives all of them again.
func TestWatch_SplitsManyEventsOfOneIndex(t *testing.T) {
	n := newNodes(t, 1)[0]
	api := quotav1connect.NewQuotaServiceClient(h2c(t), n.url)
	const leases, most = 2000, 1024
	reserve := &quotav1.ReserveRequest{Holder: "busy", Ttl: durationpb.New(time.Hour)}
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas",
		`{"quotas":[{"name":"t/q","slots":{"limit":1000000}}]}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	reserve.Items = append(reserve.Items, &quotav1.Item{Quota: "t/q"})
	commands := make([]*quotav1.Command, leases)
	for i := range commands {
		commands[i] = &quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: reserve}}
	}
	if _, err := api.Batch(t.Context(), &quotav1.BatchRequest{Commands: commands}); err != nil {
		t.Fatal(err)
	}
	// One command ends all of them. Of a batch of releases a slow machine makes several entries.
	resumed, err := api.Reserve(t.Context(), &quotav1.ReserveRequest{Holder: reserve.Holder, Items: reserve.Items, Resume: true})
	if err != nil {
		t.Fatal(err)
	}
	const events = leases + 1 // and the grant
	for again := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := api.Watch(ctx, &quotav1.WatchRequest{FromIndex: resumed.Meta.Index})
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		var sizes []int
		for more := true; more && stream.Receive(); more = stream.Msg().More {
			if at := stream.Msg().Meta.Index; at != resumed.Meta.Index {
				t.Fatalf("index %d, not %d", at, resumed.Meta.Index)
			}
			sizes = append(sizes, len(stream.Msg().Events))
			for _, e := range stream.Msg().Events {
				if e.Kind == quotav1.EventKind_EVENT_KIND_REVOKED {
					seen++
				}
			}
		}
		if want := []int{most, events - most}; seen != leases || !slices.Equal(sizes, want) {
			t.Errorf("time %d: %d ends in responses of %v events, not %d in %v: %v", again, seen, sizes, leases, want, stream.Err())
		}
		cancel()
		_ = stream.Close()
	}
}

// TestWatch_EndsTypedOnDrain: a watch ends with a typed error when its node drains.
func TestWatch_EndsTypedOnDrain(t *testing.T) {
	n := newNodes(t, 1)[0]
	api := quotav1connect.NewQuotaServiceClient(h2c(t), n.url)
	stream, err := api.Watch(t.Context(), &quotav1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.server.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	for stream.Receive() {
		continue
	}
	if got := reasonOf(t, stream.Err()); got != quotav1.Reason_REASON_STOPPING {
		t.Errorf("%v", stream.Err())
	}
	_ = stream.Close()
}

// TestWatch_EndsUnreadStream: its call ends after a time, and the node can drain.
func TestWatch_EndsUnreadStream(t *testing.T) {
	n := newNodes(t, 1, func(c *rpc.Config) { c.WriteAnswer = 50 * time.Millisecond })[0]
	if status, body := post(t, n.url, "/quota.v1.AdminService/ApplyQuotas",
		`{"quotas":[{"name":"t/core","slots":{"limit":1000000}}]}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(1)
	}
	message := []byte(`{}`)
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	head := fmt.Sprintf("POST /quota.v1.QuotaService/Watch HTTP/1.1\r\nHost: x\r\nContent-Type: "+
		"application/connect+json\r\nContent-Length: %d\r\n\r\n", len(body))
	if _, err := conn.Write(append([]byte(head), body...)); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReaderSize(conn, 16).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatalf("%q %v", line, err)
	}
	commands := make([]*quotav1.Command, 500)
	for i := range commands {
		commands[i] = &quotav1.Command{Kind: &quotav1.Command_Reserve{Reserve: &quotav1.ReserveRequest{
			Holder: strings.Repeat("h", 128), Items: []*quotav1.Item{{Quota: "t/core"}},
		}}}
	}
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, n.url, persistent)
	eventually(t, "the end of the stream", func() bool {
		if _, err := api.Batch(t.Context(), &quotav1.BatchRequest{Commands: commands}); err != nil {
			t.Log(err) // on a busy machine an answer to a caller that reads takes as long
		}
		shown := httptest.NewRecorder()
		n.server.Handler().ServeHTTP(shown, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		text := shown.Body.String()
		return strings.Contains(text, `quotad_api_calls_total{code=`) && strings.Contains(text, `procedure="Watch"`)
	})
}

// TestRestore_OverTheAPI: a backup holds what was acknowledged. A restore brings it back under a new epoch: grants made since are
// dead, and their fences are never issued again. Both need the leader. A damaged backup is refused, and changes nothing.
func TestRestore_OverTheAPI(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	_, follower := leaderAndFollower(t, nodes) // if leadership moves, it still serves
	if status, body := post(t, nodes[0].url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	held := reserveAs(t, nodes[follower], "a").GetLease()
	var admins []quotav1connect.AdminServiceClient
	for _, n := range nodes {
		admins = append(admins, quotav1connect.NewAdminServiceClient(h2c(t), n.url))
	}
	undisturbed(t, nodes, func(_, follower int) error {
		if _, err := backup(t, admins[follower]); reasonOf(t, err) != quotav1.Reason_REASON_NO_LEADER || infoOf(err).LeaderAddress == "" {
			return fmt.Errorf("a backup at a follower: %w", cmp.Or(err, errors.New("it was made")))
		}
		return nil
	})
	var saved []byte
	if err := atLeader(t, nodes, func(leader int) (err error) {
		saved, err = backup(t, admins[leader])
		return err
	}); err != nil {
		t.Fatal(err)
	}
	undisturbed(t, nodes, func(_, follower int) error {
		if _, err := restore(t, admins[follower], saved); reasonOf(t, err) != quotav1.Reason_REASON_NO_LEADER {
			return fmt.Errorf("a restore at a follower: %w", cmp.Or(err, errors.New("it was restored")))
		}
		return nil
	})
	later := reserveAs(t, nodes[follower], "b").GetLease()
	leader, _ := leaderAndFollower(t, nodes)
	before := ledgerHash(t, nodes[leader])
	for name, bad := range map[string][]byte{
		"nothing": nil, "a cut": saved[:len(saved)/2], "a flipped bit": flipped(saved), "not a snapshot": []byte("hello"),
		"more behind it": append(bytes.Clone(saved), 0),
	} {
		if _, err := restore(t, admins[leader], bad); reasonOf(t, err) != quotav1.Reason_REASON_INVALID {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := ledgerHash(t, nodes[leader]); after != before {
		t.Error("a refused restore changed the ledger")
	}
	var res *quotav1.RestoreResponse
	err := atLeader(t, nodes, func(leader int) (err error) {
		res, err = restore(t, admins[leader], saved)
		return err
	})
	if err != nil || res.Epoch == 0 {
		t.Fatalf("%v %v", res, err)
	}
	api := quotav1connect.NewQuotaServiceClient(http.DefaultClient, nodes[leader].url, persistent)
	fresh := reserveAs(t, nodes[follower], "c").GetLease()
	if fresh.Fence <= later.Fence {
		t.Errorf("fence %d after %d", fresh.Fence, later.Fence)
	}
	_, err = api.Release(t.Context(), &quotav1.ReleaseRequest{Lease: later.Id, Fence: later.Fence})
	if got := reasonOf(t, err); got != quotav1.Reason_REASON_STALE_FENCE {
		t.Errorf("a lease that was granted after the backup: %v", err)
	}
	if _, err := api.Release(t.Context(), &quotav1.ReleaseRequest{Lease: held.Id, Fence: held.Fence}); err != nil {
		t.Errorf("a lease of the backup: %v", err)
	}
}

// TestRestore_OfOtherClusterNeedsFlag: it needs an explicit flag, which the first chunk carries.
func TestRestore_OfOtherClusterNeedsFlag(t *testing.T) {
	here, there := newNodes(t, 1)[0], newNodes(t, 1)[0]
	if status, body := post(t, there.url, "/quota.v1.AdminService/ApplyQuotas", applyCore); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	foreign, err := backup(t, quotav1connect.NewAdminServiceClient(h2c(t), there.url))
	if err != nil {
		t.Fatal(err)
	}
	admin := quotav1connect.NewAdminServiceClient(h2c(t), here.url)
	_, err = restore(t, admin, foreign)
	if reasonOf(t, err) != quotav1.Reason_REASON_FOREIGN_CLUSTER || !infoOf(err).NotAccepted {
		t.Fatalf("%v", err)
	}
	for _, node := range []*testNode{here, there} {
		if id := node.node.Status().ClusterID; !strings.Contains(err.Error(), id) {
			t.Errorf("%v does not name %s", err, id)
		}
	}
	if _, err := restore(t, admin, foreign, true); err != nil {
		t.Error(err)
	}
}

func flipped(data []byte) []byte {
	bad := bytes.Clone(data)
	bad[len(bad)/2] ^= 4
	return bad
}

func backup(t *testing.T, admin quotav1connect.AdminServiceClient) ([]byte, error) {
	t.Helper()
	stream, err := admin.Backup(t.Context(), &quotav1.BackupRequest{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	var all []byte
	index := uint64(0)
	for stream.Receive() {
		all, index = append(all, stream.Msg().Chunk...), stream.Msg().Index
	}
	if stream.Err() == nil && index == 0 {
		t.Error("a backup that does not say where it ends")
	}
	return all, stream.Err()
}

func restore(t *testing.T, admin quotav1connect.AdminServiceClient, data []byte, fromOther ...bool) (*quotav1.RestoreResponse, error) {
	t.Helper()
	stream, err := admin.Restore(t.Context())
	if err != nil {
		return nil, err
	}
	for len(data) > 0 {
		n := min(len(data), 100)
		if err := stream.Send(&quotav1.RestoreRequest{Chunk: data[:n], FromOtherCluster: len(fromOther) > 0}); err != nil {
			break // the answer says why
		}
		data = data[n:]
	}
	return stream.CloseAndReceive()
}
