package fsm

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestSince_EveryFieldIsOfAVersion: an entry of a version has as many fields as were recorded for it, so a new field
// must state the version that introduces it.
func TestSince_EveryFieldIsOfAVersion(t *testing.T) {
	fields := map[protoreflect.FullName]uint32{}
	var add func(of protoreflect.MessageDescriptor)
	add = func(of protoreflect.MessageDescriptor) {
		for i := range of.Fields().Len() {
			field := of.Fields().Get(i)
			if _, seen := fields[field.FullName()]; seen {
				continue
			}
			fields[field.FullName()] = entry.SinceOf(field)
			if since := entry.SinceOf(field); since > levels.Newest {
				t.Errorf("%s is known since %d, and the newest level is %d: leaders propose it before all members know it",
					field.FullName(), since, levels.Newest)
			}
			switch {
			case field.Kind() == protoreflect.MessageKind:
				add(field.Message())
			case field.Kind() == protoreflect.EnumKind: // enum values state no version, so a new one needs a rule for that first
				for k := range field.Enum().Values().Len() {
					fields[field.Enum().Values().Get(k).FullName()] = 0
				}
			}
		}
	}
	add((*logpb.Entry)(nil).ProtoReflect().Descriptor())
	for _, row := range applied(t) {
		known := 0
		for _, since := range fields {
			if since <= uint32(row.entries) {
				known++
			}
		}
		if known != row.fields {
			t.Errorf("entries of version %d have %d fields and values of enums, and had %d: what a version adds is (since) it in log.proto",
				row.entries, known, row.fields)
		}
	}
}

// TestVersionOf_IsLowestThatKnowsFields: the lowest version that knows the fields set, at any depth.
func TestVersionOf_IsLowestThatKnowsFields(t *testing.T) {
	pinned := ask("x", itemOf("q", 1))
	pinned.Member = "a"
	for name, c := range map[string]struct {
		commands []*logpb.Command
		want     uint32
	}{
		"none":            {nil, OldestEntryVersion},
		"plain":           {[]*logpb.Command{reserve(ask("x", itemOf("q", 1))), opens()}, OldestEntryVersion},
		"a member":        {[]*logpb.Command{opens(), reserve(pinned)}, 7},
		"a pool":          {[]*logpb.Command{applyQuotas(slotsOf("m", 1), poolOf("p", "m"))}, 7},
		"a read answer":   {[]*logpb.Command{report(&logpb.Report{Lease: 1, AnswerDigest: 1})}, 8},
		"an empty answer": {[]*logpb.Command{report(&logpb.Report{Lease: 1})}, OldestEntryVersion},
	} {
		if got := entry.VersionOf(c.commands); got != c.want {
			t.Errorf("%s: version %d, not %d", name, got, c.want)
		}
	}
}
