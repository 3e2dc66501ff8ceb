package sim

import (
	"testing"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
)

// BenchmarkDay runs one day of a hundred agents, on each side.
func BenchmarkDay(b *testing.B) {
	f, err := fleet.Read("testdata/week.yaml")
	if err != nil {
		b.Fatal(err)
	}
	f.For = 24 * time.Hour
	for _, side := range []Side{Alone, Governed} {
		b.Run(string(side), func(b *testing.B) {
			for b.Loop() {
				r, err := Run(b.Context(), f, side, 1)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(r.Attempts), "calls/op")
			}
		})
	}
}
