package history

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// Dir is the folder of one run.
type Dir string

// Calls is the file of a worker's calls.
func (d Dir) Calls(worker string) string { return d.in("calls-" + worker + ".jsonl") }

// Spends is the provider's file.
func (d Dir) Spends() string { return d.in("spends.jsonl") }

// Agents is the file of the model requests of a worker's agents.
func (d Dir) Agents(worker string) string { return d.in("agents-" + worker + ".jsonl") }

// Seen is the file of a watcher.
func (d Dir) Seen(worker string) string { return d.in("seen-" + worker + ".jsonl") }

// Faults is the file of the faults.
func (d Dir) Faults() string { return d.in("faults.jsonl") }

// Record is the folder of the entries that a node applies; each life of the process writes a file of its own.
func (d Dir) Record(node string) string { return d.in("applied", node) }

// Log is the file of a node's or a worker's messages.
func (d Dir) Log(process string) string { return d.in("logs", process+".log") }

// Facts is the file of the run's facts.
func (d Dir) Facts() string { return d.in("facts.json") }

func (d Dir) in(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// Facts describe a run, for its judges.
type Facts struct {
	// Seed and Mix reproduce the plan of faults and the workload.
	Seed uint64 `json:"seed"`
	Mix  string `json:"mix"`
	// Nodes are the IDs of all nodes, including former ones.
	Nodes []string `json:"nodes"`
	// Faults are the faults that could be drawn, Demanded those of them that the caller named, in a run long enough for each.
	Faults   []string `json:"faults,omitempty"`
	Demanded []string `json:"demanded,omitempty"`
	// Network says how links were broken, Disk how disks were.
	Network string `json:"network"`
	Disk    string `json:"disk"`
	// Version is the binary's; Defect is the planted defect in it, if any.
	Version string `json:"version"`
	Defect  string `json:"defect,omitempty"`
	// Began, Healed and Ended bound the run: faults happen before Healed.
	Began  int64 `json:"began"`
	Healed int64 `json:"healed"`
	Ended  int64 `json:"ended"`
	// Start is the wall clock's time at Began, for people.
	Start time.Time `json:"start"`
	// Unhealed says what could not be healed at Healed; empty: all was.
	Unhealed string `json:"unhealed,omitempty"`
	// Final is the state of each node at the end, Fresh the usage of each before the workload.
	Final []Final `json:"final"`
	Fresh []Usage `json:"fresh"`
	// Busy is the used part of the machine's processors during the faults, by all processes, from 0 to 1.
	Busy float64 `json:"busy"`
	// Exits are the unexpected ends of nodes and gateways.
	Exits []Exit `json:"exits,omitempty"`
	// Held is what the quotas of gateways still held after these had ended and their leases had expired; nil: there was no gateway.
	Held map[string]int64 `json:"held,omitempty"`
	// Installed is the number of snapshots that nodes installed from a leader.
	Installed int `json:"installed"`
}

// Exit is the unexpected end of a node's process.
type Exit struct {
	Node string `json:"node"`
	At   int64  `json:"at"`
	// How is the exit code or the signal.
	How string `json:"how"`
}

// Final is the state of a node at the end.
type Final struct {
	Node string `json:"node"`
	// Index, Ledger and Whole are those of its state; empty if it did not answer.
	Index  uint64 `json:"index"`
	Ledger string `json:"ledger"`
	Whole  string `json:"whole"`
	// Error says why it did not answer.
	Error string `json:"error,omitempty"`
	// Usage is the usage of its process after the workload.
	Usage Usage `json:"usage"`
}

// Usage is what a node's process uses, by its own metrics.
type Usage struct {
	Node        string  `json:"node"`
	Goroutines  float64 `json:"goroutines"`
	Descriptors float64 `json:"descriptors"`
	// Heap is live and uncollected memory, in bytes.
	Heap float64 `json:"heap"`
}

// WriteFacts writes the facts of a run.
func (d Dir) WriteFacts(facts *Facts) error {
	data, err := json.MarshalIndent(facts, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(d.Facts(), append(data, '\n'), 0o600)
}

// ReadFacts reads the facts of a run.
func (d Dir) ReadFacts() (*Facts, error) {
	data, err := os.ReadFile(d.Facts())
	if err != nil {
		return nil, err
	}
	facts := new(Facts)
	return facts, json.Unmarshal(data, facts)
}
