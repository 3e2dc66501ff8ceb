package fsm

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/logpb"
)

// sampled applies one entry with its own sample of Unix time; early 0: without a sample.
func (w *world) sampled(early, late int64, commands ...*logpb.Command) []*logpb.Result {
	w.t.Helper()
	w.index++
	data, err := proto.Marshal(&logpb.Entry{
		Version: EntryVersion, StampNs: w.now, WallEarlyNs: early, WallLateNs: late, Commands: commands,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.last = w.m.Apply(w.index, 1, data)
	return w.last.Results
}

// TestViews_Recover: after any samples, views of Unix time never contradict each other, and the earlier one never goes
// back. Once samples are sound again, no view is carried further ahead, and the later one is never behind true time.
// When true time has caught up with the earlier view, both equal the samples.
func TestViews_Recover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		wall := epochStart // true time; cluster time runs with it
		step := func() {
			passed := rapid.Int64Range(0, 5*second).Draw(t, "passed")
			wall, w.now = wall+passed, w.now+passed
			if rapid.IntRange(0, 9).Draw(t, "restored") == 0 {
				w.reborn()
			}
		}
		was := Clock{}
		check := func() Clock {
			c := w.m.State().Clock()
			if c.WallEarly < was.WallEarly || c.WallLate < c.WallEarly {
				t.Fatalf("views went from %+v to %+v", was, c)
			}
			was = c
			return c
		}
		for range rapid.IntRange(0, 20).Draw(t, "unsound") {
			step()
			if early := wall + rapid.Int64Range(-minute, minute).Draw(t, "error"); rapid.IntRange(0, 3).Draw(t, "sample") > 0 {
				w.sampled(early, early+rapid.Int64Range(0, minute).Draw(t, "width"))
			} else {
				w.sampled(0, 0)
			}
			check()
		}
		ahead := was.WallEarly
		const width = 500 * millisecond
		for n := range rapid.IntRange(1, 60).Draw(t, "sound") {
			step()
			if n > 0 && rapid.IntRange(0, 3).Draw(t, "no sample") == 0 {
				w.sampled(0, 0)
				if c := check(); c.WallEarly > max(ahead, wall) || c.WallLate < wall {
					t.Fatalf("without a sample views are %+v, true time is %d, and the earlier one was carried to %d", c, wall, ahead)
				}
				continue
			}
			early, late := wall-rapid.Int64Range(0, width).Draw(t, "behind"), wall+rapid.Int64Range(0, width).Draw(t, "ahead")
			w.sampled(early, late)
			c := check()
			if c.WallEarly > max(ahead, wall) || c.WallEarly < early || c.WallLate < wall || c.WallLate > max(ahead, late) {
				t.Fatalf("views are %+v, true time is %d, the sample %d to %d, and the earlier one was carried to %d", c, wall, early, late, ahead)
			}
		}
	})
}

// TestWindows_AreOnTimeAfterAWrongClock: clocks that were once 3 s ahead do not shift windows after they are right.
func TestWindows_AreOnTimeAfterAWrongClock(t *testing.T) {
	w := newWorld(t)
	w.early, w.late = 3*second, 3*second
	w.quotas(hourly("h", 10))
	w.early, w.late = 0, 0
	w.granted(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("h", 10)}, Consume: true})
	w.now = hour + second - 1 // the next hour's boundary ends a second later
	w.refused(ask("b", itemOf("h", 1)), logpb.Reason_REASON_EXHAUSTED)
	w.now++
	w.granted(ask("b", itemOf("h", 10)))
}

// TestWindows_OpenOnceAfterAWrongClock: a window that wrong clocks opened early does not open again when clocks are
// right.
func TestWindows_OpenOnceAfterAWrongClock(t *testing.T) {
	w := newWorld(t)
	w.quotas(hourly("h", 10))
	take := &logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("h", 10)}, Consume: true}
	w.now = hour - minute
	w.early, w.late = minute+2*second, minute+2*second // past the boundary according to all members
	w.granted(take)
	for w.early, w.late = 0, 0; w.now <= 2*hour; w.now += 10 * second {
		w.refused(take, logpb.Reason_REASON_EXHAUSTED)
	}
	w.now = 2*hour + second
	w.granted(take)
}

// TestNextDue_OfAViewThatStandsStill: a waiter for a window is due by the present clocks. The state's view is a
// millisecond short for as long as it stands still, and an entry each millisecond would not advance it.
func TestNextDue_OfAViewThatStandsStill(t *testing.T) {
	w := newWorld(t)
	w.quotas(hourly("h", 10))
	w.granted(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("h", 10)}, Consume: true})
	opens := epochStart + hour + second
	w.now = hour - minute
	if r := w.do(reserve(&logpb.Reserve{Holder: "b", Items: []*logpb.Item{itemOf("h", 10)}, WaitNs: 5 * minute})); r.GetWaiting() == nil {
		t.Fatal(r)
	}
	w.sampled(opens-millisecond, opens-millisecond) // a minute ahead
	present := func() (Clock, bool) {
		return Clock{Now: w.now, WallEarly: epochStart + w.now, WallLate: epochStart + w.now}, true
	}
	if at, pending := w.m.State().NextDueBy(present); at != hour+second || !pending {
		t.Errorf("due at %d, want %d", at, hour+second)
	}
	if at, pending := w.m.State().NextDueBy(func() (Clock, bool) { return Clock{}, false }); at <= hour+second || !pending {
		t.Errorf("due at %d without a sample: no entry moves the view", at)
	}
	if at, _ := w.m.State().NextDue(); at != w.now+millisecond {
		t.Errorf("due at %d by the state's own clock", at)
	}
	w.now = hour + second
	if w.apply(); len(w.last.Events) == 0 {
		t.Error("nothing was granted when the window opened")
	}
}
