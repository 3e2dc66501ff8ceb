package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1)*time.Millisecond)
	}
	for _, c := range []struct {
		of   []time.Duration
		q    float64
		want time.Duration
	}{
		{hundred, 0.5, 50 * time.Millisecond},
		{hundred, 0.99, 99 * time.Millisecond},
		{hundred, 1, 100 * time.Millisecond},
		{hundred[:1], 0.99, time.Millisecond},
		{hundred[:3], 0.5, 2 * time.Millisecond},
	} {
		if got := quantile(c.of, c.q); got != c.want {
			t.Errorf("quantile %v of %d values: %s, want %s", c.q, len(c.of), got, c.want)
		}
	}
}

func TestTabulateFailover_ComparesWithTheFirstBuild(t *testing.T) {
	var out bytes.Buffer
	took := [][]time.Duration{{2 * time.Second, time.Second}, {3 * time.Second, time.Second}}
	if err := tabulateFailover(&out, []string{"old", "new"}, took); err != nil {
		t.Fatal(err)
	}
	if rows := strings.Split(strings.TrimSpace(out.String()), "\n"); len(rows) != 3 || !strings.HasSuffix(rows[2], "1.50") {
		t.Errorf("table:\n%s", &out)
	}
}
