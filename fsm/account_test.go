package fsm

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// chargedTo charges a caller with a command. Holders of a caller that is known by its address have accounts of their
// own.
func chargedTo(caller string, command *logpb.Command) *logpb.Command {
	command = proto.CloneOf(command)
	command.Caller, command.PerHolder = caller, len(caller) > 8 && caller[:8] == "address:"
	return command
}

func operators(command *logpb.Command) *logpb.Command {
	command = chargedTo("token:ops", command)
	command.Operator = true
	return command
}

// filling returns a function that makes the n-th command of a caller that takes one of a budget.
func filling(b accounts.Budget) func(caller string, n int) *logpb.Command {
	return map[accounts.Budget]func(string, int) *logpb.Command{
		accounts.Sessions: func(caller string, _ int) *logpb.Command { return chargedTo(caller, opens()) },
		accounts.Keys: func(caller string, n int) *logpb.Command {
			return chargedTo(caller, keyedBy(fmt.Sprintf("%s-%d", caller, n), withdraw(1<<40)))
		},
		accounts.Results: func(caller string, n int) *logpb.Command {
			return chargedTo(caller, keyedBy(fmt.Sprintf("%s-%d", caller, n), withdraw(1<<40)))
		},
		accounts.Waiters: func(caller string, n int) *logpb.Command {
			return chargedTo(caller, waits(fmt.Sprintf("h%d", n), 0, 10*minute, itemOf("none", 1)))
		},
		accounts.Tasks: func(caller string, n int) *logpb.Command {
			return chargedTo(caller, begins(fmt.Sprintf("%s-%d", caller, n), "h", 0))
		},
		accounts.Leases: func(caller string, n int) *logpb.Command {
			return chargedTo(caller, asks(fmt.Sprintf("h%d", n), 0, itemOf("r", 1)))
		},
		accounts.Reports: func(caller string, _ int) *logpb.Command {
			return chargedTo(caller, reports(1, 1, signal("r", logpb.Cause_CAUSE_OK)))
		},
		accounts.Holders: func(caller string, n int) *logpb.Command {
			return chargedTo(caller, asks(fmt.Sprintf("%s-%d", caller, n), 0, itemOf("r", 1)))
		},
		accounts.Operations: func(caller string, _ int) *logpb.Command {
			return chargedTo(caller, consumesAtOnce("h", itemOf("r", 1)))
		},
	}[b]
}

// sharedWorld has small budgets, a large quota, an exhausted one, and a lease that reports may name.
func sharedWorld(t tester) *world {
	w := newWorld(t)
	w.quotas(rateOf("r", 1<<40, minute), rateOf("none", 1, day))
	w.do(limitsTo(func(l *logpb.SetLimits) {
		l.MaxSessions, l.MaxKeys, l.MaxWaiters, l.MaxTasks = proto.Int64(800), proto.Int64(800), proto.Int64(800), proto.Int64(800)
		l.MaxLeases, l.MaxReports, l.MaxResultBytes = proto.Int64(1600), proto.Int64(800), proto.Int64(1<<20)
	}))
	for _, req := range []*logpb.Command{consumesAtOnce("first", itemOf("r", 1)), consumesAtOnce("first", itemOf("none", 1))} {
		if w.do(req).GetGranted() == nil {
			t.Fatal("not granted")
		}
	}
	return w
}

// takes makes callers take of a budget in turn until none gets more, and returns how much each got.
func takes(t tester, w *world, b accounts.Budget, callers ...string) map[string]int {
	t.Helper()
	got, next := map[string]int{}, filling(b)
	for n, going := 0, true; going; n++ {
		going = false
		for _, caller := range callers {
			r := w.raw(next(caller, n))[0]
			reason := max(r.GetFailure().GetReason(), r.GetRefusal().GetReason())
			if reason != logpb.Reason_REASON_CALLER_BUDGET && reason != logpb.Reason_REASON_BUDGET_FULL &&
				reason != logpb.Reason_REASON_SESSIONS_FULL && reason != logpb.Reason_REASON_TASKS_FULL && reason != logpb.Reason_REASON_QUEUE_FULL {
				got[caller]++
				going = true
			} else if named := r.GetFailure().GetBudget() + r.GetRefusal().GetBudget(); reason == logpb.Reason_REASON_CALLER_BUDGET && named == "" {
				t.Fatalf("a caller is at a budget without a name: %v", r)
			}
		}
		if n > 5000 {
			t.Fatalf("%s: never full", accounts.Names[b])
		}
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestBudgets_LeaveRoomForOthers: of each budget a single caller gets half of the callers' part. The next caller gets
// half of the rest, and so on; each gets the minimum; and operators find room when all others find none.
func TestBudgets_LeaveRoomForOthers(t *testing.T) {
	for b := range accounts.Budget(accounts.Budgets) {
		t.Run(accounts.Names[b], func(t *testing.T) {
			w := sharedWorld(t)
			most := 800
			if b == accounts.Leases {
				most = 1600
			}
			open := most - most/16
			inBytes := b == accounts.Results || b == accounts.Holders || b == accounts.Operations
			w.do(limitsTo(func(l *logpb.SetLimits) {
				bytes := [accounts.Budgets]**int64{
					accounts.Results: &l.MaxResultBytes, accounts.Holders: &l.MaxHolderBytes,
					accounts.Operations: &l.MaxOperationBytes,
				}
				if limit := bytes[b]; limit != nil { // the other budgets are counts
					*limit = new(int64(100_000))
				}
			}))
			hostile := takes(t, w, b, "token:hostile")["token:hostile"]
			if !inBytes && (hostile < open/2-3 || hostile > open/2) {
				t.Errorf("alone it got %d of %d", hostile, open)
			}
			if next := takes(t, w, b, "token:next")["token:next"]; !inBytes && (next < open/4-3 || next > open/4+1) {
				t.Errorf("the next one got %d of %d", next, open)
			}
			for n := range 2000 {
				takes(t, w, b, fmt.Sprintf("token:%d", n))
				if w.m.accounts.UsedOf(b, w.m.clock.Now) >= w.m.accounts.Limits.Of(b)-w.m.accounts.Limits.OperatorsPart(b) {
					break
				}
			}
			before := w.m.accounts.UsedOf(b, w.m.clock.Now)
			got := 0
			for n := range 5000 {
				if r := w.raw(operators(filling(b)("token:ops", n)))[0]; r.GetRefusal() != nil || r.GetFailure().GetBudget() != "" {
					break
				}
				got++
			}
			if got < 2 || w.m.accounts.UsedOf(b, w.m.clock.Now) == before {
				t.Errorf("an operator got %d when all others got none", got)
			}
		})
	}
}

// TestBudgets_ServeManyHoldersOfOneCaller: a gateway's token acts for 10,000 holders, together with callers that took
// as much as they could.
func TestBudgets_ServeManyHoldersOfOneCaller(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 1<<40, minute))
	w.do(limitsTo(func(l *logpb.SetLimits) { l.MaxLeases = proto.Int64(100_000) })) // a fifth of the default
	hold := func(caller string, n int) *logpb.Command {
		return chargedTo(caller, asks(fmt.Sprintf("agent-%d", n), hour, itemOf("r", 1)))
	}
	for _, hostile := range []string{"token:hostile", "token:another"} {
		for entry := 0; ; entry++ {
			var commands []*logpb.Command
			for n := range MaxEntryCommands {
				commands = append(commands, hold(hostile, entry*MaxEntryCommands+n%100))
			}
			results := w.raw(commands...)
			w.entries = nil
			if results[MaxEntryCommands-1].GetRefusal().GetReason() == logpb.Reason_REASON_CALLER_BUDGET {
				break
			}
		}
	}
	for n := range 10_000 {
		if r := w.raw(hold("token:gateway", n))[0]; r.GetGranted() == nil {
			t.Fatalf("holder %d: %v", n, r)
		}
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
}

// TestBudgets_HoldersOfOneAddress: without tokens a runaway holder leaves room for the others at its address, and its
// address for other addresses.
func TestBudgets_HoldersOfOneAddress(t *testing.T) {
	w := sharedWorld(t)
	lease := func(address, holder string) *logpb.Command {
		return chargedTo(address, asks(holder, 0, itemOf("r", 1)))
	}
	fill := func(address, holder string) (got int) {
		for w.raw(lease(address, holder))[0].GetGranted() != nil {
			got++
		}
		return got
	}
	const here, there = "address:192.0.2.1", "address:192.0.2.2"
	if got := fill(here, "wild"); got < 370 || got > 375 {
		t.Errorf("one holder alone got %d of 1,600", got)
	}
	if got := fill(here, "other"); got < 180 || got > 190 {
		t.Errorf("the next holder got %d", got)
	}
	for n := range 3000 {
		fill(here, fmt.Sprint("made-up-", n))
	}
	if has := w.m.accounts.FindAccount(0, here).Used[accounts.Leases]; has > 750 {
		t.Errorf("one address has %d of 1,600", has)
	}
	if got := fill(there, "quiet"); got < 150 {
		t.Errorf("a holder elsewhere got %d", got)
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
}

// TestAccounts_AreBoundedAndDropped: callers can make up any number of names, so accounts are bounded; empty accounts
// are dropped.
func TestAccounts_AreBoundedAndDropped(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 1<<40, minute))
	for n := 0; n < 70_000; n += 1000 {
		var commands []*logpb.Command
		for i := range 1000 {
			commands = append(commands, chargedTo(fmt.Sprintf("address:%d", (n+i)%68_000), asks("h", hour, itemOf("r", 1))))
		}
		for i, r := range w.raw(commands...) {
			if r.GetGranted() == nil {
				t.Fatalf("caller %d: %v", n+i, r)
			}
		}
		w.entries = nil
	}
	s := w.m.State()
	if n := s.accounts.ByNumber.Len(); n > accounts.MaxAccounts+2 {
		t.Fatalf("%d accounts", n)
	}
	if shared := w.m.accounts.FindAccount(0, ""); shared == nil || shared.Used[accounts.Leases] < 1000 {
		t.Fatalf("who came later shares %v", shared)
	}
	if err := s.Verify(); err != nil {
		t.Fatal(err)
	}
	w.reborn()
	w.now += 2 * hour
	for w.m.State().Counts().Leases > 0 {
		w.raw()
	}
	w.now += 2 * hour // its holder's record is dropped last
	w.raw()
	w.raw()
	if s = w.m.State(); s.accounts.ByNumber.Len() != 0 || s.accounts.Names.Len() != 0 {
		t.Fatalf("%d accounts are left of callers that have nothing", s.accounts.ByNumber.Len())
	}
}

// TestAccounts_OfOneAddressAreBounded: one address cannot take all accounts with made-up holder names.
func TestAccounts_OfOneAddressAreBounded(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 1<<40, minute))
	for n := range 3000 {
		if r := w.raw(chargedTo("address:192.0.2.1", asks(fmt.Sprint("h", n), 0, itemOf("r", 1))))[0]; r.GetGranted() == nil {
			t.Fatal(r)
		}
	}
	if n := w.m.State().accounts.ByNumber.Len(); n != accounts.MaxHoldersAccount+1 {
		t.Fatalf("%d accounts", n)
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
}

// TestKeyLife_AppliesToStoredKeys: a shorter life expires stored keys, a longer one keeps them longer.
func TestKeyLife_AppliesToStoredKeys(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 10, minute))
	first := w.do(keyedBy("k", asks("a", 0, itemOf("r", 1)))).GetGranted()
	life := func(ns int64) { w.do(limitsTo(func(l *logpb.SetLimits) { l.KeyLifeNs = &ns })) }
	life(2 * day)
	w.sleep(30 * hour)
	if again := w.do(keyedBy("k", asks("a", 0, itemOf("r", 1)))).GetGranted(); again.GetLease() != first.GetLease() {
		t.Fatalf("the key was forgotten: %v", again)
	}
	w.reborn()
	life(hour)
	w.sleep(0)
	if n := w.m.requests.Counts().Keys; n != 0 {
		t.Fatalf("%d keys are left", n)
	}
	if again := w.do(keyedBy("k", asks("a", 0, itemOf("r", 1)))).GetGranted(); again.GetLease() == first.GetLease() {
		t.Fatal("an ended key was answered")
	}
}

// TestResults_OfOneCallerLeaveRoomForOthers: a caller that acknowledges nothing, in any number of sessions, takes no other
// caller's room for results.
func TestResults_OfOneCallerLeaveRoomForOthers(t *testing.T) {
	w := sharedWorld(t)
	w.do(limitsTo(func(l *logpb.SetLimits) { l.MaxResultBytes = proto.Int64(160_000) }))
	for session := uint64(1); session <= 12; session++ {
		w.raw(chargedTo("token:hostile", opens()))
		for seq := uint64(1); seq < 1000; seq++ {
			if w.raw(chargedTo("token:hostile", numbered(session, seq, 0,
				withdraw(1<<40))))[0].GetFailure().GetReason() != logpb.Reason_REASON_UNKNOWN_TICKET {
				break
			}
		}
	}
	if r := w.raw(chargedTo("token:hostile", numbered(12, 5000, 0,
		withdraw(1<<40))))[0]; r.GetFailure().GetReason() != logpb.Reason_REASON_CALLER_BUDGET {
		t.Fatalf("the hostile caller is not stopped: %v", r)
	}
	session := w.do(chargedTo("token:good", opens())).GetSessionOpened().GetSession()
	for seq := uint64(1); seq <= 200; seq++ {
		if r := w.raw(chargedTo("token:good", numbered(session, seq, seq, asks("good", second, itemOf("r", 1)))))[0]; r.GetGranted() == nil {
			t.Fatalf("request %d of another caller: %v", seq, r)
		}
	}
	// What it acknowledges is available to it again.
	if r := w.raw(chargedTo("token:hostile", numbered(1, 6000, 6000,
		withdraw(1<<40))))[0]; r.GetFailure().GetReason() != logpb.Reason_REASON_UNKNOWN_TICKET {
		t.Fatalf("after an acknowledgement: %v", r)
	}
}

// TestResults_OfOneAddressLeaveRoomForOthers: an address that makes up holders takes no more room for results than one
// caller.
func TestResults_OfOneAddressLeaveRoomForOthers(t *testing.T) {
	const all, address = 160_000, "address:192.0.2.1"
	w := sharedWorld(t)
	w.do(limitsTo(func(l *logpb.SetLimits) { l.MaxResultBytes, l.OperatorsPpm = proto.Int64(all), proto.Int64(0) }))
	for n := range 12 {
		open := chargedTo(address, opens())
		open.GetOpenSession().Holder = fmt.Sprint("h", n)
		session := w.do(open).GetSessionOpened().GetSession()
		for seq := uint64(1); w.raw(chargedTo(address, numbered(session, seq, 0,
			withdraw(1<<40))))[0].GetFailure().GetReason() == logpb.Reason_REASON_UNKNOWN_TICKET; {
			seq++
		}
	}
	if has := w.m.accounts.FindAccount(0, address).Used[accounts.Results]; has < all/3 || has > all/2+1000 {
		t.Fatalf("one address has %d of %d bytes", has, all)
	}
}

// TestReports_AreCountedByTheMinute: a caller at its budget can report again in the next minute.
func TestReports_AreCountedByTheMinute(t *testing.T) {
	w := sharedWorld(t)
	takes(t, w, accounts.Reports, "token:a")
	next := filling(accounts.Reports)
	w.fails(next("token:a", 0), logpb.Reason_REASON_CALLER_BUDGET)
	if r := w.do(next("token:b", 0)); r.GetReported() == nil {
		t.Fatalf("another caller: %v", r)
	}
	w.sleep(minute)
	if r := w.do(next("token:a", 0)); r.GetReported() == nil {
		t.Fatalf("in the next minute: %v", r)
	}
	w.sleep(2 * minute)
	if n := w.m.State().accounts.ByNumber.Len(); n != 0 {
		t.Fatalf("%d accounts are left", n)
	}
}

// TestReports_EndOfAnAttempt: without a report left an attempt still ends, and its report is left out.
func TestReports_EndOfAnAttempt(t *testing.T) {
	w := sharedWorld(t)
	w.quotas(rateOf("reported", 10, minute))
	begin := begins("job", "h", 0)
	begin.GetBeginTask().Quotas = []string{"reported"}
	fence := w.do(chargedTo("token:a", begin)).GetTaskBegun().GetFence()
	takes(t, w, accounts.Reports, "token:a")
	end := ends("job", fence, logpb.TaskOutcome_TASK_OUTCOME_SATURATED)
	end.GetEndTask().Report = logpb.Cause_CAUSE_SATURATED
	for range 2 { // a repeat ends it as well
		if r := w.do(chargedTo("token:a", end)).GetTaskEnded(); r.GetPhase() != logpb.TaskPhase_TASK_PHASE_WAITING {
			t.Fatalf("%v", r)
		}
	}
	if r := w.do(chargedTo("token:a", asks("h", 0, itemOf("reported", 1)))); r.GetGranted() == nil {
		t.Errorf("the quota received the report: %v", r)
	}
}

// TestBudgets_WaitersBecomeLeases: a waiter's lease is already counted, so that no grant exceeds a budget.
func TestBudgets_WaitersBecomeLeases(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1))
	w.do(limitsTo(func(l *logpb.SetLimits) { l.MaxLeases = proto.Int64(8) }))
	if w.do(chargedTo("token:a", asks("a", 0, itemOf("s", 1)))).GetGranted() == nil {
		t.Fatal("not granted")
	}
	for range 3 {
		if r := w.do(chargedTo("token:b", waits("b", 0, minute, itemOf("s", 1)))); r.GetWaiting() == nil {
			t.Fatal(r)
		}
	}
	w.refusedTo("token:b", waits("b", 0, minute, itemOf("s", 1)), "leases")
	w.do(chargedTo("token:a", releases(1)))
	if a := w.m.accounts.FindAccount(0, "token:b"); a.Used[accounts.Leases] != 3 || a.Used[accounts.Waiters] != 2 ||
		w.m.accounts.FindAccount(0, "token:a").Used[accounts.Leases] != 0 {
		t.Fatalf("%+v", a)
	}
}

// refusedTo sends a command of a caller that a budget must refuse.
func (w *world) refusedTo(caller string, command *logpb.Command, budget string) {
	w.t.Helper()
	r := w.do(chargedTo(caller, command))
	if f := r.GetRefusal(); f.GetReason() != logpb.Reason_REASON_CALLER_BUDGET || f.GetBudget() != budget || f.GetRetryAtNs() <= w.now {
		w.t.Fatalf("want a refusal for the budget of %s, got %v", budget, r)
	}
}

// TestRestore_RefusesAccountsThatCannotBe: records that name an unknown account, and accounts that contradict others.
func TestRestore_RefusesAccountsThatCannotBe(t *testing.T) {
	for name, record := range map[string]*logpb.SnapshotRecord{
		"number 0":             accountRecord(&logpb.SnapshotAccount{Name: "x"}),
		"a number to come":     accountRecord(&logpb.SnapshotAccount{Number: 9, Name: "x"}),
		"a parent that is not": accountRecord(&logpb.SnapshotAccount{Number: 1, Parent: 2, Name: "x"}),
		"negative reports":     accountRecord(&logpb.SnapshotAccount{Number: 1, Reports: -1, Name: "x"}),
		"a session's":          {Kind: &logpb.SnapshotRecord_Session{Session: &logpb.SnapshotSession{Id: 1, Account: 3}}},
		"a lease's":            {Kind: &logpb.SnapshotRecord_Lease{Lease: &logpb.SnapshotLease{Id: 1, Account: 3}}},
		"a key's":              {Kind: &logpb.SnapshotRecord_Key{Key: &logpb.SnapshotKey{Key: "k", Result: effect.Done(), Account: 3}}},
	} {
		restored := &restoring{m: New()}
		restored.m.accounts.Last = 5
		if restored.take(record) == nil {
			t.Errorf("%s: was taken", name)
		}
	}
	restored := &restoring{m: New()}
	restored.m.accounts.Last = 5
	for _, fine := range []*logpb.SnapshotAccount{{Number: 1, Name: "x"}, {Number: 2, Parent: 1, Name: "x"}} {
		if err := restored.take(accountRecord(fine)); err != nil {
			t.Fatal(err)
		}
	}
	for name, again := range map[string]*logpb.SnapshotAccount{
		"the same number": {Number: 1, Name: "y"}, "the same name": {Number: 3, Name: "x"},
		"a child of a child": {Number: 4, Parent: 2, Name: "z"},
	} {
		if restored.take(accountRecord(again)) == nil {
			t.Errorf("%s: was taken", name)
		}
	}
}

func accountRecord(a *logpb.SnapshotAccount) *logpb.SnapshotRecord {
	return &logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Account{Account: a}}
}

// TestResults_OfSessionsLeaveTheOperatorsPart: callers that acknowledge nothing fill the callers' part, and operators
// find room for theirs.
func TestResults_OfSessionsLeaveTheOperatorsPart(t *testing.T) {
	w := sharedWorld(t)
	w.do(limitsTo(func(l *logpb.SetLimits) { l.MaxResultBytes = proto.Int64(200_000) }))
	for n := range 400 {
		caller := fmt.Sprintf("token:%d", n)
		opened := w.raw(chargedTo(caller, opens()))[0].GetSessionOpened()
		if opened == nil {
			break
		}
		for seq := uint64(1); ; seq++ {
			r := w.raw(chargedTo(caller, numbered(opened.Session, seq, 0, withdraw(1<<40))))[0]
			if r.GetFailure().GetReason() != logpb.Reason_REASON_UNKNOWN_TICKET { // its session's part, its own, or the callers' part is full
				break
			}
		}
	}
	for n := range 5 {
		if r := w.raw(operators(filling(accounts.Results)("token:ops", n)))[0]; r.GetFailure().GetReason() != logpb.Reason_REASON_UNKNOWN_TICKET {
			t.Fatalf("an operator's command with a key: %v", r)
		}
		opened := w.raw(operators(chargedTo("token:ops", opens())))[0].GetSessionOpened()
		if opened == nil {
			t.Fatal("no session for an operator")
		}
		if r := w.raw(operators(chargedTo("token:ops", numbered(opened.Session, 1, 0, withdraw(1<<40)))))[0]; r.GetFailure().GetBudget() != "" {
			t.Fatalf("an operator's command in a session: %v", r)
		}
	}
}
