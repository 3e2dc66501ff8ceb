package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quotad/quotad/raftnode/loopback"
)

// diskNode is a node's process, with a data directory that a test damages.
type diskNode struct {
	dir, api string
	args     []string
	program  string
	env      []string
	process  *exec.Cmd
	said     *sayings
	ended    chan error
}

// diskNodes makes the nodes of one cluster.
func diskNodes(t *testing.T, size int, args ...string) []*diskNode {
	t.Helper()
	addresses, err := loopback.Free(2 * size)
	if err != nil {
		t.Fatal(err)
	}
	env := documentEnv(t)
	program := filepath.Join(strings.TrimPrefix(strings.Split(env[0], ":")[0], "PATH="), "quotad")
	nodes := make([]*diskNode, size)
	var peers []string
	for i := range nodes {
		peers = append(peers, fmt.Sprintf("n%d=%s/%s", i+1, addresses[2*i], addresses[2*i+1]))
	}
	for i := range nodes {
		dir := filepath.Join(t.TempDir(), "data")
		nodes[i] = &diskNode{dir: dir, api: "http://" + addresses[2*i+1], program: program, env: env, args: append([]string{
			"serve", "--node-id", fmt.Sprintf("n%d", i+1), "--data-dir", dir, "--raft-listen", addresses[2*i], "--api-listen", addresses[2*i+1],
			"--peers", strings.Join(peers, ","),
		}, args...)}
		t.Cleanup(nodes[i].kill)
	}
	return nodes
}

func (n *diskNode) start(t *testing.T) {
	t.Helper()
	n.process, n.said, n.ended = exec.Command(n.program, n.args...), new(sayings), make(chan error, 1) //nolint:gosec // our own
	n.process.Env, n.process.Stderr = n.env, n.said
	if err := n.process.Start(); err != nil {
		t.Fatal(err)
	}
	process, ended := n.process, n.ended
	go func() { ended <- process.Wait() }()
}

func (n *diskNode) kill() {
	if n.process != nil {
		_ = n.process.Process.Kill()
		<-n.ended //nolint:errcheck // killed
		n.process = nil
	}
}

// stop ends a node in order.
func (n *diskNode) stop(t *testing.T) {
	t.Helper()
	_ = n.process.Process.Signal(syscall.SIGTERM)
	if err := <-n.ended; err != nil {
		t.Fatalf("%v\n%s", err, n.said)
	}
	n.process = nil
}

// ready waits until a node serves.
func (n *diskNode) ready(t *testing.T) {
	t.Helper()
	waitFor(t, n.said, func() bool { code, _ := fetch(n.api + "/readyz"); return code == http.StatusOK })
}

// refuses starts a node and expects that it exits without ever serving, and that it names the lost part.
func (n *diskNode) refuses(t *testing.T, words ...string) {
	t.Helper()
	n.start(t)
	waitFor(t, n.said, func() bool {
		if code, _ := fetch(n.api + "/readyz"); code == http.StatusOK {
			t.Fatalf("it serves:\n%s", n.said)
		}
		return n.gone()
	})
	said := n.said.String()
	for _, word := range append(words, n.dir) {
		if !strings.Contains(said, word) {
			t.Errorf("it does not say %q:\n%s", word, said)
		}
	}
	if strings.Contains(said, "panic") || strings.Contains(said, "goroutine ") {
		t.Errorf("it panicked:\n%s", said)
	}
}

// gone reports whether the process has ended with an error.
func (n *diskNode) gone() bool {
	select {
	case err := <-n.ended:
		n.process = nil
		var exit *exec.ExitError
		return errors.As(err, &exit)
	default:
		return false
	}
}

// call calls the API; nil: no answer.
func (n *diskNode) call(method string, request any) map[string]any {
	body, _ := json.Marshal(request)
	response, err := http.Post(n.api+"/quota.v1."+method, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil
	}
	defer func() { _ = response.Body.Close() }()
	var answer map[string]any
	if response.StatusCode != http.StatusOK || json.NewDecoder(response.Body).Decode(&answer) != nil {
		return nil
	}
	return answer
}

// applies sends a quota of 400 slots to the cluster; this is safe to repeat.
func (n *diskNode) applies(t *testing.T) {
	t.Helper()
	waitFor(t, n.said, n.tryToApply)
}

func (n *diskNode) tryToApply() bool {
	return n.call("AdminService/ApplyQuotas", map[string]any{"quotas": []any{map[string]any{
		"name": "q", "slots": map[string]any{"limit": 400},
	}}}) != nil
}

// grants reserves 20 times 20, and returns the granted amount and the fences.
func (n *diskNode) grants() (granted int, fences []string) {
	for i := range 20 {
		answer := n.call("QuotaService/Reserve", map[string]any{
			"holder": fmt.Sprintf("h%d", i), "ttl": "600s", "items": []any{map[string]any{"quota": "q", "amount": 20}},
		})
		if lease, ok := answer["lease"].(map[string]any); ok {
			granted += 20
			fences = append(fences, fmt.Sprint(lease["fence"]))
		}
	}
	return granted, fences
}

// Two of three nodes lose only their raft.db; identity and snapshots stay. If they could vote, they would grant the whole
// limit again under the same fences: 800 of 400, and the fences 1 to 20 twice.
func TestLostLog_NodesGrantNothingTwice(t *testing.T) {
	t.Parallel() // mostly waiting
	for _, store := range []struct{ name, file string }{{"boltdb", "raft.db"}, {"wal", "wal"}} {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			nodes := diskNodes(t, 3, "--log-store", store.name)
			for _, n := range nodes {
				n.start(t)
			}
			nodes[0].applies(t)
			before, fences := nodes[0].grants()
			if before != 400 || len(fences) != 20 {
				t.Fatalf("%d were granted under %v", before, fences)
			}
			for _, n := range nodes {
				n.kill()
			}
			for _, n := range nodes[:2] {
				if err := os.RemoveAll(filepath.Join(n.dir, store.file)); err != nil {
					t.Fatal(err)
				}
				n.start(t)
			}
			waitFor(t, nodes[0].said, func() bool {
				if !nodes[0].tryToApply() {
					return nodes[0].gone()
				}
				if more, again := nodes[0].grants(); more > 0 {
					t.Fatalf("%d of a limit of 400 were granted, fences %v first and %v again", before+more, fences, again)
				}
				return nodes[0].gone()
			})
			for _, word := range []string{"log store", "remove the member", nodes[0].dir} {
				if !strings.Contains(nodes[0].said.String(), word) {
					t.Errorf("it does not say %q:\n%s", word, nodes[0].said)
				}
			}
		})
	}
}

// A node that lost any one part of its data directory does not start, and says which part it lost and what to do. With the
// part restored, it starts.
func TestStart_RefusesHalfLostDisk(t *testing.T) {
	t.Parallel() // mostly waiting
	for _, store := range []string{"boltdb", "wal"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			n := diskNodes(t, 1, "--log-store", store, "--raft-snapshot-entries", "16", "--raft-snapshot-interval", "50ms")[0]
			n.start(t)
			n.applies(t)
			n.grants()
			waitFor(t, n.said, func() bool {
				found, _ := filepath.Glob(filepath.Join(n.dir, "snapshots", "*[0-9]", "meta.json")) // not one that is being written
				return len(found) > 0
			})
			n.kill()
			n.start(t)
			n.ready(t)
			n.stop(t)
			whole := t.TempDir()
			if err := os.CopyFS(whole, os.DirFS(n.dir)); err != nil {
				t.Fatal(err)
			}
			parts := []string{"node", "formation", "formed", "cluster", "witness", "snapshots"}
			if store == "boltdb" {
				parts = append(parts, "raft.db", "raft.db to nothing")
			} else {
				last, _ := filepath.Glob(filepath.Join(n.dir, "wal", "*.wal"))
				parts = append(parts, "wal", "wal/wal-meta.db", "wal/"+filepath.Base(last[len(last)-1]))
			}
			for _, part := range parts {
				name, emptied := strings.CutSuffix(part, " to nothing")
				spoil := os.RemoveAll
				if emptied {
					spoil = func(path string) error { return os.Truncate(path, 0) }
				}
				if err := spoil(filepath.Join(n.dir, name)); err != nil {
					t.Fatal(err)
				}
				t.Log(part)
				n.refuses(t)
				if err := errors.Join(os.RemoveAll(n.dir), os.CopyFS(n.dir, os.DirFS(whole))); err != nil {
					t.Fatal(err)
				}
			}
			for file, at := range flipsOf(t, n.dir) {
				flipByte(t, filepath.Join(n.dir, file), at)
				t.Log("a flipped bit in", file)
				n.refuses(t, filepath.Base(file))
				if err := errors.Join(os.RemoveAll(n.dir), os.CopyFS(n.dir, os.DirFS(whole))); err != nil {
					t.Fatal(err)
				}
			}
			n.start(t)
			n.ready(t)
			n.stop(t)
		})
	}
}

// flipsOf returns positions in files at which a flipped bit once caused a panic or went unnoticed: a meta page, and the
// version in a snapshot's description.
func flipsOf(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	found := map[string]int64{}
	descriptions, _ := filepath.Glob(filepath.Join(dir, "snapshots", "*[0-9]", "meta.json"))
	newest := descriptions[len(descriptions)-1]
	text, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	name, _ := filepath.Rel(dir, newest)
	found[name] = int64(bytes.Index(text, []byte(`"Version":`)) + len(`"Version":`))
	for _, file := range []string{"raft.db", "wal/wal-meta.db"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			found[file] = 4096 + 40
		}
	}
	return found
}

func flipByte(t *testing.T, path string, at int64) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		data[at] ^= 1
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
