package fsm

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

// livedQuotas have one of each kind and policy; each variant has other limits.
func livedQuotas(variant int64) []*logpb.Quota {
	rate := func(name string, limit int64, per time.Duration) *logpb.Quota {
		return &logpb.Quota{
			Name: name, SpendByNs: int64(8 * time.Second),
			Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: limit + variant, PerNs: int64(per)}},
		}
	}
	window := func(name string, limit int64, every logpb.Every) *logpb.Quota {
		return &logpb.Quota{Name: name, Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: limit + variant, Every: every}}}
	}
	minutely := rate("minutely", 600, time.Minute)
	minutely.Policy = &logpb.Policy{
		RampNs: int64(10 * time.Second), Breaker: &logpb.Breaker{Failures: 2, ClosedNs: int64(5 * time.Second)}, Metering: true,
	}
	bursts := rate("bursts", 600, time.Minute)
	bursts.SpendByNs, bursts.GetRate().Burst, bursts.HeadroomPpm = 0, 100, 100_000
	ends := rate("ends", 400, time.Minute)
	ends.Charged, ends.MaxCallNs, ends.Settle = logpb.Charged_CHARGED_END, int64(20*time.Second), logpb.SettleMode_SETTLE_MODE_MAX
	org, team := rate("org", 500, time.Minute), rate("org/team", 300, time.Minute)
	team.Parent, team.Fallback, team.MaxHold = "org", "minutely", proto.Int64(50)
	daily := window("daily", 5000, logpb.Every_EVERY_DAY)
	daily.Policy = &logpb.Policy{
		Zones: logpb.Zones_ZONES_SMOOTH, AgeingNs: int64(time.Minute), Prediction: &logpb.Prediction{Samples: 3, AheadNs: int64(time.Hour)},
		Shares: &logpb.Shares{CriticalPpm: 400_000, StandardPpm: 350_000, BackgroundPpm: 250_000},
	}
	hourly := window("hourly", 3000, logpb.Every_EVERY_HOUR)
	reported := window("reported", 2000, logpb.Every_EVERY_HOUR)
	reported.GetWindow().Anchored = true
	slots := &logpb.Quota{Name: "slots", Rule: &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: 9 + variant%3}}}
	tight := rate("tight", 12, 10*time.Second)
	tight.Policy = &logpb.Policy{
		AgeingNs: int64(5 * time.Second), Prediction: &logpb.Prediction{},
		Shares: &logpb.Shares{CriticalPpm: 400_000, StandardPpm: 350_000, BackgroundPpm: 250_000, QuietNs: int64(20 * time.Second)},
	}
	foreseen := window("foreseen", 5000, logpb.Every_EVERY_HOUR)
	foreseen.Policy = &logpb.Policy{Prediction: &logpb.Prediction{Samples: 3, AheadNs: int64(time.Hour)}}
	watched := &logpb.Quota{Name: "watched", Rule: rate("watched", 5, time.Minute).Rule, Policy: &logpb.Policy{Observe: true}}
	return append([]*logpb.Quota{
		minutely, bursts, ends, org, team, daily, hourly, reported, slots, tight, foreseen, watched,
	}, livedPool(rate)...)
}

func livedHolders() *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{ReplaceHolders: true, Holders: []*logpb.HolderRule{
		{Pattern: "h0", Class: 0, Weight: 3}, {Pattern: "h6", Class: 2}, {Pattern: "h7", Class: 2, Weight: 2},
	}}}}
}
