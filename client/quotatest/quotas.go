package quotatest

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Rate returns a quota that allows limit units in any interval of one period. Its other fields (default estimate, headroom, policy) can
// be set before it is applied.
func Rate(name string, limit int64, per time.Duration) *quotav1.Quota {
	return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: durationpb.New(per)}}}
}

// Window returns a quota that allows limit units in each hour of the clock. For another length, and for windows that begin at the
// provider's reset, set its rule.
func Window(name string, limit int64) *quotav1.Quota {
	return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Window{Window: &quotav1.Window{
		Limit: limit, Every: "hour", Anchor: quotav1.Anchor_ANCHOR_CALENDAR,
	}}}
}

// Slots returns a quota that allows limit units in use at the same time.
func Slots(name string, limit int64) *quotav1.Quota {
	return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: limit}}}
}
