// Package quotafile reads and writes quotas.yaml: the file in which an operator says what providers promise. It knows
// the file's grammar and what can be judged from the file alone (kinds, ranges, names that stand twice, cycles);
// whether a quota can work beside those that the cluster already has, the cluster decides.
//
// Absent and 0 differ: a limit of 0 suspends a quota, a limit that is not there is an error.
package quotafile

import (
	"os"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/rpc/quotav1"
)

// MaxAmount is the largest limit or amount: what every JSON reader can hold exactly.
const MaxAmount = 1<<53 - 1

// MaxQuotas is how many quotas one file may state, MaxWorkflows how many workflows.
const (
	MaxQuotas    = 4096
	MaxWorkflows = 1000
)

// Bounds that several keys share.
const (
	maxPeriod    = 31 * 24 * time.Hour
	maxName      = 200
	maxHolder    = 128
	maxNote      = 500
	maxWeight    = 1000
	maxSteps     = 64
	millionths   = 1_000_000
	shortestTime = time.Millisecond
)

// File is the content of a quotas.yaml.
type File struct {
	// Quotas are in the file's order.
	Quotas []*quotav1.Quota
	// Holders are the holder rules in their order; the first that matches counts.
	Holders []*quotav1.HolderRule
	// HasHolders tells a file with an empty list of rules (which removes all rules) from one without (which leaves
	// them alone).
	HasHolders bool
	// Workflows are the workflows; HasWorkflows tells an empty list of them (which removes all) from none.
	Workflows    []*quotav1.Workflow
	HasWorkflows bool
}

// Request is the file as a request to apply it.
func (f *File) Request() *quotav1.ApplyQuotasRequest {
	return &quotav1.ApplyQuotasRequest{
		Quotas: f.Quotas, Holders: f.Holders, ReplaceHolders: f.HasHolders, Workflows: f.Workflows, ReplaceWorkflows: f.HasWorkflows,
	}
}

// Read reads and parses the file at path. A file with mistakes gives strictyaml.Problems.
func Read(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse parses data; name is how problems call the file. Problems come as strictyaml.Problems, all at once.
func Parse(name string, data []byte) (*File, error) {
	doc, err := strictyaml.Parse(name, data)
	if err != nil {
		return nil, err
	}
	p := &parser{doc: doc, lines: map[string]int{}}
	file := p.file()
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return file, nil
}

// Workflows reads a list of workflows that stands in another file. Problems are noted in its document.
func Workflows(doc *strictyaml.Document, list *yaml.Node) []*quotav1.Workflow {
	return (&parser{doc: doc, lines: map[string]int{}}).workflows(list)
}

// Quotas reads a list of quotas that stands in another file. Problems are noted in its document.
func Quotas(doc *strictyaml.Document, list *yaml.Node) []*quotav1.Quota {
	return (&parser{doc: doc, lines: map[string]int{}}).quotas(list)
}
