package main

import (
	"bytes"
	"fmt"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
)

// The rates of an agent's calls and the lengths of its batches in the scaling table.
var (
	callsPerSecond = []float64{0.1, 1, 10}
	batchLengths   = []float64{1, 10, 100}
)

// writeScaling writes how many agents one cluster can serve at half of its maximum rate: above that, calls queue.
func writeScaling(out *bytes.Buffer, r *bench.Results) {
	single, found := r.Summarize("quotad", bench.Spread256, 0)
	if !found {
		return
	}
	room := single.PerSecond / 2
	fmt.Fprintf(out,
		"At half of the %s decisions a second that 256 callers on 1,000 quotas reached (callers, three nodes and their disk share %d\n"+
			"cores), one cluster has room for so many agents:\n\n", rounded(single.PerSecond), r.Machine.Cores)
	header := []string{"calls a second of each"}
	for _, length := range batchLengths {
		if length == 1 {
			header = append(header, "each call asks")
			continue
		}
		header = append(header, fmt.Sprintf("batches of %.0f", length))
	}
	var rows [][]string
	for _, calls := range callsPerSecond {
		row := []string{fmt.Sprintf("%g", calls)}
		for _, length := range batchLengths {
			row = append(row, rounded(room*length/calls))
		}
		rows = append(rows, row)
	}
	table(out, header, rows)
	leased, measured := r.Summarize("quotad", bench.Agents64, bench.AgentRate)
	asking, compared := r.Summarize("quotad", bench.Spread64, bench.SpreadRate)
	if !measured || !compared {
		return
	}
	fmt.Fprintf(out,
		"What leasing saves, measured: 64 agents that take %s a second from batches of their own, sized by demand, cost %.3g s of\n"+
			"processor time of all nodes for a million takes, and %s syncs for each take; as many callers that ask for each of %s\n"+
			"decisions a second cost %s s and %s (%.0f and %.0f times as much).\n\n",
		rounded(leased.PerSecond), leased.CPU, bench.Syncs(leased.Syncs), rounded(asking.PerSecond), rounded(asking.CPU),
		bench.Syncs(asking.Syncs),
		asking.CPU/leased.CPU, asking.Syncs/leased.Syncs)
}
