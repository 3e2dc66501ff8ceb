package fsm

import (
	"fmt"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/logpb"
)

// BenchmarkLongestEntry carries out, in one entry, what leaves most to do, and tells how long the longest entry took, that one and those
// that go on with it.
func BenchmarkLongestEntry(b *testing.B) {
	for name, prepare := range map[string]func(w *world) []*logpb.Command{
		"CloseSessions":    func(w *world) []*logpb.Command { return closes(fullSessions(w, 60, asksInVain)...) },
		"CloseWithWaiters": func(w *world) []*logpb.Command { return closes(fullSessions(w, 12, waitsForS)...) },
		"Acknowledge": func(w *world) (commands []*logpb.Command) {
			for _, session := range fullSessions(w, 60, asksInVain) {
				commands = append(commands, numbered(session, maxInFlight+1, maxInFlight+1, withdraw(1<<60)))
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
		// Each grant moves all that its holder has waiting.
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
		// Each Reserve of a quota that is waited for has the queue tried, of which policy passes over many.
		"ReservesInLine": func(w *world) (commands []*logpb.Command) {
			for range MaxEntryCommands {
				commands = append(commands, reserve(ask("h", itemOf("s", 1))))
			}
			fullSessions(w, 12, waitsForS)
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
				entries := 0
				for pending := true; pending; commands = nil {
					w.entries = nil
					w.now += millisecond
					started := time.Now()
					w.raw(commands...)
					longest = max(longest, time.Since(started))
					entries++
					due, _ := w.m.State().NextDue()
					pending = due <= w.now+1
				}
				b.ReportMetric(float64(longest.Microseconds())/1000, "ms/entry-max")
				b.ReportMetric(float64(entries), "entries")
			}
		})
	}
}

// fullSessions returns sessions with as many results as one may have, of these commands.
func fullSessions(w *world, count int, command func(i int) *logpb.Command) (sessions []uint64) {
	for range count {
		session := w.raw(opens())[0].GetSessionOpened().GetSession()
		sessions = append(sessions, session)
		for from := 1; from <= maxInFlight; from += 1024 {
			commands := make([]*logpb.Command, 1024)
			for i := range commands {
				commands[i] = numbered(session, uint64(from+i), 0, command(len(sessions)*maxInFlight+from+i))
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

// tight has an entry do so little of each kind of work.
func tight(most int) bounds {
	one := bound{most: most, left: most}
	return bounds{resumes: one, serves: one, frees: one, refusals: one, moves: one, sweeps: one}
}
