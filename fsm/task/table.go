package task

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/logpb"
)

// Table has all tasks. It is copied on write: a copy may share tasks of older generations.
type Table struct {
	// generation rises with each copy.
	generation uint64
	byName     *cow.Map[string, *task]
	// underWay are running attempts by deadline, resting waiting and done tasks by since when; shelved tasks are in
	// neither.
	underWay, resting *cow.Set[dueByName]
}

// dueByName is the time at which a named task is due.
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

// tree returns the tree that lists a task by its time: running attempts by deadline; waiting and done tasks by since
// when. Shelved tasks are in none: they are never due.
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

// edit returns a task for update.
func (ts *Table) edit(t *task) *task {
	t, _ = cow.Edit(ts.byName, t.name, t, ts.generation)
	return t
}

// move moves a task to a phase, with its time.
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

// NextDue returns when a running attempt is lost, if there is one, and whether some task waits for its next attempt:
// lost time would extend that wait.
func (ts *Table) NextDue(now int64) (at int64, due, pending bool) {
	first, due := ts.underWay.Min()
	last, rests := ts.resting.Max()
	return first.At, due, rests && last.At > now
}

// Counts returns the number of tasks, of those with a running attempt, and of shelved ones, which are in no tree.
func (ts *Table) Counts() (all, underWay, shelved int64) {
	all, underWay = int64(ts.byName.Len()), int64(ts.underWay.Len())
	return all, underWay, all - underWay - int64(ts.resting.Len())
}

// EachCharge calls fn for each object that an account is charged with.
func (ts *Table) EachCharge(fn func(number uint64, b accounts.Budget, amount int64)) {
	ts.byName.Scan(func(_ string, t *task) bool {
		fn(t.account, accounts.Tasks, 1)
		return true
	})
}
