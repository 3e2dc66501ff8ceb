package nemesis

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/quotad/quotad/jepsen/cluster"
	"github.com/quotad/quotad/jepsen/history"
)

// rot damages a file of a stopped node. The node must repair itself, or refuse its disk with an exit code and a reason, and is then
// replaced. The kinds of files take turns, so that a long run covers all.
func rot(name string, end func(*cluster.Node) error, damage func(path string, r *rand.Rand) (string, error)) Fault {
	return Fault{Name: name, Ends: true, do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (hit, error) {
		node, err := e.follower(ctx, r)
		if err != nil {
			return hit{}, err
		}
		h := hit{targets: names(node)}
		if err := end(node); err != nil {
			return h, errors.Join(err, node.Start())
		}
		path, kind, err := e.damageOrder.file(name, e.Data(node.ID), r)
		if err != nil {
			return h, err
		}
		done, err := damage(path, r)
		if err != nil {
			return h, err
		}
		h.damaged, h.seen = kind, done+" "+placeOf(e.Data(node.ID), path)
		before, said, err := startAgain(e, node)
		if err != nil {
			return h, err
		}
		hold(ctx)
		ctx = context.WithoutCancel(ctx)
		if node.AwaitReady(ctx, 10*time.Second) == nil {
			return h, nil
		}
		refused := part{emptied: true, later: true} // it may be reported as lost, if the file shows that it is older, and found late
		if ends, words, err := endsOf(e, node, before, said); err != nil {
			return h, err
		} else if len(ends) > 0 { // else it is only slow
			if err := refused.refused(ends, words, e.Data(node.ID)); err != nil {
				_ = e.replace(ctx, node) // the next faults need a node that works
				return h, brokenError(fmt.Sprintf("%s, %s: %v", node.ID, h.seen, err))
			}
			h.seen += ", refused"
		}
		return h, e.replace(ctx, node)
	}}
}

// killed ends a node at once.
func killed(node *cluster.Node) error {
	node.Kill()
	return nil
}

// stopped ends a node in order: its witness then has the end of its log, and a cut that loses any of it must be found. After a crash the
// witness may be a second behind, and the end of a torn append looks the same.
func stopped(node *cluster.Node) error {
	if !node.Stop() {
		node.Kill()
		return errSlowStop
	}
	return nil
}

// damageOrder has the next kinds of files to damage, by fault.
type damageOrder struct {
	mu   sync.Mutex
	next map[string]int
}

// file returns a file of the kind whose turn it is, or of the next kind that has files.
func (t *damageOrder) file(fault, dir string, r *rand.Rand) (path, kind string, err error) {
	files, err := filesByKind(dir)
	if err != nil {
		return "", "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, began := t.next[fault]; !began {
		if t.next == nil {
			t.next = map[string]int{}
		}
		t.next[fault] = r.IntN(len(history.FileKinds)) // a short run ends before each kind had its turn
	}
	for range history.FileKinds {
		kind := history.FileKinds[t.next[fault]%len(history.FileKinds)]
		t.next[fault]++
		if of := files[kind]; len(of) > 0 {
			return of[r.IntN(len(of))], kind, nil
		}
	}
	return "", "", errors.New("there is no file to damage")
}

// filesByKind returns the non-empty files of a data directory.
func filesByKind(dir string) (map[string][]string, error) {
	files := map[string][]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, infoErr := entry.Info(); infoErr == nil && entry.Type().IsRegular() && info.Size() > 0 {
			kind := kindOf(placeOf(dir, path))
			files[kind] = append(files[kind], path)
		}
		return nil
	})
	return files, err
}

// kindOf returns the kind of a file by its place in a data directory.
func kindOf(place string) string {
	first, _, _ := strings.Cut(filepath.ToSlash(place), "/")
	switch first {
	case "raft.db", "wal":
		return history.FileLog
	case "snapshots":
		return history.FileSnapshot
	case "witness":
		return history.FileWitness
	}
	return history.FileSmall
}

// placeOf is a file's path relative to the data directory.
func placeOf(dir, path string) string {
	place, err := filepath.Rel(dir, path)
	if err != nil {
		return path
	}
	return place
}

// flip flips bits in a file.
func flip(path string, r *rand.Rand) (done string, err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	bits := 1 + r.IntN(16)
	for range bits {
		at, one := r.Int64N(info.Size()), make([]byte, 1)
		if _, err := file.ReadAt(one, at); err != nil {
			return "", err
		}
		one[0] ^= 1 << r.IntN(8)
		if _, err := file.WriteAt(one, at); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d bits in", bits), nil
}

// cut cuts off the end of a file: a little, or up to all of it.
func cut(path string, r *rand.Rand) (done string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	most := info.Size()
	if r.IntN(2) == 0 {
		most = min(most, 512)
	}
	off := 1 + r.Int64N(most)
	return fmt.Sprintf("%d of %d bytes off", off, info.Size()), os.Truncate(path, info.Size()-off)
}
