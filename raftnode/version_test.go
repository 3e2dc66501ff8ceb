package raftnode_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/raftnode/peer"
)

// TestVersions_AreReported: a node's status has its own build, those of the members, and the feature level that entries raised.
func TestVersions_AreReported(t *testing.T) {
	c := newCluster(t, 3, func(conf *raftnode.Config) { conf.Build.Version = "build-of-" + conf.ID })
	c.propose(rate("q", 10))
	eventually(t, "all builds in the leader's status", func() bool {
		status := c.nodes[c.leader()].Status()
		for _, m := range status.Members {
			if m.Build.Version != "build-of-"+m.ID || m.Build.Oldest != fsm.OldestEntryVersion || m.Build.Newest != fsm.EntryVersion {
				return false
			}
		}
		return len(status.Members) == 3 && status.Build.Level == fsm.EntryVersion
	})
}

// TestVersions_UnfitBuildDoesNotJoin: a build that does not apply the cluster's entries is refused, and the cluster reports why.
func TestVersions_UnfitBuildDoesNotJoin(t *testing.T) {
	for name, build := range map[string]peer.Build{
		"older": {Version: "old", Oldest: 1, Newest: fsm.OldestEntryVersion - 1},
		"newer": {Version: "new", Oldest: fsm.EntryVersion + 1, Newest: fsm.EntryVersion + 2},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1)
			c.propose(rate("q", 10))
			conf := raftnode.DefaultConfig()
			conf.ID, conf.RaftAddress, conf.DataDir, conf.Build = "n9", freeAddress(t), t.TempDir(), build
			n, err := raftnode.Open(conf)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = n.Close(t.Context()) }()
			err = c.nodes[0].AddLearner(t.Context(), "n9", conf.RaftAddress, "127.0.0.1:1999")
			unfit, ok := errors.AsType[*raftnode.MemberError](err)
			if !ok || !strings.Contains(unfit.Message, "does not fit") || !strings.Contains(unfit.Message, build.Version) {
				t.Fatalf("added with %v", err)
			}
		})
	}
}

// TestVersions_OlderProtocolIsNotLetIn: a build with an older peer protocol gets no answer from raft. The answer to a question names the
// protocols of both sides.
func TestVersions_OlderProtocolIsNotLetIn(t *testing.T) {
	c := newCluster(t, 1)
	c.propose(rate("q", 10))
	spoken := func(magic, protocol, message string, last byte) string {
		conn, err := net.Dial("tcp", c.configs[0].RaftAddress)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		hello, err := json.Marshal(map[string]any{
			"magic": magic, "protocol": protocol, "node": c.configs[0].ID, "cluster": c.id(0),
			"oldest": fsm.OldestEntryVersion, "newest": fsm.EntryVersion,
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(append(append(hello, '\n'), message...)); err != nil {
			t.Fatal(err)
		}
		answer, _ := bufio.NewReader(conn).ReadString(last) // without an answer the connection ends
		return answer
	}
	const question = `{"kind":"hello","node":"n0"}` + "\n"
	const raftsLast = 0xc2 // its answer ends with false
	if answer := spoken("quotad-peer/2", "peer", question, '\n'); strings.Contains(answer, "protocol mismatch") || answer == "" {
		t.Errorf("the present protocol: %q", answer)
	}
	answer := spoken("quotad-peer/1", "peer", question, '\n')
	for _, want := range []string{"quotad-peer/1", "quotad-peer/2"} {
		if !strings.Contains(answer, want) {
			t.Errorf("the answer to an older one does not name %s: %q", want, answer)
		}
	}
	if answer := spoken("quotad-peer/2", "raft", vote("n1"), raftsLast); !strings.Contains(answer, "Granted") {
		t.Errorf("raft does not answer the present protocol: %q", answer)
	}
	if answer := spoken("quotad-peer/1", "raft", vote("n1"), raftsLast); answer != "" {
		t.Errorf("raft answers an older protocol: %q", answer)
	}
}

// TestVersions_NewFieldsWaitForAllMembers: commands that a member's build does not know are refused, since they would stop that member.
// Others are accepted.
func TestVersions_NewFieldsWaitForAllMembers(t *testing.T) {
	older := peer.Build{Version: "old", Oldest: fsm.OldestEntryVersion, Newest: fsm.AnswerDigestVersion - 1}
	c := newCluster(t, 1, func(conf *raftnode.Config) { conf.Build = older })
	c.propose(rate("q", 10))
	_, _, err := c.nodes[0].Propose(t.Context(), &logpb.Command{Kind: &logpb.Command_Report{Report: &logpb.Report{Lease: 1, AnswerDigest: 1}}})
	if refused, ok := errors.AsType[*raftnode.NotAcceptedError](err); !ok || refused.Cause != raftnode.OldMember {
		t.Fatalf("what version %d brings: %v", fsm.AnswerDigestVersion, err)
	}
	c.propose(&logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{{
		Name: "pool", Rule: &logpb.Quota_Pool{Pool: &logpb.Pool{Members: []*logpb.PoolMember{{Name: "a", Quota: "q"}}}},
	}}}}})
	if level := c.nodes[0].Status().Build.Level; level != fsm.AnswerDigestVersion-1 {
		t.Fatalf("the state is at feature level %d", level)
	}
}

// TestVersions_OldLogIsRefused: a log with entries of an unsupported version is refused on open, with the way out, before any of them is
// applied.
func TestVersions_OldLogIsRefused(t *testing.T) {
	for name, version := range map[string]uint32{"older": fsm.OldestEntryVersion - 1, "newer": fsm.EntryVersion + 1} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1)
			c.propose(rate("q", 10))
			c.stop(0)
			data, err := proto.Marshal(&logpb.Entry{Version: version, StampNs: 1})
			if err != nil {
				t.Fatal(err)
			}
			raftnode.AppendToLog(t, c.configs[0].DataDir, c.configs[0].ID, raft.Log{Type: raft.LogCommand, Data: data})
			_, err = raftnode.Open(c.configs[0])
			if _, ok := errors.AsType[*fsm.VersionError](err); !ok || !errors.Is(err, logstore.ErrUnfitBuild) {
				t.Fatalf("opened with %v", err)
			}
			offline, err := logstore.OpenOffline(c.configs[0].DataDir)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = offline.Close() }()
			if _, err := offline.State(); !errors.Is(err, logstore.ErrUnfitBuild) {
				t.Fatalf("its state: %v", err)
			}
		})
	}
}
