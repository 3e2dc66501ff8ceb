package entry

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// decodesAlike checks that a decoder has the same result as proto.Unmarshal, except that it refuses unknown fields.
func decodesAlike(t tester, d *Decoder, data []byte) {
	t.Helper()
	want := new(logpb.Entry)
	wrong := proto.Unmarshal(data, want)
	if wrong == nil {
		wrong = KnownEntry.Check(data)
	}
	got, err := decodeAll(d, data)
	if (err != nil) != (wrong != nil) {
		t.Fatalf("%x: %v, protobuf says %v", data, err, wrong)
	}
	if err == nil && !proto.Equal(got, want) {
		t.Fatalf("%x\n%v\nprotobuf has\n%v", data, got, want)
	}
}

// decodeAll decodes an entry with all its commands, each of which the next one overwrites.
func decodeAll(d *Decoder, data []byte) (*logpb.Entry, error) {
	if err := d.Decode(data); err != nil {
		return nil, err
	}
	all := proto.CloneOf(&d.Entry)
	all.Commands = nil
	for i := range d.Commands() {
		d.forget()
		command, _, err := d.Command(i)
		if err != nil {
			return nil, err
		}
		all.Commands = append(all.Commands, proto.CloneOf(command))
	}
	return all, nil
}

// digestsAlike checks that a command has the same digest from the entry's bytes and from a new encoding.
func digestsAlike(t tester, d *Decoder, data []byte) {
	t.Helper()
	if d.Decode(data) != nil {
		return
	}
	for i := range d.Commands() {
		command, raw, err := d.Command(i)
		if err != nil {
			return // not UTF-8
		}
		if got, want := new(Digester).Command(command, raw), new(Digester).Command(command, nil); got != want {
			t.Fatalf("%v: %x, encoded again %x", command, got, want)
		}
	}
}

// forget spoils the decoded command, as the next one does.
func (d *Decoder) forget() {
	p := &d.plain
	p.command.Caller = "forgotten"
	p.command.By, p.reserve.Holder, p.reserve.Items, p.class = "forgotten", "forgotten", nil, 99
	for i := range p.items {
		p.items[i].Quota, p.amounts[i], p.list[i] = "forgotten", -1, nil
	}
}

// randomEntry draws an entry of commands that are plain Reserves, or nearly so.
func randomEntry(t *rapid.T) *logpb.Entry {
	some := func(name string) bool { return rapid.IntRange(0, 3).Draw(t, name) == 0 }
	name := rapid.SampledFrom([]string{"", "a", "b", "github/core", "ünïcode", "a name that is longer than most"})
	number := rapid.OneOf(rapid.Int64Range(-1, 300), rapid.Int64())
	entry := &logpb.Entry{Version: 1, StampNs: number.Draw(t, "stamp"), WallEarlyNs: number.Draw(t, "early")}
	for range rapid.IntRange(0, 4).Draw(t, "commands") {
		req := &logpb.Reserve{Holder: name.Draw(t, "holder"), TtlNs: number.Draw(t, "ttl"), Consume: some("consume")}
		for range rapid.IntRange(0, PlainItems+1).Draw(t, "items") {
			item := &logpb.Item{Quota: name.Draw(t, "quota")}
			if !some("estimate") {
				item.Amount = new(number.Draw(t, "amount"))
			}
			req.Items = append(req.Items, item)
		}
		if some("class") {
			req.Class = new(rapid.Int32().Draw(t, "class"))
		}
		command := reserve(req)
		switch rapid.IntRange(0, 9).Draw(t, "how") {
		case 0:
			req.WaitNs = number.Draw(t, "wait")
		case 1:
			req.Resume, req.Fallback, req.Emergency = some("resume"), some("fallback"), some("emergency")
		case 2:
			command.IdempotencyKey = name.Draw(t, "key")
		case 3:
			command = renew(&logpb.Renew{Lease: 1, Fence: 1})
		case 4:
			command = &logpb.Command{}
		}
		command.Session, command.Seq, command.By = uint64(number.Draw(t, "session")), uint64(number.Draw(t, "seq")), name.Draw(t, "by")
		command.Caller, command.Operator, command.PerHolder = name.Draw(t, "caller"), some("operator"), some("per holder")
		entry.Commands = append(entry.Commands, command)
	}
	return entry
}

// TestDecode_MatchesProtobuf decodes random entries one after the other, some of them damaged.
func TestDecode_MatchesProtobuf(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := &Decoder{Names: new(Names)}
		for range rapid.IntRange(1, 5).Draw(rt, "entries") {
			data, err := proto.Marshal(randomEntry(rt))
			if err != nil {
				rt.Fatal(err)
			}
			digestsAlike(rt, d, data)
			if len(data) > 0 && rapid.Bool().Draw(rt, "damaged") {
				data[rapid.IntRange(0, len(data)-1).Draw(rt, "at")] = rapid.Byte().Draw(rt, "byte")
			}
			decodesAlike(rt, d, data)
		}
	})
}

// FuzzDecode: any bytes, whatever was decoded before.
func FuzzDecode(f *testing.F) {
	encode := func(commands ...*logpb.Command) []byte {
		data, err := proto.Marshal(&logpb.Entry{Version: 1, StampNs: 5, WallEarlyNs: 7, WallLateNs: 9, Commands: commands})
		if err != nil {
			f.Fatal(err)
		}
		return data
	}
	plain := ask("a", itemOf("x", 1), &logpb.Item{Quota: "y"})
	plain.Class, plain.TtlNs, plain.Consume = new(int32(2)), fixed.Second, true
	waits := ask("a", itemOf("x", 1))
	waits.WaitNs = fixed.Second
	f.Add(encode(reserve(plain)), encode(reserve(ask("b"))))
	f.Add(encode(reserve(waits), reserve(plain)), encode())
	f.Add(encode(&logpb.Command{Session: 1, Seq: 2, AckedBelow: 1, By: "a*", Kind: reserve(plain).Kind}),
		encode(renew(&logpb.Renew{Lease: 1})))
	twice, err := proto.Marshal(reserve(plain))
	if err != nil {
		f.Fatal(err)
	}
	twice = append(twice, twice...) // the second one is merged into the first
	f.Add(protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), twice), []byte{0x0a, 0x02, 0xff, 0xfe})
	f.Fuzz(func(t *testing.T, first, next []byte) {
		d := &Decoder{Names: new(Names)}
		decodesAlike(t, d, first)
		decodesAlike(t, d, next)
		decodesAlike(t, d, first)
	})
}

// TestDecode_PlainReservesAllocateNothing: decoding plain Reserves with known names does not allocate.
func TestDecode_PlainReservesAllocateNothing(t *testing.T) {
	plain := ask("a", itemOf("x", 1))
	plain.Consume, plain.TtlNs, plain.Class = true, fixed.Second, new(int32(1))
	data, err := proto.Marshal(&logpb.Entry{Version: 1, StampNs: 5, Commands: []*logpb.Command{reserve(plain), reserve(plain)}})
	if err != nil {
		t.Fatal(err)
	}
	d := &Decoder{Names: new(Names)}
	decodesAlike(t, d, data)
	if objects := testing.AllocsPerRun(100, func() {
		if d.Decode(data) != nil || d.Commands() != 2 {
			t.Fatal("not decoded")
		}
		for i := range 2 {
			if _, raw, err := d.Command(i); raw == nil || err != nil {
				t.Fatal("not plain", err)
			}
		}
	}); objects > 0 {
		t.Errorf("%v objects an entry", objects)
	}
}
