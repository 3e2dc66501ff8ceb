package task

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/logpb"
)

// Table has all tasks. It is copied on write: a task of an older generation may be shared with a copy.
type Table struct {
	// generation rises with each copy.
	generation uint64
	byName     *cow.Map[string, *task]
	// underWay are attempts by deadline, resting what waits or is done, by since when; what is shelved is in neither.
	underWay, resting *cow.Set[dueByName]
}

// dueByName says that something is due of the task of a name.
type dueByName = cow.Due[string]

// New returns a table without tasks.
func New() *Table {
	return &Table{generation: 1, byName: new(cow.Map[string, *task]), underWay: cow.NewDues[string](), resting: cow.NewDues[string]()}
}

// Copy returns a table for reading, which shares everything until this one changes.
func (ts *Table) Copy() *Table {
	ts.generation++
	return &Table{generation: ts.generation, byName: ts.byName.Copy(), underWay: ts.underWay.Copy(), resting: ts.resting.Copy()}
}

// tree returns the tree in which a task stands by its time: attempts by their deadline; what waits for somebody, or is
// done, by since when that is so. What is shelved stands in none: nothing of it is ever due.
func (ts *Table) tree(phase logpb.TaskPhase) *cow.Set[dueByName] {
	switch phase {
	case logpb.TaskPhase_TASK_PHASE_IN_FLIGHT:
		return ts.underWay
	case logpb.TaskPhase_TASK_PHASE_WAITING, logpb.TaskPhase_TASK_PHASE_DONE:
		return ts.resting
	case logpb.TaskPhase_TASK_PHASE_SHELVED, logpb.TaskPhase_TASK_PHASE_READY, logpb.TaskPhase_TASK_PHASE_UNSPECIFIED:
	}
	return nil
}

// edit returns a task that may be changed.
func (ts *Table) edit(t *task) *task {
	t, _ = cow.Edit(ts.byName, t.name, t, ts.generation)
	return t
}

// move puts a task into a phase, with its time.
func (ts *Table) move(t *task, phase logpb.TaskPhase, at int64) {
	ts.unlist(t)
	t.phase, t.at = phase, at
	ts.list(t)
}

func (ts *Table) list(t *task) {
	if tree := ts.tree(t.phase); tree != nil {
		tree.Set(dueByName{At: t.at, ID: t.name})
	}
}

func (ts *Table) unlist(t *task) {
	if tree := ts.tree(t.phase); tree != nil {
		tree.Delete(dueByName{At: t.at, ID: t.name})
	}
}

// NextDue returns when an attempt is lost, if one is under way, and whether somebody waits for the time of a next one: a
// time that a leader does not let pass would make that wait longer.
func (ts *Table) NextDue(now int64) (at int64, due, pending bool) {
	first, due := ts.underWay.Min()
	last, rests := ts.resting.Max()
	return first.At, due, rests && last.At > now
}

// Counts returns how many tasks there are, of how many an attempt is under way, and how many are shelved: those that
// stand in no tree of times.
func (ts *Table) Counts() (all, underWay, shelved int64) {
	all, underWay = int64(ts.byName.Len()), int64(ts.underWay.Len())
	return all, underWay, all - underWay - int64(ts.resting.Len())
}

// EachCharge calls fn with each thing that an account is charged with.
func (ts *Table) EachCharge(fn func(number uint64, b accounts.Budget, amount int64)) {
	ts.byName.Scan(func(_ string, t *task) bool {
		fn(t.account, accounts.Tasks, 1)
		return true
	})
}
