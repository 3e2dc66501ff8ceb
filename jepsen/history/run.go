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

// Agents is the file of what a worker's agents asked of a model.
func (d Dir) Agents(worker string) string { return d.in("agents-" + worker + ".jsonl") }

// Seen is the file of a watcher.
func (d Dir) Seen(worker string) string { return d.in("seen-" + worker + ".jsonl") }

// Faults is the file of what was broken.
func (d Dir) Faults() string { return d.in("faults.jsonl") }

// Record is the folder into which a node writes what it applies; each life of the process makes a file of its own.
func (d Dir) Record(node string) string { return d.in("applied", node) }

// Log is the file that takes a node's or a worker's messages.
func (d Dir) Log(process string) string { return d.in("logs", process+".log") }

// Facts is the file of what the run was.
func (d Dir) Facts() string { return d.in("facts.json") }

func (d Dir) in(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// Facts are what a run was, for those who judge it.
type Facts struct {
	// Seed and Mix make the plan of faults and the workload again.
	Seed uint64 `json:"seed"`
	Mix  string `json:"mix"`
	// Nodes are the ids of the nodes, whatever became of them.
	Nodes []string `json:"nodes"`
	// Faults are the faults that could be drawn, Demanded those of them that were asked for by name in a run long enough to have had each.
	Faults   []string `json:"faults,omitempty"`
	Demanded []string `json:"demanded,omitempty"`
	// Network says how links were broken, Disk how disks were.
	Network string `json:"network"`
	Disk    string `json:"disk"`
	// Version is the binary's; Defect the planted defect that it was built with, if any.
	Version string `json:"version"`
	Defect  string `json:"defect,omitempty"`
	// Began, Healed and Ended bound the run: faults happen before Healed.
	Began  int64 `json:"began"`
	Healed int64 `json:"healed"`
	Ended  int64 `json:"ended"`
	// Start is the wall clock's time at Began, for people.
	Start time.Time `json:"start"`
	// Unhealed says what could not be mended at Healed; empty: all was.
	Unhealed string `json:"unhealed,omitempty"`
	// Final is how each node looked at the end, Fresh what each used before the workload began.
	Final []Final `json:"final"`
	Fresh []Usage `json:"fresh"`
	// Busy is how much of the machine's processors was in use while things were broken, by whatever ran on it, from 0 to 1.
	Busy float64 `json:"busy"`
	// Exits are the ends of nodes and gateways that nobody asked for.
	Exits []Exit `json:"exits,omitempty"`
	// Held is what the quotas of gateways still held when these had ended and their leases had expired; nil: there was no gateway.
	Held map[string]int64 `json:"held,omitempty"`
	// Installed is how many snapshots nodes took from a leader.
	Installed int `json:"installed"`
}

// Exit is the end of a node's process that nobody asked for.
type Exit struct {
	Node string `json:"node"`
	At   int64  `json:"at"`
	// How is the exit code or the signal.
	How string `json:"how"`
}

// Final is how a node looked at the end.
type Final struct {
	Node string `json:"node"`
	// Index, Ledger and Whole are its state's; empty where it did not answer.
	Index  uint64 `json:"index"`
	Ledger string `json:"ledger"`
	Whole  string `json:"whole"`
	// Error says why it did not answer.
	Error string `json:"error,omitempty"`
	// Usage is what its process used when the workload had ended.
	Usage Usage `json:"usage"`
}

// Usage is what a node's process uses, by its own metrics.
type Usage struct {
	Node        string  `json:"node"`
	Goroutines  float64 `json:"goroutines"`
	Descriptors float64 `json:"descriptors"`
	// Heap is what is in use and what is not collected yet, in bytes.
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

// ReadFacts reads them.
func (d Dir) ReadFacts() (*Facts, error) {
	data, err := os.ReadFile(d.Facts())
	if err != nil {
		return nil, err
	}
	facts := new(Facts)
	return facts, json.Unmarshal(data, facts)
}
