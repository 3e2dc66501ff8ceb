package raftnode

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/effect"
)

// TestPacked_EventsRoundTrip: unpacked events equal the packed ones in every field except the final result, whichever fields are zero.
func TestPacked_EventsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		given := make([]effect.Event, rapid.IntRange(0, 5).Draw(t, "count"))
		var p packed
		for i := range given {
			fields := reflect.ValueOf(&given[i]).Elem()
			for n := range fields.NumField() {
				field, name := fields.Field(n), fields.Type().Field(n).Name
				if name == "Result" || name != "Kind" && rapid.Bool().Draw(t, "zero") {
					continue
				}
				switch field.Kind() {
				case reflect.String:
					field.SetString(strings.Repeat(rapid.String().Draw(t, name), rapid.SampledFrom([]int{1, 200}).Draw(t, "times")))
				case reflect.Int32:
					field.SetInt(int64(rapid.Int32().Draw(t, name)))
				case reflect.Int64:
					field.SetInt(rapid.Int64().Draw(t, name))
				case reflect.Uint64:
					field.SetUint(rapid.Uint64().Draw(t, name))
				default:
					t.Fatalf("%s is of a kind that nobody packs", name)
				}
			}
			p = p.add(&given[i])
		}
		if got := p.unpack(len(given)); !slices.Equal(got, given) {
			t.Fatalf("got  %+v\nwant %+v", got, given)
		}
	})
}

// BenchmarkPackedEvents is the cost of an event: packed once on every node, unpacked for each watcher, in entries of 2,000.
func BenchmarkPackedEvents(b *testing.B) {
	const count = 2000
	event := effect.Event{
		Kind: effect.EventGranted, Quota: "openai/gpt-5/tokens", Holder: "agent-12", Lease: 1 << 20, Fence: 1<<48 + 1<<20,
		Amount: 700,
	}
	var p packed
	pack := func() {
		p = p[:0]
		for range count {
			p = p.add(&event)
		}
	}
	b.Run("pack", func(b *testing.B) {
		for n := 0; n < b.N; n += count {
			pack()
		}
		b.ReportMetric(float64(len(p))/count, "bytes")
	})
	pack()
	b.Run("unpack", func(b *testing.B) {
		for n := 0; n < b.N; n += count {
			p.unpack(count)
		}
	})
}
