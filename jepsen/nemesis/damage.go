package nemesis

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quotad/quotad/jepsen/cluster"
	"github.com/quotad/quotad/jepsen/history"
)

// startAgain starts a stopped node. It returns the number of ends of nodes and the length of its log before the start.
func startAgain(e *Env, node *cluster.Node) (ends, said int, err error) {
	ends = len(e.Cluster.Exits())
	before, err := node.Said()
	if err != nil {
		return 0, 0, err
	}
	return ends, len(before), node.Start()
}

// loseHalf removes or empties a file or a folder of a stopped node's data directory. If the part is needed, the node must refuse to start,
// with an exit code and a reason; then the part is put back, or the node replaced. Without another part all nodes must still reach one
// state.
func loseHalf() Fault {
	return Fault{Name: "half-lost-disk", Ends: true, do: func(
		ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context),
	) (hit, error) {
		node, err := e.follower(ctx, r)
		if err != nil {
			return hit{}, err
		}
		h := hit{targets: names(node)}
		node.Kill()
		parts, err := partsOf(e.Data(node.ID))
		if err != nil {
			return h, err
		}
		lost := parts[r.IntN(len(parts))]
		kept, err := lost.lose(filepath.Join(e.Folder, "lost"), r.IntN(2) == 0)
		if err != nil {
			return h, err
		}
		h.seen = lost.what
		before, said, err := startAgain(e, node)
		if err != nil {
			return h, err
		}
		hold(ctx)
		ctx = context.WithoutCancel(ctx)
		if lost.needed {
			if err := refusedToStart(ctx, e, node, &lost, before, said); err != nil {
				_ = e.makeWell(ctx, node) // the next faults need a node that works
				return h, brokenError(fmt.Sprintf("%s, %s: %v", node.ID, h.seen, err))
			}
			if r.IntN(2) == 0 {
				h.seen += ", put back"
				node.Kill()
				if err := errors.Join(lost.giveBack(kept), node.Start()); err != nil {
					return h, err
				}
				return h, node.AwaitReady(ctx, 30*time.Second)
			}
		}
		return h, e.makeWell(ctx, node)
	}}
}

// refusedToStart checks that a node ended by itself, with the exit code, the place and the reason of its damage, and neither served nor
// voted. before is the number of ends of nodes, and from the length of its log, at the time of the damage.
func refusedToStart(ctx context.Context, e *Env, node *cluster.Node, lost *part, before, from int) error {
	if node.AwaitReady(ctx, 5*time.Second) == nil {
		return errors.New("it serves")
	}
	ends, said, err := endsOf(e, node, before, from)
	if err != nil {
		return err
	}
	return lost.refused(ends, said, e.Data(node.ID))
}

// endsOf returns how a node ended each time after the first before ends of nodes, and the part of its log after from.
func endsOf(e *Env, node *cluster.Node, before, from int) (ends []string, said string, err error) {
	for _, exit := range e.Cluster.Exits()[before:] {
		if exit.Node == node.ID {
			ends = append(ends, exit.How)
		}
	}
	all, err := node.Said()
	return ends, string(all[min(from, len(all)):]), err
}

// A node's refusal of its disk: the exit code, and the words for a missing part and for damage.
const (
	refusal      = "exit status 4"
	lostWords    = "a part of this node's data is lost"
	damagedWords = "the data directory is damaged"
)

// votes is raft's log line when a node begins to take part in elections.
const votes = "entering follower state"

// refused judges each end of a node that lost the part, and its log about the directory. A missing part is reported as lost; an empty one
// may be reported as damaged, since a write may have been cut off.
func (p *part) refused(ends []string, said, dir string) error {
	if len(ends) == 0 {
		return errors.New("it did not end")
	}
	for _, end := range ends {
		if end != refusal {
			return fmt.Errorf("it ended with %q, not %q", end, refusal)
		}
	}
	switch {
	case !p.later && strings.Contains(said, votes):
		return errors.New("it took part: " + said)
	case !strings.Contains(said, dir):
		return fmt.Errorf("it does not say which directory it refuses: %s", said)
	case strings.Contains(said, lostWords), p.emptied && strings.Contains(said, damagedWords):
		return nil
	}
	return fmt.Errorf("it does not say that it lost a part: %s", said)
}

// part is a file or a folder of a data directory.
type part struct {
	path string
	// needed says that no node starts without it.
	needed bool
	// emptied says that an empty part was left in its place; what describes the damage.
	emptied bool
	// later says that the damage may be found after the node takes part.
	later bool
	what  string
}

// needed are the parts, by their place in the data directory, without which no node takes part again. The snapshots are needed too once
// there is one, and the log's last file, which has the entries synced last.
var needed = []string{"raft.db", "wal", filepath.Join("wal", "wal-meta.db"), "node", "formation", "formed", "joined", "cluster", "witness"}

// partsOf returns all files of a data directory, and its top-level folders.
func partsOf(dir string) (parts []part, err error) {
	const snapshots = "snapshots"
	made, err := filepath.Glob(filepath.Join(dir, snapshots, "*", "meta.json"))
	if err != nil {
		return nil, err
	}
	whole := slices.ContainsFunc(made, func(path string) bool { return !strings.HasSuffix(filepath.Dir(path), ".tmp") })
	files, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal")) // sorted: their names begin with the number of their first entry
	if err != nil {
		return nil, err
	}
	last := ""
	if len(files) > 0 {
		last = filepath.Join("wal", filepath.Base(files[len(files)-1]))
	}
	err = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		place, err := filepath.Rel(dir, path)
		if err == nil && (entry.Type().IsRegular() || filepath.Dir(place) == ".") {
			parts = append(parts, part{path: path, needed: slices.Contains(needed, place) || place == last || place == snapshots && whole})
		}
		return err
	})
	if err == nil && len(parts) == 0 {
		err = errors.New("there is no data directory to damage")
	}
	return parts, err
}

// lose moves a part away, and with empty leaves an empty one there. It returns the path of the kept part.
func (p *part) lose(to string, empty bool) (kept string, err error) {
	info, err := os.Stat(p.path)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return "", err
	}
	kept = filepath.Join(to, fmt.Sprintf("%d-%s", history.Now(), filepath.Base(p.path)))
	if info.IsDir() {
		err = os.CopyFS(kept, os.DirFS(p.path))
	} else {
		err = copyFile(p.path, kept)
	}
	if err == nil {
		err = os.RemoveAll(p.path)
	}
	p.what = "without " + filepath.Base(p.path)
	if err != nil || !empty {
		return kept, err
	}
	p.emptied, p.what = true, "with an empty "+filepath.Base(p.path)
	if info.IsDir() {
		return kept, os.Mkdir(p.path, 0o700)
	}
	return kept, os.WriteFile(p.path, nil, 0o600)
}

// giveBack puts a part back in its place and syncs it, so that it survives a power cut as the node's own writes do.
func (p *part) giveBack(kept string) error {
	if err := os.RemoveAll(p.path); err != nil {
		return err
	}
	info, err := os.Stat(kept)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		err = os.CopyFS(p.path, os.DirFS(kept))
	default:
		err = copyFile(kept, p.path)
	}
	if err != nil {
		return err
	}
	return errors.Join(filepath.WalkDir(p.path, syncOne), syncOne(filepath.Dir(p.path), nil, nil))
}

// syncOne syncs a file or a folder.
func syncOne(path string, _ fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

// makeWell replaces a node that does not become ready.
func (e *Env) makeWell(ctx context.Context, node *cluster.Node) error {
	if node.AwaitReady(ctx, 10*time.Second) == nil {
		return nil
	}
	return e.replace(ctx, node)
}

// replace replaces a node under another name.
func (e *Env) replace(ctx context.Context, node *cluster.Node) error {
	node.Kill()
	if err := os.RemoveAll(e.Data(node.ID)); err != nil {
		return err
	}
	_, err := e.Cluster.Replace(ctx, node)
	return err
}
