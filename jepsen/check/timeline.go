package check

import (
	"cmp"
	"fmt"
	"os"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/jepsen/model"
	"github.com/quotad/quotad/raftnode/record"
)

// timeline is the log as it counts: a restore takes back what came after its backup. With a state machine and a judge that have come so far,
// it keeps the steps that led there, so that a later restore can go back to any of them.
type timeline struct {
	machine *fsm.Machine
	judge   *model.Judge
	steps   []logStep
}

// logStep is an entry, or a restore.
type logStep struct {
	line    *record.Line
	restore *rebase
}

// rebase is what a restore takes over from the cluster that it happens in.
type rebase struct {
	index   uint64
	epoch   uint32
	cluster string
	members []fsm.MemberView
	clock   fsm.Clock
	judge   *model.Judge
}

func newTimeline() *timeline { return &timeline{machine: fsm.New(), judge: model.New()} }

// apply carries an entry out.
func (t *timeline) apply(line *record.Line) (parsed *logpb.Entry, applied fsm.Applied, broken []model.Violation, err error) {
	parsed = new(logpb.Entry)
	if err := proto.Unmarshal(line.Payload, parsed); err != nil {
		return nil, applied, nil, err
	}
	applied = t.machine.Apply(line.Index, line.Term, line.Payload)
	broken = t.judge.Entry(parsed, &applied)
	t.steps = append(t.steps, logStep{line: line})
	return parsed, applied, broken, nil
}

// rebase carries out what a restore changes in the backup's state.
func (t *timeline) rebase(b *rebase) (broken *model.Violation) {
	t.machine.Rebase(b.index, t.machine.State().Term(), b.epoch, b.cluster, b.members, b.clock)
	t.judge, broken = b.judge.Restored(t.judge, b.epoch)
	t.steps = append(t.steps, logStep{restore: b})
	return broken
}

// restored returns the timeline after a restore: the steps that led to the backup once more, and on from there.
func (t *timeline) restored(toBackup []logStep, restore *history.Restore) (*timeline, *model.Violation, error) {
	next := newTimeline()
	for _, s := range toBackup {
		if s.restore != nil {
			next.rebase(s.restore)
		} else if _, _, _, err := next.apply(s.line); err != nil {
			return nil, nil, err
		}
	}
	state := t.machine.State()
	epoch := max(state.Epoch(), next.machine.State().Epoch()) + 1
	if restore.Epoch != 0 && restore.Epoch != epoch {
		return nil, nil, fmt.Errorf("it was told to begin epoch %d, epoch %d is due", restore.Epoch, epoch)
	}
	broken := next.rebase(&rebase{index: restore.Index, epoch: epoch, cluster: state.ClusterID(), members: state.Members(), clock: state.Clock(), judge: t.judge})
	return next, broken, nil
}

// restoresOf are the restores among faults, in the order of their indices.
func restoresOf(faults []*history.Fault) []*history.Restore {
	var all []*history.Restore
	for _, fault := range faults {
		all = append(all, fault.Restores...)
	}
	slices.SortFunc(all, func(a, b *history.Restore) int { return cmp.Compare(a.Index, b.Index) })
	return all
}

// lost says which restore, counted from 1, took an index back; 0: none did.
func (r *run) lost(index uint64) int {
	for i, restore := range r.restores {
		if restore.Backup < index && index < restore.Index {
			return i + 1
		}
	}
	return 0
}

// sameAsBackup says why a backup's file is not the state at its index.
func sameAsBackup(machine *fsm.Machine, path string) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = file.Close() }()
	backup, err := fsm.Restore(file)
	if err != nil {
		return err.Error()
	}
	_, want := machine.State().Hash()
	if _, got := backup.State().Hash(); got != want {
		return fmt.Sprintf("it has the hash %.8x, the log comes to %.8x", got, want)
	}
	return ""
}
