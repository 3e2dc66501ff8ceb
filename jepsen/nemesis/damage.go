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

// startAgain starts a stopped node. It returns how many nodes had ended by then, and how much this one had said: what it comes to follows.
func startAgain(e *Env, node *cluster.Node) (ends, said int, err error) {
	ends = len(e.Cluster.Exits())
	before, err := node.Said()
	if err != nil {
		return 0, 0, err
	}
	return ends, len(before), node.Start()
}

// loseHalf removes or empties a file or a folder of a stopped node's data directory. Without one that a node cannot do without, it must
// refuse to start, in words and with an exit code; what it lost is then given back, or the node replaced. Whatever it does with less of
// another, all nodes must end alike.
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
				_ = e.makeWell(ctx, node) // what comes next is about other faults
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

// refusedToStart sees that a node ended by itself, with the exit code, the place and the words of its damage, and neither served nor voted.
// before are the ends of nodes, and from is the place in its log, where the damage was done.
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

// endsOf returns how a node ended each time since so many ends of nodes, and what it has said since a place in its log.
func endsOf(e *Env, node *cluster.Node, before, from int) (ends []string, said string, err error) {
	for _, exit := range e.Cluster.Exits()[before:] {
		if exit.Node == node.ID {
			ends = append(ends, exit.How)
		}
	}
	all, err := node.Said()
	return ends, string(all[min(from, len(all)):]), err
}

// What nodes do and say of a disk that they refuse: the exit code, and the words for a part that is missing and for damage.
const (
	refusal      = "exit status 4"
	lostWords    = "a part of this node's data is lost"
	damagedWords = "the data directory is damaged"
)

// votes is what raft writes to a node's log as soon as it takes part in elections.
const votes = "entering follower state"

// refused judges how a node that lost the part ended each time that it was started, and what it said of its directory. A part that is
// missing is called lost; an empty one may be called damaged, since it can be a write that was cut off.
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
	// emptied says that an empty one was left in its place, what says what was done to it.
	emptied bool
	// later says that the damage may be found when the node takes part already.
	later bool
	what  string
}

// needed are the parts, by their place in the data directory, without which none takes part again. The snapshots belong to them once there
// is one, and of the log's files the last one, which has what was synced last.
var needed = []string{"raft.db", "wal", filepath.Join("wal", "wal-meta.db"), "node", "formation", "formed", "joined", "cluster", "witness"}

// partsOf returns all files of a data directory, and the folders that are parts by themselves.
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

// lose moves a part away, and leaves an empty one where that is asked for. It returns where it is kept.
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

// giveBack puts a part back where it was, so that it survives a later power cut as what the node itself had written did.
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

// makeWell replaces a node that does not come up.
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
