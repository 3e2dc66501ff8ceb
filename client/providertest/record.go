package providertest

import (
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"time"
)

// Verdict is the result of a request.
type Verdict string

// The verdicts.
const (
	// Admitted requests were served.
	Admitted Verdict = "admitted"
	// LimitPrimary is GitHub's limit per window.
	LimitPrimary Verdict = "primary"
	// LimitConcurrent is GitHub's limit of concurrent requests.
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
	// Rejected requests were invalid: no key, a bad body, an unknown path.
	Rejected Verdict = "rejected"
	// Injected is a fault added with Inject.
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

// Record is one request as seen by the provider.
type Record struct {
	// At is when it was judged, on the monotonic clock, since the Provider was made.
	At time.Duration `json:"at"`
	// API is "github" or "openai".
	API string `json:"api"`
	// Key is the bearer token.
	Key string `json:"key"`
	// Holder is the value of HolderHeader.
	Holder string `json:"holder,omitempty"`
	// Call is the value of CallHeader.
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
	// Status is the status of the answer; 0: the connection was closed without one.
	Status int `json:"status"`
	// Verdict is the reason.
	Verdict Verdict `json:"verdict"`
	// Window identifies GitHub's window: the Unix second at which it ends.
	Window int64 `json:"window,omitempty"`
}

// Interval is a time interval and the sum of its records.
type Interval struct {
	// From is its beginning, as in Record.At. The interval is half open: a record exactly one length later is outside.
	From time.Duration `json:"from"`
	// Sum is the sum of the weights of its records.
	Sum int64 `json:"sum"`
}

// Peak returns the interval of this length with the largest sum, the first of several. weigh returns the weight of a record; records of
// weight 0 do not count.
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

// PeakWindow returns the sum of GitHub's fullest window of one resource, by each window's own bounds.
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

// ReadRecords reads records that WriteRecords wrote.
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
