// Package quotafile reads and writes quotas.yaml: the file in which an operator states the providers' limits. It knows the
// file's grammar and checks what the file alone can show (kinds, ranges, duplicate names, cycles). The cluster decides
// whether a quota fits its existing ones.
//
// Absent and 0 differ: a limit of 0 suspends a quota, and a missing limit is an error.
package quotafile

import (
	"os"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/rpc/quotav1"
)

// MaxAmount is the largest limit or amount: every JSON reader can represent it exactly.
const MaxAmount = 1<<53 - 1

// MaxQuotas and MaxWorkflows are the maximum numbers of quotas and workflows in one file.
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
	// Holders are the holder rules in their order; the first match counts.
	Holders []*quotav1.HolderRule
	// HasHolders distinguishes a file with an empty list of rules, which removes all rules, from one without a list, which
	// leaves them unchanged.
	HasHolders bool
	// Workflows are the workflows; HasWorkflows distinguishes an empty list, which removes all workflows, from a missing
	// one.
	Workflows    []*quotav1.Workflow
	HasWorkflows bool
}

// Request returns the request that applies the file.
func (f *File) Request() *quotav1.ApplyQuotasRequest {
	return &quotav1.ApplyQuotasRequest{
		Quotas: f.Quotas, Holders: f.Holders, ReplaceHolders: f.HasHolders, Workflows: f.Workflows, ReplaceWorkflows: f.HasWorkflows,
	}
}

// Read reads and parses the file at path. If the file has mistakes, the error is strictyaml.Problems.
func Read(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse parses data; name is the file's name in problems. It returns all problems at once, as strictyaml.Problems.
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

// Workflows reads a list of workflows in another file, and reports problems to its document.
func Workflows(doc *strictyaml.Document, list *yaml.Node) []*quotav1.Workflow {
	return (&parser{doc: doc, lines: map[string]int{}}).workflows(list)
}

// Quotas reads a list of quotas in another file, and reports problems to its document.
func Quotas(doc *strictyaml.Document, list *yaml.Node) []*quotav1.Quota {
	return (&parser{doc: doc, lines: map[string]int{}}).quotas(list)
}
