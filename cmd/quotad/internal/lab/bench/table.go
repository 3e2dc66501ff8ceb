package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Table prints medians for people.
func (r *Results) Table(out io.Writer) error {
	rows := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(rows, "SYSTEM\tWORK\tDECISIONS/S\tP50\tP99\tP99.9\tCPU S/M\tBYTES\tSYNCS")
	for _, system := range r.Systems {
		for _, work := range r.Works() {
			for _, offered := range r.offered(system.Name, work) {
				s, found := r.Summarize(system.Name, work, offered)
				if !found {
					continue
				}
				name := work
				switch {
				case offered == OwnHalf:
					name += ", open at half of that"
				case offered > 0:
					name += fmt.Sprintf(", open at %.0f/s", offered)
				}
				_, _ = fmt.Fprintf(rows, "%s\t%s\t%.0f\t%s\t%s\t%s\t%.1f\t%.0f\t%s\n", system.Name, name, s.PerSecond,
					Brief(s.P50), Brief(s.P99), Brief(s.P999), s.CPU, s.Bytes, Syncs(s.Syncs))
			}
		}
	}
	return rows.Flush()
}

// offered returns the loops of a work: closed (0), open at given rates, open at half.
func (r *Results) offered(system, work string) []float64 {
	rates := []float64{0}
	for _, run := range r.Runs {
		if run.System == system && run.Work == work && run.Offered > 0 && run.Round == 1 && !run.Half {
			rates = append(rates, run.Offered)
		}
	}
	return append(rates, OwnHalf)
}

// Brief formats a latency with about three digits.
func Brief(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	default:
		return d.Round(10 * time.Millisecond).String()
	}
}

// Syncs formats the number of syncs per decision; below 0: not counted.
func Syncs(each float64) string {
	if each < 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f", each)
}
