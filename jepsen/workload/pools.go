package workload

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// poolMembers are the quotas of two keys: a rate per three seconds and slots for each.
func poolMembers() []*quotav1.Quota {
	var quotas []*quotav1.Quota
	for _, key := range []string{"a", "b"} {
		quotas = append(quotas,
			&quotav1.Quota{Name: "key/" + key, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: 30, Per: durationpb.New(3 * time.Second)}}},
			&quotav1.Quota{Name: "seat/" + key, Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{
				Limit: 3,
				Grace: durationpb.New(500 * time.Millisecond),
			}}},
		)
	}
	return quotas
}

// pools are the pools of both keys. The operator applies them during the run: a cluster accepts them once all members support them.
func pools() []*quotav1.Quota {
	pool := func(name, members string, sticky bool) *quotav1.Quota {
		return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Pool{Pool: &quotav1.Pool{Sticky: sticky, Members: []*quotav1.PoolMember{
			{Name: "a", Quota: members + "/a"}, {Name: "b", Quota: members + "/b"},
		}}}}
	}
	return []*quotav1.Quota{pool("keys", "key", false), pool("seats", "seat", true)}
}
