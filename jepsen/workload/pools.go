package workload

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// poolMembers are the quotas of two keys: what each may ask for in three seconds, and at once.
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

// pools are those of both keys. The operator applies them while the run goes on: a cluster takes them once it knows that every member does.
func pools() []*quotav1.Quota {
	pool := func(name, members string, sticky bool) *quotav1.Quota {
		return &quotav1.Quota{Name: name, Rule: &quotav1.Quota_Pool{Pool: &quotav1.Pool{Sticky: sticky, Members: []*quotav1.PoolMember{
			{Name: "a", Quota: members + "/a"}, {Name: "b", Quota: members + "/b"},
		}}}}
	}
	return []*quotav1.Quota{pool("keys", "key", false), pool("seats", "seat", true)}
}
