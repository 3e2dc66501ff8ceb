package fsm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/dedup"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/workflow"
)

// BenchmarkLongestEntry carries out, in one entry, commands that leave the most work. It reports the longest time of an
// entry, among that one and those that continue its work.
func BenchmarkLongestEntry(b *testing.B) {
	for name, prepare := range map[string]func(w *world) []*logpb.Command{
		"CloseSessions":    func(w *world) []*logpb.Command { return closes(fullSessions(w, 60, asksInVain)...) },
		"CloseWithWaiters": func(w *world) []*logpb.Command { return closes(fullSessions(w, 12, waitsForS)...) },
		"Acknowledge": func(w *world) (commands []*logpb.Command) {
			for _, session := range fullSessions(w, 60, asksInVain) {
				commands = append(commands, numbered(session, dedup.MaxInFlight+1, dedup.MaxInFlight+1, withdraw(1<<60)))
			}
			return commands
		},
		"DeleteQuotaWithWaiters": func(w *world) []*logpb.Command {
			fullSessions(w, 12, waitsForS)
			return []*logpb.Command{deletesByForce("s")}
		},
		"DeleteMeteredQuotas": func(w *world) (commands []*logpb.Command) {
			w.raw(applyQuotas(metered(slotsOf("m", 1<<40))))
			for i := range 200 {
				several := make([]*logpb.Command, 1000)
				for k := range several {
					several[k] = reserve(ask(fmt.Sprintf("holder-%d", i*1000+k), itemOf("m", 1)))
				}
				w.raw(several...)
				w.entries = nil
			}
			for i := range 200 {
				w.raw(applyQuotas(slotsOf(fmt.Sprint("q", i), 1)))
				commands = append(commands, deletesByForce(fmt.Sprint("q", i)))
			}
			return commands
		},
		// Each grant moves all waiters of its holder.
		"GrantsOfAHolderThatWaits": func(w *world) (commands []*logpb.Command) {
			for range maxWaitersOfHolder / 1024 {
				several := make([]*logpb.Command, 1024)
				for k := range several {
					several[k] = waits("h", 0, 10*minute, itemOf("s", 1))
				}
				w.raw(several...)
			}
			for range MaxEntryCommands {
				commands = append(commands, reserve(ask("h", itemOf("free", 1))))
			}
			return commands
		},
		// Each Reserve of a quota with waiters runs a pass over the queue, in which policy passes over many.
		"ReservesInLine": func(w *world) (commands []*logpb.Command) {
			for range MaxEntryCommands {
				commands = append(commands, reserve(ask("h", itemOf("s", 1))))
			}
			fullSessions(w, 12, waitsForS)
			return commands
		},
		// Each Release runs a pass over the whole queue, since its wait sets are connected, without effect.
		"ReleasesOverManyWaitSets": func(w *world) []*logpb.Command {
			commands := releasesOfFree(w)
			connectedWaitSets(w)
			return commands
		},
		"ReservesOverManyWaitSets": func(w *world) (commands []*logpb.Command) {
			connectedWaitSets(w)
			for range MaxEntryCommands {
				commands = append(commands, reserve(ask("h", itemOf("free", 1))))
			}
			return commands
		},
		// The same with a workflow that pauses all waiters, so that each is tried.
		"ReleasesOverStepsKeptBack": func(w *world) []*logpb.Command {
			commands := releasesOfFree(w)
			stepsKeptBack(w, 1)
			return commands
		},
		// Each grant ends a limit, and each denial begins one, of a step of as many workflows as possible.
		"GrantsAndDenialsInWorkflows": func(w *world) (commands []*logpb.Command) {
			stepsKeptBack(w, workflow.MaxOfHolder)
			return limitsAndGrants(w)
		},
		"GrantsAndDenialsWithoutWaiters": func(w *world) (commands []*logpb.Command) {
			w.raw(workflows(longChains(workflow.MaxOfHolder)...))
			return limitsAndGrants(w)
		},
		"ReportsInWorkflows": func(w *world) (commands []*logpb.Command) {
			stepsKeptBack(w, workflow.MaxOfHolder)
			for i := range MaxEntryCommands {
				w.raw(applyQuotas(rateOf(fmt.Sprint("q", i), 1, minute)))
				lease := w.raw(consumesAtOnce(lastStep, itemOf(fmt.Sprint("q", i), 1)))[0].GetGranted().GetLease()
				commands = append(commands, reports(lease, 1, signal(fmt.Sprint("q", i), logpb.Cause_CAUSE_SATURATED,
					retryAfter(int64(i)*10*millisecond))))
			}
			return commands
		},
		"DeleteWorkflows": func(w *world) (commands []*logpb.Command) {
			stepsKeptBack(w, workflow.MaxOfHolder)
			for i := range workflow.MaxOfHolder {
				commands = append(commands, deletesWorkflow(fmt.Sprint("chain-", i)))
			}
			return commands
		},
		// Each grant demotes its holder's promoted background waiters.
		"GrantsOfAHolderThatAges": func(w *world) (commands []*logpb.Command) {
			ageing := &logpb.Policy{AgeingNs: minute}
			w.raw(applyQuotas(policed(slotsOf("a", 1), ageing), policed(slotsOf("b", 1<<40), ageing)),
				holders(&logpb.HolderRule{Pattern: "h", Class: 2}))
			w.raw(reserve(ask("first", itemOf("a", 1))))
			for range maxWaitersOfHolder / 1024 {
				several := make([]*logpb.Command, 1024)
				for k := range several {
					several[k] = waits("h", 0, 10*minute, itemOf("a", 1))
				}
				w.raw(several...)
			}
			for range MaxEntryCommands {
				commands = append(commands, reserve(ask("h", itemOf("b", 1))))
			}
			return commands
		},
		"DeleteManyQuotas": func(w *world) (commands []*logpb.Command) {
			for i := range 100_000 / 1000 {
				several := make([]*logpb.Quota, 1000)
				for k := range several {
					several[k] = slotsOf(fmt.Sprint("q", 1000*i+k), 1)
				}
				w.raw(applyQuotas(several...))
			}
			for i := range MaxEntryCommands {
				commands = append(commands, deletes(fmt.Sprint("q", i)))
			}
			return commands
		},
		// A second begins, in which the first waiters in line are searched.
		"SavingUpOver4Quotas":  func(w *world) []*logpb.Command { return secondOverManyWaitSets(w, 4) },
		"SavingUpOver64Quotas": func(w *world) []*logpb.Command { return secondOverManyWaitSets(w, 64) },
		// Each Reserve needs the most it may, and is refused: of plain quotas, and with a pool of the most members.
		"WideReserves":           func(w *world) []*logpb.Command { return wideReserves(w, maxItems, 0) },
		"WideReservesOfAPool":    func(w *world) []*logpb.Command { return wideReserves(w, maxPoolItems-1, 1) },
		"NarrowReservesOfAPool":  func(w *world) []*logpb.Command { return wideReserves(w, 0, 1) },
		"NarrowReservesOf8Pools": func(w *world) []*logpb.Command { return wideReserves(w, 0, maxPools) },
		"GrantsBesideManyRules": func(w *world) (commands []*logpb.Command) {
			var rules []*logpb.HolderRule
			for i := range maxRules {
				rules = append(rules, &logpb.HolderRule{Pattern: fmt.Sprintf("*-%d*x", i), Class: 2})
			}
			w.raw(holders(rules...))
			for i := range MaxEntryCommands {
				commands = append(commands, reserve(ask(fmt.Sprintf("holder-of-a-long-name-%d", i), itemOf("free", 1))))
			}
			return commands
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				w := newWorld(b)
				w.raw(applyQuotas(slotsOf("s", 1), slotsOf("free", 1<<40)))
				w.raw(reserve(ask("first", itemOf("s", 1))))
				unlimited := int64(1) << 40
				w.raw(&logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{MaxResultBytes: &unlimited, MaxLeases: &unlimited}}})
				commands := prepare(w)
				w.now += millisecond
				w.raw()
				b.StartTimer()
				var longest time.Duration
				entries, events := 0, 0
				for pending := true; pending; commands = nil {
					w.entries = nil
					w.now += millisecond
					started := time.Now()
					w.raw(commands...)
					longest = max(longest, time.Since(started))
					entries++
					events = max(events, len(w.last.Events))
					due, _ := w.m.State().NextDue()
					pending = due <= w.now+1
				}
				b.ReportMetric(float64(longest.Microseconds())/1000, "ms/entry-max")
				b.ReportMetric(float64(entries), "entries")
				b.ReportMetric(float64(events), "events-max")
			}
		})
	}
}

// fullSessions returns sessions with the most results that one may have, of these commands.
func fullSessions(w *world, count int, command func(i int) *logpb.Command) (sessions []uint64) {
	for range count {
		session := w.raw(opens())[0].GetSessionOpened().GetSession()
		sessions = append(sessions, session)
		for from := 1; from <= dedup.MaxInFlight; from += 1024 {
			commands := make([]*logpb.Command, 1024)
			for i := range commands {
				commands[i] = numbered(session, uint64(from+i), 0, command(len(sessions)*dedup.MaxInFlight+from+i))
			}
			w.raw(commands...)
			w.entries = nil
		}
	}
	return sessions
}

func asksInVain(int) *logpb.Command { return withdraw(1 << 60) }

func waitsForS(i int) *logpb.Command {
	return waits(fmt.Sprintf("h%d", i/1000), 0, 10*minute, itemOf("s", 1))
}

func closes(sessions ...uint64) (commands []*logpb.Command) {
	for _, session := range sessions {
		commands = append(commands, &logpb.Command{Session: session, Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}})
	}
	return commands
}

func deletesByForce(name string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: name, Force: true}}}
}

// connectedWaitSets fills the queue with as many waiters as one caller may have, each in its own wait set, all
// connected by a quota that has enough.
func connectedWaitSets(w *world) {
	const others = 100
	for i := range others {
		w.raw(applyQuotas(slotsOf(fmt.Sprint("q", i), 1)))
		w.raw(reserve(ask("first", itemOf(fmt.Sprint("q", i), 1))))
	}
	i, j, k := 0, 1, 2
	fillQueue(w, func(n int) *logpb.Command {
		if k++; k == others {
			if j++; j == others-1 {
				i++
				j = i + 1
			}
			k = j + 1
		}
		item := func(n int) *logpb.Item { return itemOf(fmt.Sprint("q", n), 1) }
		return waits(fmt.Sprint("h", n/1000), 0, 10*minute, itemOf("free", 1), item(i), item(j), item(k))
	})
}

// secondOverManyWaitSets fills the queue with as many waiters as one caller may have, just before a second begins. Each
// needs some of 80 quotas with ageing, and nearly each has its own wait set.
func secondOverManyWaitSets(w *world, each int) []*logpb.Command {
	const quotas = 80
	for i := range quotas {
		w.raw(applyQuotas(policed(slotsOf(fmt.Sprint("q", i), 1), &logpb.Policy{AgeingNs: 5 * minute})))
		w.raw(reserve(ask("first", itemOf(fmt.Sprint("q", i), 1))))
	}
	random := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // a benchmark's choices
	fillQueue(w, func(n int) *logpb.Command {
		items := make([]*logpb.Item, each)
		for i, chosen := range random.Perm(quotas)[:each] {
			items[i] = itemOf(fmt.Sprint("q", chosen), 1)
		}
		return waits(fmt.Sprint("h", n/1000), 0, 10*minute, items...)
	})
	w.now += second - w.now%second - 2*millisecond
	return nil
}

// fillQueue fills the queue with as many waiters as one caller may have, half of the callers' part. It inserts them
// directly, because each command would run a pass over the whole queue.
func fillQueue(w *world, command func(n int) *logpb.Command) {
	m := w.m
	m.payer = accounts.Payer{Caller: "hostile"}
	for n := 0; m.taking(accounts.Waiters) == accounts.MayTake; n++ {
		req := command(n).GetReserve()
		needs, _ := m.judge.needs(req)
		rq := m.judge.request(req, needs)
		m.queue.enqueue(&rq, needs, dedup.RequestID{})
	}
	m.payer = accounts.Payer{}
}

// releasesOfFree returns Releases of as many leases as an entry can end.
func releasesOfFree(w *world) (commands []*logpb.Command) {
	several := make([]*logpb.Command, MaxEntryCommands)
	for i := range several {
		several[i] = reserve(ask("other", itemOf("free", 1)))
	}
	for _, result := range w.raw(several...) {
		commands = append(commands, releases(result.GetGranted().GetLease()))
	}
	return commands
}

const lastStep = "step-63"

// longChains returns workflows of the most steps, all of the same holders.
func longChains(count int) (chains []*logpb.Workflow) {
	steps := make([]string, workflow.MaxSteps)
	for i := range steps {
		steps[i] = fmt.Sprintf("step-%02d", i)
	}
	for i := range count {
		c := chain(fmt.Sprint("chain-", i), steps...)
		c.Threshold = workflow.MaxSteps
		chains = append(chains, c)
	}
	return chains
}

// stepsKeptBack fills the queue with waiters of holders upstream of a limited one, in wait sets as long as one pass
// examines.
func stepsKeptBack(w *world, chains int) {
	limits := limitsAndGrants(w)[0]
	w.raw(workflows(longChains(chains)...))
	for i := range 100 {
		w.raw(applyQuotas(slotsOf(fmt.Sprint("q", i), 1000)))
	}
	w.raw(limits)
	fillQueue(w, func(n int) *logpb.Command {
		return waits(fmt.Sprintf("step-%02d", n%32), 0, 10*minute, itemOf("free", 1), itemOf(fmt.Sprint("q", n/1000), 1))
	})
}

// limitsAndGrants limit the last step and grant it something, in turn.
func limitsAndGrants(w *world) (commands []*logpb.Command) {
	w.raw(applyQuotas(slotsOf("one", 1<<20)))
	w.raw(reserve(ask("first", itemOf("one", 1<<20-2*MaxEntryCommands))))
	for range MaxEntryCommands / 2 {
		commands = append(commands, reserve(ask(lastStep, itemOf("one", 1<<19))), reserve(ask(lastStep, itemOf("one", 1))))
	}
	return commands
}

// tight returns bounds that allow an entry only most of each kind of work.
func tight(most int) bounds {
	one := bound{most: most, left: most}
	return bounds{
		ends: one, waits: one, reopens: one, resumes: one, serves: one, tries: one, scans: one, walks: one, frees: one, refusals: one,
		moves: one, sweeps: one,
	}
}

// wideReserves returns the Reserves of one entry that need plain quotas and pools, each with the most ancestors and
// members. The last item makes them refused.
func wideReserves(w *world, plain, pools int) (commands []*logpb.Command) {
	deep := func(name string, limit int64) {
		above := ""
		for depth := range maxDepth + 1 {
			q := slotsOf(fmt.Sprint(name, "/", maxDepth-depth), limit)
			q.Parent = above
			w.raw(applyQuotas(q))
			above = q.Name
		}
	}
	var items []*logpb.Item
	for i := range plain {
		deep(fmt.Sprint("q", i), 1<<40)
		items = append(items, itemOf(fmt.Sprint("q", i, "/0"), 1))
	}
	for i := range pools {
		members := &logpb.Pool{}
		for k := range ledger.MaxMembers {
			name := fmt.Sprint("p", i, "m", k)
			deep(name, 1)
			w.raw(reserve(ask("first", itemOf(name+"/0", 1))))
			members.Members = append(members.Members, &logpb.PoolMember{Name: fmt.Sprint(k), Quota: name + "/0"})
		}
		name := fmt.Sprint("p", i)
		w.raw(applyQuotas(&logpb.Quota{Name: name, Rule: &logpb.Quota_Pool{Pool: members}}))
		items = append(items, itemOf(name, 1))
	}
	if pools == 0 {
		items[plain-1] = itemOf("s", 1)
	}
	command := reserve(ask("h", items...))
	return slices.Repeat([]*logpb.Command{command}, min(MaxEntryCommands/Weight(command), 1<<20/proto.Size(command)))
}
