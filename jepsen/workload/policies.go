package workload

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// SessionIdle is the idle time after which a session expires: short, so that some expire in each run.
const SessionIdle = 10 * time.Second

// foretold is the quota of which the provider reports the rest: others use it too.
const (
	foretold      = "policy/foretold"
	foretoldLimit = 200
	windowLength  = 10 * time.Second
)

// lent is a rate with a share for each class that no provider closes: its lower classes always want more than is free.
const lent = "policy/lent"

// remaining is the provider's report of the rest of foretold at a time: it reaches 0 before its window closes.
func remaining(now time.Time) int64 {
	passed := now.UnixNano() % int64(windowLength)
	return max(foretoldLimit-foretoldLimit*passed*5/int64(windowLength)/4, 0)
}

// policies are quotas with policies that withhold grants before the quota is exhausted.
func policies() []*quotav1.Quota {
	window := func(name string, limit int64, policy *quotav1.Policy) *quotav1.Quota {
		return &quotav1.Quota{Name: name, Policy: policy, Rule: &quotav1.Quota_Window{
			Window: &quotav1.Window{Limit: limit, Every: "10s", Skew: durationpb.New(500 * time.Millisecond)},
		}}
	}
	rate := func(name string, limit int64, per time.Duration, policy *quotav1.Policy) *quotav1.Quota {
		return &quotav1.Quota{Name: name, Policy: policy, Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: durationpb.New(per)}}}
	}
	seconds := func(n float64) *durationpb.Duration { return durationpb.New(time.Duration(n * float64(time.Second))) }
	breaker := &quotav1.Breaker{Failures: 2, Closed: seconds(2)}
	hour := window("policy/hour", 60, &quotav1.Policy{
		Zones: quotav1.Zones_ZONES_SMOOTH, Ramp: seconds(2), Breaker: breaker, Ageing: seconds(3), Metering: true,
		Shares: &quotav1.Shares{Critical: 0.4, Standard: 0.35, Background: 0.25, Quiet: seconds(4)},
	})
	predicted := window(foretold, foretoldLimit, &quotav1.Policy{Prediction: &quotav1.Prediction{Samples: 3, Ahead: seconds(4)}})
	hour.Fallback, predicted.Fallback = "policy/spare", "policy/spare"
	return []*quotav1.Quota{
		rate("policy/spare", 30, 2*time.Second, nil), hour, predicted,
		window("policy/strict", 30, &quotav1.Policy{Zones: quotav1.Zones_ZONES_STRICT}),
		rate("policy/rate", 40, 3*time.Second, &quotav1.Policy{
			Ramp: seconds(3), Breaker: breaker, Ageing: seconds(3), Metering: true, Prediction: &quotav1.Prediction{},
			Shares: &quotav1.Shares{Critical: 0.4, Standard: 0.35, Background: 0.25, Quiet: seconds(4)},
		}),
		rate(lent, 40, 3*time.Second, &quotav1.Policy{
			Shares: &quotav1.Shares{Critical: 0.4, Standard: 0.35, Background: 0.25, Quiet: seconds(4)},
		}),
		{Name: "policy/slots", Policy: &quotav1.Policy{Ramp: seconds(3), Ageing: seconds(2)}, Rule: &quotav1.Quota_Slots{
			Slots: &quotav1.Slots{Limit: 4, Grace: durationpb.New(500 * time.Millisecond)},
		}},
		rate(overridden, 60, 3*time.Second, nil), rate("chain", 16, 4*time.Second, nil), rate(taskQuota, 100, time.Second, nil),
	}
}

// overridden is the quota that operators override, taskQuota the one of tasks.
const (
	overridden = "policy/changed"
	taskQuota  = "tasks"
)

// ChainSteps is the number of steps of the workflow.
const ChainSteps = 5

// Workflows are the workflows of a run: the actors of the profile chain, one after the other.
func Workflows() []*quotav1.Workflow {
	seconds := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }
	workflow := &quotav1.Workflow{
		Name: "chain", Threshold: 3, Within: seconds(3), Calm: seconds(4), BatonTime: seconds(2), Pause: seconds(6),
	}
	for number := range ChainSteps {
		step := &quotav1.WorkflowStep{Holder: fmt.Sprintf("chain-0-%d", number)}
		if number > 0 {
			step.After = []string{fmt.Sprintf("chain-0-%d", number-1)}
		}
		workflow.Steps = append(workflow.Steps, step)
	}
	return []*quotav1.Workflow{workflow}
}
