package check

import (
	"fmt"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// watches checks that each stream reports all events between its beginning and its end: in order, complete, once each, and as in the log.
func (r *run) watches(rep *replayed) {
	v := r.verdict("watch",
		"A watch stream tells every event of every index from where it began, in order, once; it resumes where it ended or says that this is "+
			"gone.")
	indices := make([]uint64, 0, len(rep.happened))
	for index := range rep.happened {
		indices = append(indices, index)
	}
	slices.Sort(indices)
	type key struct {
		watcher string
		stream  int
	}
	streams := map[key]*follower{}
	err := r.eachSeen(func(watcher string, stream int, from uint64, message *quotav1.WatchResponse) {
		k := key{watcher, stream}
		if streams[k] == nil {
			streams[k] = &follower{
				v: v, rep: rep, restores: r.restores, indices: indices, name: fmt.Sprintf("%s, stream %d", watcher, stream), from: from,
			}
		}
		if message != nil {
			streams[k].next(message)
		}
	})
	if err != nil {
		v.violate("the watchers' history: %v", err)
	}
	r.stats.Streams = len(streams)
}

// eachSeen calls fn with each message of each stream, in order; nil for the end of a stream.
func (r *run) eachSeen(fn func(watcher string, stream int, from uint64, message *quotav1.WatchResponse)) error {
	if r.simulated != nil {
		for i := range r.simulated.Seen {
			seen := &r.simulated.Seen[i]
			fn(seen.Watcher, seen.Stream, seen.From, seen.message())
		}
		return nil
	}
	return history.Read(filepath.Join(string(r.dir), "seen-*.jsonl"), func(line *history.Seen) error {
		if line.End != nil {
			fn(line.Watcher, line.Stream, line.From, nil)
			return nil
		}
		message := new(quotav1.WatchResponse)
		if err := proto.Unmarshal(line.Message, message); err != nil {
			return err
		}
		fn(line.Watcher, line.Stream, line.From, message)
		return nil
	})
}

// follower checks one stream.
type follower struct {
	v        *Verdict
	rep      *replayed
	restores []*history.Restore
	indices  []uint64
	name     string
	from     uint64
	// at is the index of the last message; up to it all events were sent, unless sent is above 0. 0: nothing was sent yet.
	at uint64
	// sent is the number of events of index at that were sent, if more follow.
	sent int
}

// next checks a message.
func (f *follower) next(message *quotav1.WatchResponse) {
	index, got := message.Meta.Index, message.Events
	want := f.rep.happened[index]
	f.v.Checked++
	switch {
	case f.sent > 0 && (index != f.at || len(got) == 0):
		f.v.violate("%s: index %d comes before the rest of index %d", f.name, index, f.at)
		return
	case f.sent > 0:
		want = want[min(f.sent, len(want)):]
	case f.at != 0 && (index < f.at || index == f.at && len(got) > 0):
		f.v.violate("%s: index %d comes after %d", f.name, index, f.at)
		return
	case f.at == index:
		want = nil // a bookmark of events that were sent already
	default:
		f.holes(index)
	}
	first := f.at == 0
	f.at = index
	if message.More {
		if len(got) == 0 || len(got) >= len(want) {
			f.v.violate("%s: index %d: more is promised after %d events, of %d that were left", f.name, index, len(got), len(want))
		}
		f.sent += len(got)
		want = want[:min(len(got), len(want))]
	} else {
		f.sent = 0
	}
	if why := differentEvents(want, got); why != "" && (len(got) > 0 || !first) {
		f.v.violate("%s: index %d: %s", f.name, index, why)
	}
}

// holes checks that nothing happened between the sent events and an index.
func (f *follower) holes(index uint64) {
	begin := f.at + 1
	if f.at == 0 {
		begin = f.from
		if begin == 0 {
			begin = index // from now on: the first message says where that is
		}
	}
	for _, restore := range f.restores {
		if restore.Backup+1 < begin && begin <= restore.Index && restore.Index <= index {
			f.v.violate("%s: index %d follows %d, without a word of the restore at %d that took that back", f.name, index, begin-1, restore.Index)
		}
	}
	position, _ := slices.BinarySearch(f.indices, begin)
	for ; position < len(f.indices) && f.indices[position] < index; position++ {
		if f.takenBack(f.indices[position], index) {
			continue
		}
		f.v.violate("%s: the events of index %d are missing before index %d", f.name, f.indices[position], index)
	}
}

// takenBack says whether a restore before an index took back another index's events: a stream of the restored state does not carry them.
func (f *follower) takenBack(index, before uint64) bool {
	return slices.ContainsFunc(f.restores, func(restore *history.Restore) bool {
		return restore.Backup < index && index < restore.Index && restore.Index <= before
	})
}

func differentEvents(want []effect.Event, got []*quotav1.Event) string {
	if len(want) != len(got) {
		return fmt.Sprintf("%d events were sent, the log has %d", len(got), len(want))
	}
	for i := range want {
		if w, g := logHappened(&want[i]), apiHappened(got[i]); w != g {
			return fmt.Sprintf("event %d was sent as %s, the log has %s", i, g, w)
		}
	}
	return ""
}
