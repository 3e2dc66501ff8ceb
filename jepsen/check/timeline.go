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

// timeline is the valid log: a restore takes back the entries after its backup. It holds a state machine and a judge at its end, and the
// steps that led there.
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

// rebase is the part of the state before a restore that the restore keeps.
type rebase struct {
	index   uint64
	epoch   uint32
	cluster string
	members []fsm.MemberView
	clock   fsm.Clock
}

// backup is the point from which a restore continues. The judge's books are copied. The state machine is built again from the steps, so
// that an incomplete backup is not compared with itself; to judge again would take several times as long.
type backup struct {
	judge *model.Judge
	steps []logStep
}

func newTimeline() *timeline { return &timeline{machine: fsm.New(), judge: model.New()} }

// apply applies an entry.
func (t *timeline) apply(line *record.Line) (parsed *logpb.Entry, applied fsm.Applied, broken []model.Violation, err error) {
	parsed = new(logpb.Entry)
	if err := proto.Unmarshal(line.Payload, parsed); err != nil {
		return nil, applied, nil, err
	}
	step := logStep{line: line}
	applied = step.on(t.machine)
	broken = t.judge.Entry(parsed, &applied)
	t.steps = append(t.steps, step)
	return parsed, applied, broken, nil
}

// on applies a step to a machine.
func (s logStep) on(machine *fsm.Machine) (applied fsm.Applied) {
	if r := s.restore; r != nil {
		machine.Rebase(r.index, machine.State().Term(), r.epoch, r.cluster, r.members, r.clock)
		return applied
	}
	return machine.Apply(s.line.Index, s.line.Term, s.line.Payload)
}

// backup returns the current point for a later restore.
func (t *timeline) backup() *backup {
	return &backup{judge: t.judge.Fork(), steps: slices.Clip(t.steps)}
}

// restored returns the timeline after a restore: the steps up to the backup, then the restore.
func (t *timeline) restored(from *backup, restore *history.Restore) (*timeline, *model.Violation, error) {
	next := &timeline{machine: fsm.New(), steps: from.steps}
	for _, s := range from.steps {
		s.on(next.machine)
	}
	state := t.machine.State()
	epoch := max(state.Epoch(), next.machine.State().Epoch()) + 1
	if restore.Epoch != 0 && restore.Epoch != epoch {
		return nil, nil, fmt.Errorf("the restore was to begin epoch %d, epoch %d is due", restore.Epoch, epoch)
	}
	step := logStep{restore: &rebase{
		index: restore.Index, epoch: epoch, cluster: state.ClusterID(), members: state.Members(), clock: state.Clock(),
	}}
	step.on(next.machine)
	next.steps = append(next.steps, step)
	judge, broken := t.judge.Restored(from.judge, epoch)
	next.judge = judge
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

// lost is the number, from 1, of the restore that took back an index; 0: none did.
func (r *run) lost(index uint64) int {
	for i, restore := range r.restores {
		if restore.Backup < index && index < restore.Index {
			return i + 1
		}
	}
	return 0
}

// sameAsBackup says how a backup's file differs from the state at its index.
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
		return fmt.Sprintf("it has the hash %.8x, the log has %.8x", got, want)
	}
	return ""
}
