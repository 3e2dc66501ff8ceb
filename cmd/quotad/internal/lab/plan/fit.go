package plan

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Fit is two changes, either of which makes a quota fit the fleet.
type Fit struct {
	Quota string `json:"quota"`
	// Why is the reason: overloaded, starved, saturated or bursts.
	Why string `json:"why"`
	// Limit is the smallest limit that fits; Now is the present one.
	Limit int64 `json:"limit"`
	Now   int64 `json:"now"`
	// Pace is the fraction of the present demand that fits the present limit.
	Pace float64 `json:"pace"`
}

// The reasons of a Fit.
const (
	whyOverloaded = "overloaded"
	whyStarved    = "starved"
	whySaturated  = "saturated"
	whyBursts     = "bursts"
)

// fits returns the changes that would make the fleet fit. It covers each quota that is overloaded or leaves a class
// nothing. If calls were cancelled, it also covers each quota that is too small at times.
func (r *Report) fits() []Fit {
	gaveUp := slices.ContainsFunc(r.Runs, func(run Runs) bool { return run.Governed.GivenUp > 0 })
	var all []Fit
	for i := range r.Paper.Quotas {
		q := &r.Paper.Quotas[i]
		starved := slices.ContainsFunc(r.Paper.Starved, func(s Starved) bool { return s.Quota == q.Quota })
		scheduled := 0.0
		for _, c := range q.Classes {
			scheduled += c.scheduled
		}
		switch {
		case q.Verdict == Overloaded:
			all = append(all, q.fit(whyOverloaded, math.Max(scheduled, q.starvedNeed(starved))))
		case starved:
			all = append(all, q.fit(whyStarved, q.Mean))
		case gaveUp && q.Verdict == Saturated:
			all = append(all, q.fit(whySaturated, q.Mean))
		case gaveUp && q.Verdict == Queues:
			all = append(all, q.fit(whyBursts, float64(q.Peak)))
		}
	}
	return all
}

// starvedNeed returns the demand of all classes if one of them gets nothing, and otherwise 0.
func (one *PaperQuota) starvedNeed(starved bool) float64 {
	if starved {
		return one.Mean
	}
	return 0
}

// fit returns the smallest limit of which need is usable, and the fraction of the demand that fits the present limit.
func (one *PaperQuota) fit(why string, need float64) Fit {
	return Fit{
		Quota: one.Quota, Why: why, Now: limitOf(one.definition), Limit: smallestLimit(one.definition, whole(math.Ceil(need))),
		Pace: math.Min(float64(one.Usable)/need, 1),
	}
}

// smallestLimit returns the smallest limit of a quota of which need is usable.
func smallestLimit(definition *quotav1.Quota, need int64) int64 {
	q := proto.CloneOf(definition)
	least, most := int64(0), int64(quotafile.MaxAmount) // need exceeds the usable part of least, and presumably not that of most
	for least+1 < most {
		middle := least + (most-least)/2
		setLimit(q, middle)
		if fleet.Usable(q) >= need {
			most = middle
		} else {
			least = middle
		}
	}
	return most
}

// String describes both changes in a sentence.
func (f Fit) String() string {
	percent := math.Floor(100 * f.Pace)
	switch f.Why {
	case whyOverloaded:
		return fmt.Sprintf("%s fits with a limit of %d (now %d), or with what is scheduled at %.0f %% of its pace", f.Quota, f.Limit, f.Now,
			percent)
	case whyStarved:
		return fmt.Sprintf("%s leaves every class something with a limit of %d (now %d), "+
			"at %.0f %% of the demand, or with a share for the class", f.Quota, f.Limit, f.Now, percent)
	case whySaturated:
		return fmt.Sprintf("%s serves all that is wanted with a limit of %d (now %d), or at %.0f %% of the demand", f.Quota, f.Limit, f.Now,
			percent)
	}
	return fmt.Sprintf("%s takes all bursts at once with a limit of %d (now %d), "+
		"or with bursts of %.0f %% of their size; or callers that are more patient",
		f.Quota, f.Limit, f.Now, percent)
}

func setLimit(q *quotav1.Quota, limit int64) {
	switch rule := q.Rule.(type) {
	case *quotav1.Quota_Window:
		rule.Window.Limit = limit
	case *quotav1.Quota_Rate:
		rule.Rate.Limit = limit
	case *quotav1.Quota_Slots:
		rule.Slots.Limit = limit
	}
}

// limitOf returns the limit in a quota's definition.
func limitOf(q *quotav1.Quota) int64 {
	switch rule := q.Rule.(type) {
	case *quotav1.Quota_Window:
		return rule.Window.GetLimit()
	case *quotav1.Quota_Rate:
		return rule.Rate.GetLimit()
	case *quotav1.Quota_Slots:
		return rule.Slots.GetLimit()
	}
	return 0
}
