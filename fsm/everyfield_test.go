package fsm

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// Restore accepts what Apply accepts. These tests walk the schema of entries, so that a new command or field is
// included. Each field takes the extreme values of its type and some between them, in otherwise valid commands, on a
// state that has some of everything. After each entry the state must be consistent, and equal to the state restored
// from its snapshot.

// lively returns a world with some of everything that a state can hold.
func lively(t tester) *world { return livelyAt(t, EntryVersion) }

// livelyAt is lively at a feature level: policies and pools that need a higher one are left out.
func livelyAt(t tester, level uint32) *world {
	w := newWorld(t)
	w.version = level
	var definitions []*logpb.Quota
	for _, definition := range randomWorldQuotas() {
		if _, failure := ledger.NewRule(definition, level); failure != nil && level < EntryVersion {
			definition.Policy = nil
		}
		if _, pool := definition.Rule.(*logpb.Quota_Pool); !pool || level >= levels.Pools {
			definitions = append(definitions, definition)
		}
	}
	w.raw(applyQuotas(definitions...), applyQuotas(&logpb.Quota{Name: "spare", Rule: slotsOf("spare", 5).Rule}))
	chained := []*logpb.Workflow{
		chain("chain", "low-1", "std-1", "boss", "std-2"), graph("rest", after("std-2"), after("std-3"), after("std-1", "std-3", "std-2")),
	}
	w.raw(workflows(chained...))
	w.raw(holders(&logpb.HolderRule{Pattern: "boss", Class: 0, Weight: 3}, &logpb.HolderRule{Pattern: "low*", Class: 2}),
		putMember("n1", "a:1"),
		founds("c"))
	for range 3 {
		w.raw(&logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: "a"}}})
	}
	short := ask("boss", itemOf("rate", 1), itemOf("ends", 1))
	short.TtlNs, short.Consume = second, true
	w.raw(reserve(short))
	w.now += 2 * second
	w.raw() // its records are detached now
	for i, name := range randomHolders {
		w.now += 100 * millisecond
		consumes := ask(name, itemOf("rate", 2), itemOf("hour", 1), itemOf("anchored", 2))
		consumes.Consume = true
		w.raw(reserve(consumes), keyedBy(fmt.Sprintf("k%d", i), reserve(ask(name, itemOf("org/team", 1)))),
			numbered(uint64(i%3+1), uint64(i+1), 0, reserve(ask(name, itemOf("minute", 1), itemOf("ends", 1)))))
		w.raw(waits(name, 0, minute, itemOf("slots", 1)), numbered(uint64(i%3+1), uint64(i+10), 0, waits(name, 0, minute, itemOf("org/team", 6))))
		w.raw(beginsOn(fmt.Sprintf("t%d", i), "rate"))
	}
	w.raw(endsAfter("t1", w.m.taskFence("t1"), logpb.TaskOutcome_TASK_OUTCOME_FAILED, 0, 0), forgets("t2"))
	w.raw(&logpb.Command{Kind: &logpb.Command_SetOverride{SetOverride: &logpb.SetOverride{
		Quota: "burst", Limit: new(int64(30)), ForNs: minute,
	}}})
	l := w.m.liveOne("rate")
	w.raw(report(&logpb.Report{Lease: l.id, Fence: l.fence, Op: 1, Signals: []*logpb.Signal{
		{Quota: "anchored", Cause: logpb.Cause_CAUSE_OK, Remaining: new(int64(20)), ResetAfterNs: new(hour / 2), ResetResolutionNs: second},
		{Quota: "rate", Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: new(5 * second), Remaining: new(int64(3)), Limit: new(int64(25))},
	}}))
	return w
}

// liveOne returns a lease that holds or consumed some of a quota; a fictitious lease if there is none.
func (m *Machine) liveOne(name string) (found *lease) {
	found = &lease{id: 1, fence: 1}
	number, _ := m.quotas.names.Get(name)
	m.leases.Scan(func(_ uint64, l *lease) bool {
		if l.deadline > m.clock.Now && len(l.items) > 0 && (name == "" || l.items[0].quota == number) {
			found = l
		}
		return true
	})
	return found
}

// sensible returns a usual value of a field, in the present state.
func sensible(m *Machine, field protoreflect.FieldDescriptor) (any, bool) {
	l := m.liveOne("rate")
	in := field.ContainingMessage().Name()
	switch name := field.Name(); {
	case in == "Command" && (name == "session" || name == "seq" || name == "acked_below" || name == "idempotency_key" || name == "by"):
		return nil, false
	case field.Kind() == protoreflect.BoolKind:
		return true, true
	case in == "Item" && name == "quota", in == "Signal" && name == "quota":
		return "rate", true
	case name == "quota" || in == "BeginTask" && name == "quotas":
		return "burst", true
	case in == "Quota" && name == "name":
		return "rate", true
	case name == "parent", name == "fallback":
		return "org", true
	case name == "pattern":
		return "low*", true
	case name == "after", name == "member", name == "pool":
		return nil, false
	case name == "holder":
		return "std-1", true
	case name == "task":
		return "t3", true
	case in == "Workflow" && name == "name", name == "workflow":
		return "chain", true
	case (in == "RenewTask" || in == "EndTask") && name == "fence":
		return m.taskFence("t3"), true
	case name == "fence":
		return l.fence, true
	case name == "lease":
		return l.id, true
	case name == "op":
		return uint64(1), true
	case name == "done_below":
		return uint64(1), true
	case name == "ticket":
		first, _, _ := m.queue.waiters.Min()
		return max(first, 1), true
	case name == "epoch":
		return m.epoch + 1, true
	case strings.HasSuffix(string(name), "_ns"):
		return 30 * second, true
	case strings.HasSuffix(string(name), "_ppm"):
		return int64(200_000), true
	case field.Kind() == protoreflect.StringKind:
		return "some", true
	case field.Kind() == protoreflect.EnumKind:
		return int64(1), true
	}
	return int64(3), true
}

// fill sets a message's fields to sensible values; of a oneof the chosen field. With off, flags stay off.
func fill(m *Machine, to protoreflect.Message, kind protoreflect.Name, chosen int, off bool) {
	fields := to.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if of := field.ContainingOneof(); of != nil && !of.IsSynthetic() {
			if of.Name() == "kind" && field.Name() != kind || of.Name() != "kind" && of.Fields().Get(chosen%of.Fields().Len()) != field {
				continue
			}
		}
		if field.Kind() == protoreflect.MessageKind {
			switch {
			case off && field.HasOptionalKeyword(), field.Name() == "policy" && off:
			case field.IsList():
				fill(m, to.Mutable(field).List().AppendMutable().Message(), kind, chosen, off)
			default:
				fill(m, to.Mutable(field).Message(), kind, chosen, off)
			}
			continue
		}
		value, ok := sensible(m, field)
		if !ok || off && (field.Kind() == protoreflect.BoolKind || field.Kind() == protoreflect.EnumKind ||
			field.ContainingMessage().Name() == "Quota" && field.Name() != "name") {
			continue
		}
		set(to, field, valueOf(field, value))
	}
}

func set(to protoreflect.Message, field protoreflect.FieldDescriptor, value protoreflect.Value) {
	if field.IsList() {
		to.Mutable(field).List().Append(value)
		return
	}
	to.Set(field, value)
}

// valueOf converts a number, a text or a flag to a field's type.
func valueOf(field protoreflect.FieldDescriptor, value any) protoreflect.Value {
	var signed int64
	var unsigned uint64
	switch v := value.(type) {
	case string:
		return protoreflect.ValueOfString(v)
	case bool:
		return protoreflect.ValueOfBool(v)
	case int64:
		signed, unsigned = v, uint64(v)
	case uint64:
		signed, unsigned = int64(v), v
	case uint32:
		signed, unsigned = int64(v), uint64(v)
	}
	switch field.Kind() {
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(signed))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(signed)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(unsigned))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(unsigned)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(signed))
	default:
		panic(fmt.Sprintf("%s is of a kind that this test does not know", field.FullName()))
	}
}

// extremes are the values tried for a field.
func extremes(field protoreflect.FieldDescriptor) (values []any) {
	switch field.Kind() {
	case protoreflect.StringKind:
		values = []any{
			"", "x", "*", "/", "rate", "org/team", "chain", "t1", "std-3", "k1", "n1", "a\x00b", "ünï\u2028cöde", "\U0010ffff",
			strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat("x", 200), strings.Repeat("*a", 5000), strings.Repeat("y", 1<<16),
		}
	case protoreflect.BoolKind:
		values = []any{false, true}
	case protoreflect.EnumKind:
		values = []any{int64(math.MinInt32), int64(-1), int64(math.MaxInt32)}
		for i := range field.Enum().Values().Len() + 1 {
			values = append(values, int64(i))
		}
	case protoreflect.Int32Kind:
		values = []any{
			int64(math.MinInt32), int64(math.MinInt32 + 1), int64(-1), int64(0), int64(1), int64(2), int64(3), int64(100), int64(1000),
			int64(fixed.Million - 1),
			int64(fixed.Million), int64(fixed.Million + 1), int64(math.MaxInt32 - 1), int64(math.MaxInt32),
		}
	case protoreflect.Uint32Kind:
		values = []any{uint64(0), uint64(1), uint64(2), uint64(1<<16 - 1), uint64(1 << 16), uint64(1 << 31), uint64(math.MaxUint32)}
	case protoreflect.Int64Kind:
		values = []any{
			int64(math.MinInt64), int64(math.MinInt64 + 1), -day, int64(-1), int64(0), int64(1), int64(2), int64(7), millisecond, second, minute,
			hour, day, ledger.MaxPeriod,
			int64(fixed.MaxAmount), int64(fixed.MaxAmount + 1), int64(1 << 60), int64(1 << 62), int64(math.MaxInt64 - 1), int64(math.MaxInt64),
		}
	case protoreflect.Uint64Kind:
		values = []any{
			uint64(0), uint64(1), uint64(2), uint64(5), uint64(1<<48 - 1), uint64(1 << 48), uint64(1<<53 - 1), uint64(1 << 53), uint64(1<<63 - 1),
			uint64(1 << 63),
			uint64(1<<63 + 1), uint64(math.MaxUint64 - 1), uint64(math.MaxUint64),
		}
	default:
		panic(fmt.Sprintf("%s is of a kind that this test does not know", field.FullName()))
	}
	return values
}

// change sets one field of a message.
type change struct {
	path  string
	apply func()
}

// changesOf returns the possible changes of a message and of the messages set in it. Each change reverts the one
// before, and the first starts with the original message.
func changesOf(in protoreflect.Message, path string) (changes []change) {
	fields := in.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		at := path + "." + string(field.Name())
		if of := field.ContainingOneof(); of != nil && of.Name() == "kind" {
			if in.Has(field) {
				changes = append(changes, changesOf(in.Mutable(field).Message(), at)...)
			}
			continue
		}
		add := func(what any, apply func()) {
			changes = append(changes, change{path: fmt.Sprintf("%s = %.60s", at, fmt.Sprint(what)), apply: apply})
		}
		add("absent", func() { in.Clear(field) })
		switch {
		case field.Kind() == protoreflect.MessageKind && field.IsList():
			changes = append(changes, listChanges(in, field, at)...)
			for j := range in.Get(field).List().Len() {
				changes = append(changes, changesOf(in.Mutable(field).List().Get(j).Message(), fmt.Sprintf("%s[%d]", at, j))...)
			}
		case field.Kind() == protoreflect.MessageKind:
			add("empty", func() { in.Set(field, in.NewField(field)) })
			if in.Has(field) {
				changes = append(changes, changesOf(in.Mutable(field).Message(), at)...)
			}
		default:
			for _, value := range extremes(field) {
				add(value, func() {
					if field.IsList() {
						in.Clear(field)
					}
					set(in, field, valueOf(field, value))
				})
			}
		}
	}
	return changes
}

// listChanges are lists of messages that are too long, have a duplicate, or have an empty message.
func listChanges(in protoreflect.Message, field protoreflect.FieldDescriptor, at string) (changes []change) {
	if in.Get(field).List().Len() == 0 {
		return nil
	}
	repeat := func(times int) func() {
		return func() {
			list := in.Mutable(field).List()
			for range times {
				list.Append(protoreflect.ValueOfMessage(proto.Clone(list.Get(0).Message().Interface()).ProtoReflect()))
			}
		}
	}
	return []change{
		{at + " twice", repeat(1)},
		{at + " 65 times", repeat(64)},
		{at + " with an empty one", func() { in.Mutable(field).List().AppendMutable() }},
		{at + " of an empty one", func() { in.Set(field, in.NewField(field)); in.Mutable(field).List().AppendMutable() }},
	}
}

// sound fails if a state is inconsistent, or differs from the one restored from its snapshot. It returns the restored
// machine.
func sound(t tester, m *Machine, what string) *Machine {
	t.Helper()
	if err := m.State().Verify(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	var b bytes.Buffer
	if err := m.Freeze().WriteSnapshot(&b); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	written := bytes.Clone(b.Bytes())
	restored, err := Restore(&b)
	if err != nil {
		t.Fatalf("%s: accepted, and now: %v", what, err)
	}
	if err := restored.State().Verify(); err != nil {
		t.Fatalf("%s: restored: %v", what, err)
	}
	ledger, whole := m.State().Hash()
	if otherLedger, otherWhole := restored.State().Hash(); ledger != otherLedger || whole != otherWhole {
		t.Fatalf("%s: the restored state has another hash", what)
	}
	if !bytes.Equal(snapshotOf(t, restored.Freeze()), written) {
		t.Fatalf("%s: the restored state's snapshot differs", what)
	}
	restored.bounds = m.bounds
	return restored
}

// try applies an entry to a machine, and fails if that panics. It returns the result of the first command.
func try(t tester, m *Machine, entry *logpb.Entry, what string) (result *logpb.Result) {
	t.Helper()
	data, err := proto.Marshal(entry)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer func() {
		if stopped := recover(); stopped != nil {
			t.Fatalf("%s: stopped the machine: %v\n%.2000v", what, stopped, entry)
		}
	}()
	if results := m.Apply(m.index+1, 1, data).Results; len(results) > 0 {
		result = results[0]
	}
	return result
}

// next returns an entry at a time after the machine's present, of the version of its feature level.
func next(m *Machine, after int64, commands ...*logpb.Command) *logpb.Entry {
	return &logpb.Entry{
		Version: max(m.featureLevel, OldestEntryVersion), StampNs: fixed.AddSaturated(m.clock.Now, after),
		WallEarlyNs: fixed.AddSaturated(m.clock.WallEarly, after), WallLateNs: fixed.AddSaturated(m.clock.WallLate, after), Commands: commands,
	}
}

// afterwards lets time pass on a machine and on one restored from it: the remains of an entry must end alike in both.
func afterwards(t tester, m *Machine, what string) {
	t.Helper()
	twin := sound(t, m, what)
	for _, passed := range []int64{0, second, 20 * second, minute, hour + 3*second, day + second, 8 * day} {
		more := []*logpb.Command{reserve(ask("std-1", itemOf("rate", 1))), reserve(ask("low-1", itemOf("hour", 1)))}
		what := fmt.Sprintf("%s; %d s later", what, passed/second)
		try(t, m, next(m, passed, more...), what)
		try(t, twin, next(twin, passed, more...), what)
		if err := m.State().Verify(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		ledger, whole := m.State().Hash()
		if otherLedger, otherWhole := twin.State().Hash(); ledger != otherLedger || whole != otherWhole {
			t.Fatalf("%s: what was restored from it has gone another way", what)
		}
	}
	sound(t, m, what+"; at the end")
}

// livelySnapshot returns a snapshot of livelyAt.
func livelySnapshot(t tester, level uint32) []byte {
	w := livelyAt(t, level)
	c := w.m.State().Counts()
	if c.Leases < 5 || c.Waiting < 5 || c.Sessions < 3 || c.Operations < 3 || c.Tasks < 3 || w.m.records.detached.Len() == 0 ||
		w.m.quotas.overrides.Len() == 0 ||
		w.m.requests.Counts().Keys == 0 || w.m.quotas.cooldowns.Len() == 0 || w.m.holders.meters.Len() == 0 || w.m.holders.stats.Len() == 0 {
		t.Fatalf("the state is not lively: %+v; %d pages, %d overrides, %d keys, %d cooldowns, %d meters, %d tallies", c,
			w.m.records.detached.Len(),
			w.m.quotas.overrides.Len(), w.m.requests.Counts().Keys, w.m.quotas.cooldowns.Len(), w.m.holders.meters.Len(), w.m.holders.stats.Len())
	}
	return snapshotOf(t, w.m.Freeze())
}

// restoredFrom returns the machine of a snapshot, with bounds of work.
func restoredFrom(t tester, snapshot []byte, within bounds) *Machine {
	t.Helper()
	m, err := Restore(bytes.NewReader(snapshot))
	if err != nil {
		t.Fatal(err)
	}
	m.bounds = within
	return m
}

// quickPart is the number of parts of the values with -short. Each run takes one, by QUOTAD_SEED or at random, and logs
// which.
const quickPart = 8

// TestEveryField_OfEntriesKeepsTheStateSound tries each field of each command with all its values, one at a time, at
// the newest feature level; at earlier ones with some values, by QUOTAD_SEED. With -short it tries some at one level.
func TestEveryField_OfEntriesKeepsTheStateSound(t *testing.T) {
	seed := seedOf(t)
	part, drawn := int(seed%quickPart), levelOf(seed/quickPart)
	t.Logf("QUOTAD_SEED=%d (level %d, part %d of %d of the values)", seed, drawn, part, quickPart)
	for level := uint32(OldestEntryVersion); level <= EntryVersion; level++ {
		if !testing.Short() || level == drawn {
			everyField(t, level, part, testing.Short() || level != EntryVersion)
		}
	}
}

// everyField does so at one level, with all values or with a part of them.
func everyField(t *testing.T, level uint32, part int, partly bool) {
	snapshot := livelySnapshot(t, level)
	var accepted, tried int
	for _, kind := range kindsOf(&logpb.Command{}) {
		for variant := range 4 {
			t.Run(fmt.Sprintf("%d/%s/%d", level, kind, variant), func(t *testing.T) {
				build := func(m *Machine) *logpb.Entry {
					command := &logpb.Command{}
					fill(m, command.ProtoReflect(), kind, variant, variant%2 == 1)
					switch variant {
					case 2:
						command.Session, command.Seq, command.AckedBelow = 1, 40, 1
					case 3:
						command.IdempotencyKey = "k9"
					}
					return next(m, 100*millisecond, command)
				}
				within := [...]bounds{newBounds(), tight(1), tight(1), tight(2)}[variant]
				m := restoredFrom(t, snapshot, within)
				paths := changesOf(build(m).Commands[0].ProtoReflect(), string(kind))
				for i := range paths {
					if partly && (i%4 != variant || i/4%quickPart != part) {
						continue
					}
					if i%40 >= 36 && i%4 == variant { // a state with many changes is tested and replaced
						afterwards(t, m, paths[i].path)
						m = restoredFrom(t, snapshot, within)
					}
					entry := build(m)
					one := changesOf(entry.Commands[0].ProtoReflect(), string(kind))[i]
					one.apply()
					tried++
					if r := try(t, m, entry, one.path); r.GetFailure() == nil {
						accepted++
					}
					sound(t, m, one.path)
				}
				afterwards(t, m, "at the end")
			})
		}
	}
	t.Logf("level %d: %d of %d commands were accepted", level, accepted, tried)
	if accepted < tried/10 {
		t.Error("most commands are wrong: the test says little")
	}
}

// TestEveryField_OfAnEntrysTimeKeepsTheStateSound: the same with an entry's own fields.
func TestEveryField_OfAnEntrysTimeKeepsTheStateSound(t *testing.T) {
	seed := seedOf(t)
	t.Logf("QUOTAD_SEED=%d", seed)
	for i := range (&logpb.Entry{}).ProtoReflect().Descriptor().Fields().Len() {
		field := (&logpb.Entry{}).ProtoReflect().Descriptor().Fields().Get(i)
		if field.Kind() == protoreflect.MessageKind || field.Name() == "version" {
			continue
		}
		snapshot := livelySnapshot(t, levelOf(seed+uint64(i)))
		for i, value := range extremes(field) {
			m := restoredFrom(t, snapshot, [...]bounds{newBounds(), tight(1)}[i%2])
			entry := next(m, second, reserve(ask("std-1", itemOf("rate", 1))), beginsOn("t9", "rate"),
				keyedBy("k8", waits("std-2", 0, minute, itemOf("slots", 1))))
			entry.ProtoReflect().Set(field, valueOf(field, value))
			what := fmt.Sprintf("%s = %v", field.Name(), value)
			try(t, m, entry, what)
			sound(t, m, what)
			afterwards(t, m, what)
		}
	}
}

// picker decides, by a seed or by a fuzzer's input.
type picker interface{ pick(n int) int }

type seeded struct{ *rand.Rand }

func (s seeded) pick(n int) int { return s.IntN(n) }

// decided takes decisions from bytes; 0 when there are no more.
type decided struct{ data []byte }

func (d *decided) pick(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	v := int(d.data[0])
	if d.data = d.data[1:]; n > 256 && len(d.data) > 0 {
		v, d.data = v<<8|int(d.data[0]), d.data[1:]
	}
	return v % n
}

// play applies entries of commands with several changed fields.
func play(t tester, snapshot []byte, p picker, entries int) {
	t.Helper()
	m := restoredFrom(t, snapshot, [...]bounds{newBounds(), tight(1), tight(2)}[p.pick(3)])
	kinds := kindsOf(&logpb.Command{})
	for i := range entries {
		after := []int64{0, millisecond, second, 5 * second, minute, hour}[p.pick(6)]
		entry := next(m, after)
		var paths []string
		for range p.pick(3) + 1 {
			command := &logpb.Command{}
			fill(m, command.ProtoReflect(), kinds[p.pick(len(kinds))], p.pick(3), p.pick(2) == 0)
			for range p.pick(4) {
				changes := changesOf(command.ProtoReflect(), "")
				one := changes[p.pick(len(changes))]
				one.apply()
				paths = append(paths, one.path)
			}
			entry.Commands = append(entry.Commands, command)
		}
		what := fmt.Sprintf("entry %d: %v", i, paths)
		try(t, m, entry, what)
		if restored := sound(t, m, what); p.pick(2) == 0 {
			m = restored
		}
	}
	afterwards(t, m, "at the end")
}

// TestEveryField_InRandomEntries plays random entries. QUOTAD_SEED repeats one game; a failure names it.
func TestEveryField_InRandomEntries(t *testing.T) {
	games, seed := 60, seedOf(t)
	if testing.Short() {
		games = 4
	}
	if os.Getenv("QUOTAD_SEED") != "" {
		games = 1
	}
	for i := range games {
		of := seed + uint64(i)
		t.Run(fmt.Sprintf("QUOTAD_SEED=%d", of), func(t *testing.T) {
			play(t, livelySnapshot(t, levelOf(of)), seeded{rand.New(rand.NewPCG(of, 1))}, 40)
		})
	}
}

// FuzzEveryField is the fuzz target of the same.
func FuzzEveryField(f *testing.F) {
	var snapshots [testedLevels][]byte
	for i := range snapshots {
		snapshots[i] = livelySnapshot(f, levelOf(uint64(i)))
	}
	for seed := range uint64(5) {
		dice := rand.New(rand.NewPCG(seed, 2))
		data := make([]byte, 400)
		for i := range data {
			data[i] = byte(dice.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		play(t, snapshots[len(data)%testedLevels], &decided{data: data}, 1+len(data)/20)
	})
}
