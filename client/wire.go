package client

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// askItems converts items to messages in which an amount of 0 is left to the cluster.
func askItems(items []Item) []*quotav1.Item {
	out := make([]*quotav1.Item, len(items))
	for i, item := range items {
		out[i] = &quotav1.Item{Quota: item.Quota}
		if item.Amount != 0 {
			out[i].Amount = &items[i].Amount
		}
	}
	return out
}

// exactItems converts items to messages in which 0 is 0.
func exactItems(items []Item) []*quotav1.Item {
	out := make([]*quotav1.Item, len(items))
	for i, item := range items {
		out[i] = &quotav1.Item{Quota: item.Quota, Amount: &items[i].Amount}
	}
	return out
}

func itemsOf(items []*quotav1.Item) []Item {
	out := make([]Item, len(items))
	for i, item := range items {
		out[i] = Item{Quota: item.GetQuota(), Amount: item.GetAmount()}
	}
	return out
}

func grantedOf(items []*quotav1.GrantedItem) []Item {
	out := make([]Item, len(items))
	for i, item := range items {
		out[i] = Item{Quota: item.GetQuota(), Amount: item.GetAmount()}
	}
	return out
}

// durationOf returns a message's duration, or otherwise if it is absent.
func durationOf(d *durationpb.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.AsDuration()
}

func durationOrNil(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func refusalOf(r *quotav1.Refusal) *RefusalError {
	return &RefusalError{
		Reason: Reason(r.GetReason()), Quota: r.GetQuota(), RetryAfter: durationOf(r.GetRetryAfter(), -1), Zone: Zone(r.GetZone()),
		ReopensIn: durationOf(r.GetReopensIn(), 0),
		Advice:    r.GetAdvice(), Available: r.GetAvailable(), Ahead: r.GetAhead(), Forecast: forecastOf(r.GetForecast()),
		BackPressure: backPressureOf(r.GetBackPressure()), Budget: r.GetBudget(),
	}
}

func backPressureOf(p *quotav1.BackPressure) *BackPressure {
	if p == nil {
		return nil
	}
	return &BackPressure{
		Workflow: p.GetWorkflow(), Sequential: p.GetState() == quotav1.WorkflowState_WORKFLOW_STATE_SEQUENTIAL, Step: p.GetStep(),
		Quota: p.GetQuota(), LimitedFor: durationOf(p.GetLimitedFor(), 0), Side: Side(p.GetSide()), Baton: p.GetBaton(),
	}
}

func quotaOf(q *quotav1.QuotaStatus) Quota {
	definition := q.GetDefinition()
	out := Quota{
		Name: definition.GetName(), Usable: q.GetUsable(), Held: q.GetHeld(), Consumed: q.GetConsumed(),
		Available: q.GetAvailable(), AvailableWithParents: q.GetAvailableWithParents(), Zone: Zone(q.GetZone()),
		CooldownLeft: durationOf(q.GetCooldownLeft(), 0), WindowClosesIn: durationOf(q.GetWindowClosesIn(), -1),
		Waiting: q.GetWaiting(), Leases: q.GetLeases(), Overrun: q.GetOverrun(),
		DefaultEstimate: max(definition.GetDefaultEstimate(), 1), ReopensIn: durationOf(q.GetReopensIn(), 0),
		Observes: definition.GetPolicy().GetObserve(), Observed: q.GetObserved(),
	}
	switch rule := definition.GetRule().(type) {
	case *quotav1.Quota_Window:
		out.Kind, out.Period = KindWindow, periodOf(rule.Window.GetEvery())
	case *quotav1.Quota_Rate:
		out.Kind, out.Period = KindRate, durationOf(rule.Rate.GetPer(), 0)
	case *quotav1.Quota_Slots:
		out.Kind = KindSlots
	case *quotav1.Quota_Pool:
		out.Kind = KindPool
		for _, member := range q.GetMembers() {
			out.Members = append(out.Members, PoolMember{
				Name: member.GetName(), Quota: member.GetQuota(), Usable: member.GetUsable(), Available: member.GetAvailable(),
				CooldownLeft: durationOf(member.GetCooldownLeft(), 0),
			})
		}
	}
	return out
}

// periodOf returns the length of a window; 0 if it is unknown.
func periodOf(every string) time.Duration {
	switch every {
	case "hour":
		return time.Hour
	case "day":
		return 24 * time.Hour
	case "month":
		return 30 * 24 * time.Hour
	}
	length, err := time.ParseDuration(every)
	if err != nil {
		return 0
	}
	return length
}

func signalsOf(signals []Signal) []*quotav1.Signal {
	out := make([]*quotav1.Signal, len(signals))
	for i, s := range signals {
		out[i] = &quotav1.Signal{
			Quota: s.Quota, Cause: quotav1.Cause(s.Cause), Limit: s.Limit, Remaining: s.Remaining,
			ResetResolution: durationOrNil(s.ResetResolution),
		}
		if s.ResetAfter != nil {
			out[i].ResetAfter = durationpb.New(*s.ResetAfter)
		}
		if s.RetryAfter != nil {
			out[i].RetryAfter = durationpb.New(*s.RetryAfter)
		}
	}
	return out
}

func reportedOf(quotas []*quotav1.ReportedQuota) []Reported {
	out := make([]Reported, len(quotas))
	for i, q := range quotas {
		out[i] = Reported{
			Quota: q.GetQuota(), CooldownLeft: durationOf(q.GetCooldownLeft(), 0), Cooldowns: int(q.GetAttempt()), ResetLearned: q.GetResetLearned(),
		}
	}
	return out
}
