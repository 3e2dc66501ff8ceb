package client

import (
	"net/http"
	"testing"

	"golang.org/x/time/rate"
)

// atHand returns a limiter whose batch lasts for the whole benchmark.
func atHand() *Limiter {
	c, err := New([]string{"127.0.0.1:1"}, WithHTTPClient(http.DefaultClient)) // nothing is sent
	if err != nil {
		panic(err)
	}
	l := c.Limiter("t/core")
	l.current = &batch{generation: 1, size: mostUnits, until: 1 << 62}
	l.fill(1, mostUnits, 1<<62)
	return l
}

func BenchmarkAllow(b *testing.B) {
	b.Run("quotad", func(b *testing.B) {
		l := atHand()
		b.ReportAllocs()
		for b.Loop() {
			if !l.Allow() {
				b.Fatal("refused")
			}
		}
	})
	b.Run("x-time-rate", func(b *testing.B) {
		l := rate.NewLimiter(1e9, 1e9)
		b.ReportAllocs()
		for b.Loop() {
			l.Allow()
		}
	})
	b.Run("quotad-two-goroutines", func(b *testing.B) {
		l := atHand()
		b.ReportAllocs()
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				if !l.Allow() {
					b.Error("refused")
				}
			}
		})
	})
	b.Run("x-time-rate-two-goroutines", func(b *testing.B) {
		l := rate.NewLimiter(1e9, 1e9)
		b.ReportAllocs()
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				l.Allow()
			}
		})
	})
}

func TestAllow_DoesNotAllocate(t *testing.T) {
	l := atHand()
	if got := testing.AllocsPerRun(1_000, func() { l.Allow() }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
