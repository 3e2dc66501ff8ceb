package report

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/quotad/quotad/jepsen/check"
)

// ReadSummary reads the lines that Summarize added to a file.
func ReadSummary(path string) ([]*Line, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var lines []*Line
	for decoder := json.NewDecoder(file); ; {
		line := new(Line)
		if err := decoder.Decode(line); errors.Is(err, io.EOF) {
			return lines, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, len(lines)+1, err)
		}
		lines = append(lines, line)
	}
}

// sums are the totals of runs of one kind.
type sums struct {
	mix, how                       string
	runs, passed                   int
	seconds                        float64
	calls, entries, terms, expired int
	faults                         int
}

// Table writes runs, and the outages of their faults, as Markdown.
func Table(w io.Writer, lines []*Line) {
	of := map[string]*sums{}
	total := &sums{mix: "all", how: ""}
	outages := map[string][]float64{}
	for _, line := range lines {
		how := line.Network
		if line.Hosts != 3 {
			how += fmt.Sprintf(", %d nodes", line.Hosts)
		}
		key := line.Mix + how
		if of[key] == nil {
			of[key] = &sums{mix: line.Mix, how: how}
		}
		of[key].add(line)
		total.add(line)
		for kind, times := range line.Stats.Outages {
			outages[kind] = append(outages[kind], times...)
		}
	}
	rows := make([]*sums, 0, len(of))
	for _, s := range of {
		rows = append(rows, s)
	}
	slices.SortFunc(rows, func(a, b *sums) int { return cmp.Or(strings.Compare(a.mix, b.mix), strings.Compare(a.how, b.how)) })
	fmt.Fprintf(w, "| mix | links | runs | passed | minutes | calls | log entries | terms | leases expired | faults |\n")
	fmt.Fprintf(w, "| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: |\n")
	for _, s := range append(rows, total) {
		fmt.Fprintf(w, "| %s | %s | %d | %d | %.0f | %d | %d | %d | %d | %d |\n", s.mix, s.how, s.runs, s.passed, s.seconds/60, s.calls,
			s.entries, s.terms, s.expired, s.faults)
	}
	fmt.Fprintf(w, "\n| fault | times | without service: median | p99 | longest |\n| --- | --: | --: | --: | --: |\n")
	for _, row := range Outages(outages) {
		fmt.Fprintf(w, "| %s | %d | %.2f s | %.2f s | %.2f s |\n", row.Kind, row.Times, row.Median, row.P99, row.Longest)
	}
}

func (s *sums) add(line *Line) {
	s.runs++
	if line.Outcome == check.Pass {
		s.passed++
	}
	s.seconds += line.Seconds
	s.calls += line.Stats.Calls
	s.entries += line.Stats.Entries
	s.terms += line.Stats.Terms
	s.expired += line.Stats.Expired
	for _, times := range line.Stats.Faults {
		s.faults += times
	}
}
