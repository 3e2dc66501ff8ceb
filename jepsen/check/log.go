package check

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/model"
	"github.com/quotad/quotad/raftnode/record"
)

// entry is the entry that the nodes applied at an index.
type entry struct {
	record.Line
	// by is the first node that recorded it.
	by string
}

// agreement merges the records of all nodes, over all their lives, into one log.
func (r *run) agreement() {
	v := r.verdict("agreement", "At one index all nodes apply the same entry, in the same term, with the same outcome and hash.")
	merged := map[uint64]*entry{}
	for _, node := range r.facts.Nodes {
		var last uint64
		err := r.records(node, func(line *record.Line) error {
			v.Checked++
			r.stats.Applied++
			first := merged[line.Index]
			if first == nil {
				merged[line.Index] = &entry{Line: *line, by: node}
			} else if why := differ(&first.Line, line); why != "" {
				v.violate("index %d: %s of %s and %s differ: %s", line.Index, why, first.by, node, both(&first.Line, line))
			} else if first.Ledger == "" {
				first.Ledger = line.Ledger
			}
			if last != 0 && line.Index > last+1 {
				r.stats.Gaps++ // a snapshot was installed, or entries that the state machine does not see
			}
			last = line.Index
			return nil
		})
		if err != nil {
			v.violate("the record of %s: %v", node, err)
		}
	}
	for _, e := range merged {
		r.log = append(r.log, *e)
	}
	slices.SortFunc(r.log, func(a, b entry) int { return int(a.Index) - int(b.Index) })
	for i := 1; i < len(r.log); i++ {
		if r.log[i].Term < r.log[i-1].Term {
			v.violate("the term falls from %d at index %d to %d at index %d", r.log[i-1].Term, r.log[i-1].Index, r.log[i].Term, r.log[i].Index)
		}
	}
	r.stats.Entries = len(r.log)
	// A restore whose index has an entry was lost with its leader.
	r.restores = slices.DeleteFunc(r.restores, func(restore *history.Restore) bool { return merged[restore.Index] != nil })
}

// records calls fn with the entries that a node applied, in order.
func (r *run) records(node string, fn func(*record.Line) error) error {
	if r.simulated == nil {
		return record.Read(r.dir.Record(node), fn)
	}
	for _, line := range r.simulated.Applied[node] {
		if err := fn(line); err != nil {
			return err
		}
	}
	return nil
}

// differ names the difference between two nodes' lines of one index.
func differ(a, b *record.Line) string {
	switch {
	case a.Term != b.Term:
		return "the terms"
	case string(a.Payload) != string(b.Payload):
		return "the entries"
	case a.Outcome != b.Outcome:
		return "the outcomes"
	case a.Ledger != "" && b.Ledger != "" && a.Ledger != b.Ledger:
		return "the ledgers' hashes"
	}
	return ""
}

func both(a, b *record.Line) string {
	word := func(l *record.Line) string {
		sum := sha256.Sum256(l.Payload)
		return fmt.Sprintf("term %d, entry %s, outcome %.8s, ledger %.8s", l.Term, hex.EncodeToString(sum[:4]), l.Outcome, l.Ledger)
	}
	return word(a) + "; " + word(b)
}

// occurrence is one place in the log where a command stands.
type occurrence struct {
	index   uint64
	command *logpb.Command
	result  *logpb.Result
	// now is cluster time there.
	now int64
}

// ending is the end of a wait.
type ending struct {
	ticket uint64
	occurrence
}

// replayed is the agreed log, replayed on a fresh state machine.
type replayed struct {
	// at are the commands of each entry, with their results.
	at map[uint64][]occurrence
	// numbered are the places of each request that has an identity.
	numbered map[requestID][]occurrence
	// endedAt are the final results of the waits that end at an index; asked are their commands, by ticket.
	endedAt map[uint64][]ending
	asked   map[uint64]*logpb.Command
	// happened are the events of each entry.
	happened map[uint64][]effect.Event
	// views are the expected results of reads at an index.
	views views
	// ledgers are the hashes of the ledger at the indices of the nodes' final states.
	ledgers map[uint64]string
	judge   model.Stats
}

// replay applies the agreed log to a fresh state machine, and the model judges each entry.
func (r *run) replay() *replayed {
	v := r.verdict("replay", "A fresh state machine has the same outcomes and hashes after the same log.")
	rules := r.verdict("rules", "The results of each entry are allowed by the rules of quota, leases and fences "+
		"(judged by a model that shares no code with the state machine).")
	rep := &replayed{
		at: map[uint64][]occurrence{}, numbered: map[requestID][]occurrence{},
		asked: map[uint64]*logpb.Command{}, endedAt: map[uint64][]ending{}, happened: map[uint64][]effect.Event{},
		views:   views{quotas: map[viewKey]*fsm.QuotaView{}, tasks: map[viewKey]string{}, workflows: map[viewKey]string{}},
		ledgers: map[uint64]string{},
	}
	t, restores, backups := newTimeline(), r.restores, map[*history.Restore]*backup{}
	reads, finals := r.readsByIndex(), map[uint64]bool{}
	for _, final := range r.facts.Final {
		finals[final.Index] = true
	}
	for i := range r.log {
		line := &r.log[i].Line
		for ; len(restores) > 0 && restores[0].Index < line.Index; restores = restores[1:] {
			t = t.after(restores[0], backups, v, rules)
			rep.views.read(reads[restores[0].Index], t.machine, &fsm.Applied{Index: restores[0].Index, Clock: t.machine.State().Clock()})
		}
		parsed, applied, broken, err := t.apply(line)
		if err != nil {
			v.violate("index %d: the entry cannot be decoded: %v", line.Index, err)
			break
		}
		v.Checked++
		if got := record.Digest(&applied); got != line.Outcome {
			v.violate("index %d: the outcome is %.8s, the nodes had %.8s", line.Index, got, line.Outcome)
		}
		if line.Ledger != "" {
			sum, _ := t.machine.State().Hash()
			if got := hex.EncodeToString(sum[:]); got != line.Ledger {
				v.violate("index %d: the ledger's hash is %.8s, the nodes had %.8s", line.Index, got, line.Ledger)
			}
		}
		rules.Checked++
		for _, violation := range broken {
			rules.violate("%s at index %d, command %d: %s", violation.Name, violation.Index, violation.Command, violation.Detail)
		}
		rep.keep(parsed, &applied)
		if finals[line.Index] {
			sum, _ := t.machine.State().Hash()
			rep.ledgers[line.Index] = hex.EncodeToString(sum[:])
		}
		rep.views.read(reads[line.Index], t.machine, &applied)
		for _, restore := range restores {
			if restore.Backup != line.Index {
				continue
			}
			backups[restore] = t.backup()
			if why := r.differsFromBackup(t.machine, restore); why != "" {
				v.violate("the backup of index %d: %s", line.Index, why)
			}
		}
	}
	rep.judge = t.judge.Stats()
	return rep
}

// after returns the timeline after a restore.
func (t *timeline) after(restore *history.Restore, backups map[*history.Restore]*backup, v, rules *Verdict) *timeline {
	from, known := backups[restore]
	if !known {
		v.violate("a backup of index %d was restored, which no node applied", restore.Backup)
		return t
	}
	next, broken, err := t.restored(from, restore)
	delete(backups, restore)
	if err != nil {
		v.violate("the backup of index %d: %v", restore.Backup, err)
		return t
	}
	if broken != nil {
		rules.violate("%s at the restore at index %d: %s", broken.Name, restore.Index, broken.Detail)
	}
	return next
}

// differsFromBackup says how a kept backup differs from the state at its index.
func (r *run) differsFromBackup(machine *fsm.Machine, restore *history.Restore) string {
	if restore.File == "" {
		return ""
	}
	return sameAsBackup(machine, filepath.Join(string(r.dir), restore.File))
}

// keep records where each command stands, and its result.
func (rep *replayed) keep(parsed *logpb.Entry, applied *fsm.Applied) {
	for i, command := range parsed.Commands {
		o := occurrence{index: applied.Index, command: command, result: applied.Results[i], now: applied.Clock.Now}
		rep.at[applied.Index] = append(rep.at[applied.Index], o)
		if id, ok := logID(command); ok {
			rep.numbered[id] = append(rep.numbered[id], o)
		}
		if waiting := o.result.GetWaiting(); waiting != nil {
			rep.asked[waiting.Ticket] = command
		}
	}
	if len(applied.Events) > 0 {
		rep.happened[applied.Index] = slices.Clone(applied.Events)
	}
	for i := range applied.Events {
		event := &applied.Events[i]
		if event.Ticket != 0 && event.Result != nil {
			end := ending{event.Ticket, occurrence{index: applied.Index, result: event.Result, now: applied.Clock.Now}}
			rep.endedAt[applied.Index] = append(rep.endedAt[applied.Index], end)
		}
	}
}
