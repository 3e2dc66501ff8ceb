package fleet

import (
	"math"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Tokens is what calls of a model use, in tokens.
type Tokens struct {
	// Input and Output are what the quota counts of a call; the zero Range: nothing of that side.
	Input, Output Range
	// MaxOutput is the bound of the output that each request states; 0: none.
	MaxOutput int64
	// Otherwise is the estimate of the output until it is learnt; 0: the estimator's default.
	Otherwise int64
	// Ceiling is the most that the quota can grant a call. Clients cut a larger estimate, since the provider may accept the call.
	Ceiling int64
}

// Request returns a request with this input, as the client's estimator sees it.
func (t *Tokens) Request(input int64) *estimate.Request {
	return &estimate.Request{
		Route: estimate.Route{Operation: estimate.Generate}, Content: estimate.Content{Numbers: input}, Bound: t.MaxOutput, Size: input,
	}
}

// Reserved returns the amount that a call reserves, given the estimator's answer: the input plus the most output, as providers count
// on arrival, or one of the two sides, the output as it is likely.
func (t *Tokens) Reserved(a estimate.Amounts) int64 {
	reserved := a.AtArrival()
	switch {
	case t.Output == (Range{}):
		reserved = a.Input
	case t.Input == (Range{}):
		reserved = a.Likely
	}
	return max(min(reserved, t.Ceiling), 1)
}

// Kept returns the mean amount that counts at a provider that keeps what it charged when the call arrived.
func (u *Use) Kept() float64 {
	estimated := u.Estimate
	if t := u.Tokens; t != nil {
		estimated = t.Reserved(t.Request((t.Input.Least + t.Input.Most) / 2).Amounts(t.Otherwise))
	}
	return max(float64(estimated), u.Mean())
}

// Mean returns the mean amount that a call really uses.
func (u *Use) Mean() float64 {
	if u.Actual == (Range{}) {
		return float64(u.Estimate)
	}
	return (float64(u.Actual.Least) + float64(u.Actual.Most)) / 2
}

// most returns the largest amount that a call reserves. The estimator learns from outputs, so what it has learnt is at most the
// longest.
func (t *Tokens) most() int64 {
	request := t.Request(t.Input.Most)
	a := request.Amounts(t.Otherwise)
	if t.MaxOutput == 0 {
		a.Bound, a.Likely = max(a.Bound, t.Output.Most), max(a.Likely, t.Output.Most)
	} else {
		a.Likely = max(a.Likely, min(t.Output.Most, t.MaxOutput))
	}
	return t.Reserved(a)
}

// Usable returns the part of a quota's limit that quotad grants: floor(limit x (1 - headroom)).
func Usable(q *quotav1.Quota) int64 {
	limit := max(q.GetWindow().GetLimit(), q.GetRate().GetLimit(), q.GetSlots().GetLimit())
	const million = 1_000_000
	part := million - int64(math.Round(q.Headroom*million))
	return limit/million*part + limit%million*part/million
}

// ceiling returns the most that one call can get of a quota, or of the largest member of a pool. The quotas may have mistakes.
func (f *Fleet) ceiling(quota *quotav1.Quota) (most int64) {
	members := f.Members(quota.Name)
	if len(members) == 0 {
		return f.usableAlong(quota)
	}
	for _, m := range members {
		if member := f.quota(m.Quota); member != nil {
			most = max(most, f.usableAlong(member))
		}
	}
	return most
}

// usableAlong returns the least that is usable of a quota and its ancestors.
func (f *Fleet) usableAlong(quota *quotav1.Quota) int64 {
	least := Usable(quota)
	for range f.Quotas { // a bound, since a quota may be its own ancestor
		if quota = f.quota(quota.Parent); quota == nil {
			break
		}
		least = min(least, Usable(quota))
	}
	return least
}

// quota returns the quota of a name; nil: there is none.
func (f *Fleet) quota(name string) *quotav1.Quota {
	for _, q := range f.Quotas {
		if q.Name == name {
			return q
		}
	}
	return nil
}
