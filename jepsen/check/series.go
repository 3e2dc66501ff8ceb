package check

import (
	"slices"
	"sort"
)

// Series are the curves of a run in the report, second by second from its beginning.
type Series struct {
	// Answered, Unknown and Refused count calls by the second in which they returned.
	Answered []int `json:"answered"`
	Unknown  []int `json:"unknown"`
	// P50 and P99 are latencies of answered calls without a wait, in milliseconds.
	P50 []float64 `json:"p50"`
	P99 []float64 `json:"p99"`
	// Leaders are the leaders, each with its first second.
	Leaders []Leadership `json:"leaders"`
}

// Leadership is the beginning of a term, as the first answer shows it.
type Leadership struct {
	Term   uint64  `json:"term"`
	Node   string  `json:"node"`
	Second float64 `json:"second"`
}

// series sorts calls into seconds.
func (r *run) series() Series {
	seconds := int((r.facts.Ended-r.facts.Began)/1e9) + 1
	s := Series{
		Answered: make([]int, seconds), Unknown: make([]int, seconds), P50: make([]float64, seconds), P99: make([]float64, seconds),
	}
	took := make([][]float64, seconds)
	first := map[uint64]Leadership{}
	for _, c := range r.calls {
		at := int((c.Returned - r.facts.Began) / 1e9)
		if at < 0 || at >= seconds {
			continue
		}
		switch {
		case c.Error == nil:
			s.Answered[at]++
			if c.Procedure != "Reserve" {
				took[at] = append(took[at], float64(c.Returned-c.Sent)/1e6)
			}
		case c.Error.Reason == 0:
			s.Unknown[at]++
		}
		for i := range c.parts {
			if meta := c.parts[i].meta; meta != nil && meta.Term != 0 {
				second := float64(c.Returned-r.facts.Began) / 1e9
				if known, ok := first[meta.Term]; !ok || second < known.Second {
					first[meta.Term] = Leadership{Term: meta.Term, Node: meta.Node, Second: max(second, 0)}
				}
			}
		}
	}
	for i, all := range took {
		slices.Sort(all)
		if len(all) > 0 {
			s.P50[i], s.P99[i] = all[len(all)/2], all[len(all)*99/100]
		}
	}
	for _, leadership := range first {
		s.Leaders = append(s.Leaders, leadership)
	}
	sort.Slice(s.Leaders, func(i, j int) bool { return s.Leaders[i].Term < s.Leaders[j].Term })
	return s
}
