package providertest

import (
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"time"
)

// Verdict says what became of a request.
type Verdict string

// The verdicts.
const (
	// Admitted requests were served.
	Admitted Verdict = "admitted"
	// LimitPrimary is GitHub's limit per window.
	LimitPrimary Verdict = "primary"
	// LimitConcurrent is GitHub's limit of requests at once.
	LimitConcurrent Verdict = "concurrent"
	// LimitPoints is GitHub's limit of points per minute.
	LimitPoints Verdict = "points"
	// LimitContent is GitHub's limit of content created per minute or hour.
	LimitContent Verdict = "content"
	// LimitPenalty is a refusal while an earlier secondary limit is still in force.
	LimitPenalty Verdict = "penalty"
	// LimitRequests is OpenAI's limit of requests per period.
	LimitRequests Verdict = "requests"
	// LimitTokens is OpenAI's limit of tokens per period.
	LimitTokens Verdict = "tokens"
	// Rejected requests were wrong: no key, a bad body, an unknown path.
	Rejected Verdict = "rejected"
	// Injected is a fault that was asked for by Inject.
	Injected Verdict = "injected"
)

// Limited reports whether a limit refused the request. Injected faults are not limits.
func (v Verdict) Limited() bool {
	switch v {
	case Admitted, Rejected, Injected:
		return false
	default:
		return true
	}
}

// Record is one request as the provider saw it.
type Record struct {
	// At is when it was judged, on the monotonic clock, since the Provider was made.
	At time.Duration `json:"at"`
	// API is "github" or "openai".
	API string `json:"api"`
	// Key is the bearer token.
	Key string `json:"key"`
	// Holder is what HolderHeader said.
	Holder string `json:"holder,omitempty"`
	// Call is what CallHeader said.
	Call string `json:"call,omitempty"`
	// Repeat: the same key sent the same call before.
	Repeat bool `json:"repeat,omitempty"`
	// Method and Path are the request's.
	Method string `json:"method"`
	Path   string `json:"path"`
	// Resource is GitHub's bucket or OpenAI's model.
	Resource string `json:"resource,omitempty"`
	// Weight is GitHub's points (1 or 5), or OpenAI's tokens.
	Weight int64 `json:"weight"`
	// Status is that of the answer; 0: none was given, the connection was closed.
	Status int `json:"status"`
	// Verdict is why.
	Verdict Verdict `json:"verdict"`
	// Window tells GitHub's windows apart: the Unix second at which the present one ends.
	Window int64 `json:"window,omitempty"`
}

// Interval is a stretch of time and what fell into it.
type Interval struct {
	// From is its beginning, as Record.At. It is half open: what lies exactly one length later is outside.
	From time.Duration `json:"from"`
	// Sum is what it saw.
	Sum int64 `json:"sum"`
}

// Peak returns the interval of the length that saw most, the first of them if there are several. weigh says what a
// record counts; those of 0 do not count.
func Peak(records []Record, length time.Duration, weigh func(Record) int64) Interval {
	if !slices.IsSortedFunc(records, byTime) {
		records = slices.SortedStableFunc(slices.Values(records), byTime)
	}
	var peak Interval
	var sum int64
	first := 0
	for _, r := range records {
		sum += weigh(r)
		for r.At-records[first].At >= length {
			sum -= weigh(records[first])
			first++
		}
		if sum > peak.Sum {
			peak = Interval{From: records[first].At, Sum: sum}
		}
	}
	return peak
}

// PeakWindow returns what GitHub's fullest window of one resource saw, by each window's own bounds.
func PeakWindow(records []Record, resource string, weigh func(Record) int64) int64 {
	sums := make(map[int64]int64)
	var peak int64
	for _, r := range records {
		if r.Resource == resource && r.Window != 0 {
			sums[r.Window] += weigh(r)
			peak = max(peak, sums[r.Window])
		}
	}
	return peak
}

func byTime(a, b Record) int { return cmp.Compare(a.At, b.At) }

// Each counts every record as 1.
func Each(Record) int64 { return 1 }

// Weights counts every record by its weight.
func Weights(r Record) int64 { return r.Weight }

// WriteRecords writes records as JSON, one to a line.
func WriteRecords(w io.Writer, records []Record) error {
	out := json.NewEncoder(w)
	for _, r := range records {
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// ReadRecords reads what WriteRecords wrote.
func ReadRecords(r io.Reader) ([]Record, error) {
	var records []Record
	in := json.NewDecoder(r)
	for {
		var record Record
		switch err := in.Decode(&record); err {
		case nil:
			records = append(records, record)
		case io.EOF:
			return records, nil
		default:
			return records, err
		}
	}
}
