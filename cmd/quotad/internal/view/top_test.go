package view

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

var noon = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// TestTop_ShowsACluster: a picture lists members, waiting Reserves, recent events and quotas, with zones and cooldowns.
// Names cannot send control sequences to the terminal.
func TestTop_ShowsACluster(t *testing.T) {
	queue := &Queue{}
	take := func(event *quotav1.Event, ago time.Duration) { queue.Take(event, noon.Add(-ago)) }
	take(&quotav1.Event{Kind: quotav1.EventKind_EVENT_KIND_WAITING, Ticket: 1, Holder: "picard\x1b[2J", Quota: "github/core"}, 9*time.Second)
	take(&quotav1.Event{Kind: quotav1.EventKind_EVENT_KIND_WAITING, Ticket: 2, Holder: "ralph", Quota: "github/core"}, 4*time.Second)
	take(&quotav1.Event{Kind: quotav1.EventKind_EVENT_KIND_GRANTED, Ticket: 2, Holder: "ralph", Quota: "github/core"}, 3*time.Second)
	take(&quotav1.Event{Kind: quotav1.EventKind_EVENT_KIND_COOLDOWN, Quota: "openai/tokens", Duration: durationpb.New(90 * time.Second)},
		time.Second)
	cluster := Cluster{
		IDs: []string{"127.0.0.1:1"}, Nodes: []string{"leader"}, Leader: 0, Term: 3, Leases: 12, Waiting: 3,
		Status: &quotav1.GetStatusResponse{
			Meta: &quotav1.Meta{Term: 3}, ClusterId: "c1", Leader: "n1", Role: "leader", Sessions: 4,
			Members: []*quotav1.Member{
				{Id: "n1", Voter: true, Leader: true, ApiAddress: "127.0.0.1:1", Version: "0.1.0", MatchIndex: 9},
				{Id: "n2", Voter: true, LastContact: durationpb.New(20 * time.Millisecond)},
				{Id: "n3"},
			},
		},
		Quotas: []*quotav1.QuotaStatus{
			{
				Definition: &quotav1.Quota{Name: "github/core"}, Usable: 100, Held: 1, Consumed: 2, Available: 97, Waiting: 3,
				Zone: quotav1.Zone_ZONE_AMBER, WindowClosesIn: durationpb.New(61 * time.Second),
			},
			{Definition: &quotav1.Quota{Name: "openai/tokens"}, Usable: 10, CooldownLeft: durationpb.New(89 * time.Second)},
			{Definition: &quotav1.Quota{Name: "x"}, ReopensIn: durationpb.New(2 * time.Second)},
		},
	}
	want := []string{
		"cluster c1   leader n1 (term 3)   leases 12   waiting 3   sessions 4",
		"",
		"member  role     api          last contact  index  version",
		"n1      LEADER   127.0.0.1:1  -             9      0.1.0",
		"n2      voter    -            20ms          -      -",
		"n3      learner  -            no answer     -      -",
		"",
		"waiting        for          since",
		`picard\x1b[2J  github/core  9 s`,
		"and 2 more",
		"",
		"11:59:59 openai/tokens closed for 1m30s",
		"",
		"quota          zone   usable  held  consumed  available  waiting  leases  ends in  closed for",
		"github/core    amber  100     1     2         97         3        0       61 s     -",
		"openai/tokens  -      10      0     0         0          0        0       -        89 s",
		"x              -      0       0     0         0          0        0       -        reopening, 2 s",
	}
	if got := Top(cluster, queue, noon); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the picture is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestTop_ShowsUnknownAsUnknown: the picture invents nothing if no node answers or there is no leader.
func TestTop_ShowsUnknownAsUnknown(t *testing.T) {
	nobody := strings.Join(Top(Cluster{IDs: []string{"127.0.0.1:1"}, Nodes: []string{Down}, Leader: -1}, nil, noon), "\n")
	if !strings.Contains(nobody, "no node answers: 127.0.0.1:1") {
		t.Errorf("nobody answers:\n%s", nobody)
	}
	follower := Cluster{Leader: -1, Nodes: []string{"follower"}, Status: &quotav1.GetStatusResponse{Members: []*quotav1.Member{{
		Id:    "n2",
		Voter: true,
	}}}}
	if got := strings.Join(Top(follower, &Queue{}, noon), "\n"); !strings.Contains(got, "no leader") || strings.Contains(got, "no answer") {
		t.Errorf("a follower without a leader:\n%s", got)
	}
}

// TestQueue_IsBounded: a queue remembers a bounded number of events.
func TestQueue_IsBounded(t *testing.T) {
	queue := &Queue{}
	for i := range uint64(2 * maxWaiters) {
		queue.Take(&quotav1.Event{Kind: quotav1.EventKind_EVENT_KIND_WAITING, Ticket: i, Holder: "h"}, noon)
		queue.Take(&quotav1.Event{Kind: quotav1.EventKind_EVENT_KIND_REVOKED, Lease: i}, noon)
	}
	if len(queue.Waiting()) != maxWaiters || len(queue.Latest()) != maxLatest {
		t.Errorf("%d waiters and %d news are kept", len(queue.Waiting()), len(queue.Latest()))
	}
	queue.Forget()
	if len(queue.Waiting()) != 0 {
		t.Error("forgotten waiters are still there")
	}
}
