package rpc

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// parseEvery parses a window's length.
func parseEvery(text string) (logpb.Every, int64, error) {
	switch text {
	case "hour":
		return logpb.Every_EVERY_HOUR, 0, nil
	case "day":
		return logpb.Every_EVERY_DAY, 0, nil
	case "month":
		return logpb.Every_EVERY_MONTH, 0, nil
	}
	length, err := time.ParseDuration(text)
	if err != nil || length <= 0 {
		return 0, 0, fmt.Errorf("invalid window length %q", text)
	}
	return logpb.Every_EVERY_UNSPECIFIED, int64(length), nil
}

func formatEvery(w *logpb.Window) string {
	switch w.Every {
	case logpb.Every_EVERY_HOUR:
		return "hour"
	case logpb.Every_EVERY_DAY:
		return "day"
	case logpb.Every_EVERY_MONTH:
		return "month"
	case logpb.Every_EVERY_UNSPECIFIED:
	}
	return time.Duration(w.EveryNs).String()
}

// logQuota translates a definition that was validated.
func logQuota(q *quotav1.Quota) *logpb.Quota {
	def := &logpb.Quota{
		Name: q.Name, HeadroomPpm: ppm(q.Headroom), Parent: q.Parent, MaxHold: q.MaxHold,
		ClampHold: q.ClampHold, DefaultEstimate: q.DefaultEstimate, SpendByNs: nanos(q.SpendBy), TransitNs: nanos(q.Transit),
		Charged: logpb.Charged(q.Charged), MaxCallNs: nanos(q.MaxCall), Settle: logpb.SettleMode(q.Settle), Note: q.Note,
		Fallback: q.Fallback,
	}
	switch r := q.Rule.(type) {
	case *quotav1.Quota_Window:
		every, length, _ := parseEvery(r.Window.Every)
		def.Rule = &logpb.Quota_Window{Window: &logpb.Window{
			Limit: r.Window.Limit, Every: every, EveryNs: length,
			Anchored: r.Window.Anchor == quotav1.Anchor_ANCHOR_PROVIDER, SkewNs: nanos(r.Window.Skew),
		}}
	case *quotav1.Quota_Rate:
		def.Rule = &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: r.Rate.Limit, PerNs: nanos(r.Rate.Per), Burst: r.Rate.Burst}}
	case *quotav1.Quota_Slots:
		def.Rule = &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: r.Slots.Limit, GraceNs: nanos(r.Slots.Grace)}}
	case *quotav1.Quota_Pool:
		pool := &logpb.Pool{Sticky: r.Pool.Sticky}
		for _, member := range r.Pool.Members {
			pool.Members = append(pool.Members, &logpb.PoolMember{Name: member.GetName(), Quota: member.GetQuota()})
		}
		def.Rule = &logpb.Quota_Pool{Pool: pool}
	}
	if p := q.Policy; p != nil {
		def.Policy = &logpb.Policy{
			Zones: logpb.Zones(p.Zones), RampNs: nanos(p.Ramp), Observe: p.Observe, AgeingNs: nanos(p.Ageing), Metering: p.Metering,
		}
		if b := p.Breaker; b != nil {
			def.Policy.Breaker = &logpb.Breaker{Failures: b.Failures, ClosedNs: nanos(b.Closed)}
		}
		if s := p.Shares; s != nil {
			def.Policy.Shares = &logpb.Shares{
				CriticalPpm: ppm(s.Critical), StandardPpm: ppm(s.Standard), BackgroundPpm: ppm(s.Background), CapPpm: ppm(s.Cap),
				QuietNs: nanos(s.Quiet),
			}
			if s.Floor != nil {
				def.Policy.Shares.FloorPpm = new(ppm(*s.Floor))
			}
			for _, name := range slices.Sorted(maps.Keys(s.Holders)) {
				def.Policy.Shares.Holders = append(def.Policy.Shares.Holders, &logpb.HolderShare{Holder: name, SharePpm: ppm(s.Holders[name])})
			}
		}
		if f := p.Prediction; f != nil {
			def.Policy.Prediction = &logpb.Prediction{Samples: f.Samples, AheadNs: nanos(f.Ahead)}
		}
	}
	return def
}

// ppm and part convert parts of a whole; the log has millionths.
func ppm(part float64) int32 { return int32(math.Round(part * 1e6)) }

func part(ppm int32) float64 { return float64(ppm) / 1e6 }

func optionalDuration(n int64) *durationpb.Duration {
	if n == 0 {
		return nil
	}
	return durationpb.New(time.Duration(n))
}

func apiQuota(def *logpb.Quota) *quotav1.Quota {
	q := &quotav1.Quota{
		Name: def.Name, Headroom: part(def.HeadroomPpm), Parent: def.Parent, MaxHold: def.MaxHold,
		ClampHold: def.ClampHold, DefaultEstimate: def.DefaultEstimate, SpendBy: optionalDuration(def.SpendByNs),
		Transit: optionalDuration(def.TransitNs), Charged: quotav1.Charged(def.Charged),
		MaxCall: optionalDuration(def.MaxCallNs), Settle: quotav1.SettleMode(def.Settle), Note: def.Note,
		Fallback: def.Fallback,
	}
	switch r := def.Rule.(type) {
	case *logpb.Quota_Window:
		w := &quotav1.Window{
			Limit: r.Window.Limit, Every: formatEvery(r.Window), Anchor: quotav1.Anchor_ANCHOR_CALENDAR,
			Skew: optionalDuration(r.Window.SkewNs),
		}
		if r.Window.Anchored {
			w.Anchor = quotav1.Anchor_ANCHOR_PROVIDER
		}
		q.Rule = &quotav1.Quota_Window{Window: w}
	case *logpb.Quota_Rate:
		q.Rule = &quotav1.Quota_Rate{Rate: &quotav1.Rate{
			Limit: r.Rate.Limit, Per: durationpb.New(time.Duration(r.Rate.PerNs)), Burst: r.Rate.Burst,
		}}
	case *logpb.Quota_Slots:
		q.Rule = &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: r.Slots.Limit, Grace: optionalDuration(r.Slots.GraceNs)}}
	case *logpb.Quota_Pool:
		pool := &quotav1.Pool{Sticky: r.Pool.Sticky}
		for _, member := range r.Pool.Members {
			pool.Members = append(pool.Members, &quotav1.PoolMember{Name: member.Name, Quota: member.Quota})
		}
		q.Rule = &quotav1.Quota_Pool{Pool: pool}
	}
	if p := def.Policy; p != nil {
		q.Policy = &quotav1.Policy{
			Zones: quotav1.Zones(p.Zones), Ramp: optionalDuration(p.RampNs), Observe: p.Observe, Ageing: optionalDuration(p.AgeingNs),
			Metering: p.Metering,
		}
		if b := p.Breaker; b != nil {
			q.Policy.Breaker = &quotav1.Breaker{Failures: b.Failures, Closed: optionalDuration(b.ClosedNs)}
		}
		if s := p.Shares; s != nil {
			q.Policy.Shares = &quotav1.Shares{
				Critical: part(s.CriticalPpm), Standard: part(s.StandardPpm), Background: part(s.BackgroundPpm), Cap: part(s.CapPpm),
				Quiet: optionalDuration(s.QuietNs),
			}
			if s.FloorPpm != nil {
				q.Policy.Shares.Floor = new(part(*s.FloorPpm))
			}
			for _, h := range s.Holders {
				if q.Policy.Shares.Holders == nil {
					q.Policy.Shares.Holders = map[string]float64{}
				}
				q.Policy.Shares.Holders[h.Holder] = part(h.SharePpm)
			}
		}
		if f := p.Prediction; f != nil {
			q.Policy.Prediction = &quotav1.Prediction{Samples: f.Samples, Ahead: optionalDuration(f.AheadNs)}
		}
	}
	return q
}

func apiQuotaStatus(v *fsm.QuotaView, clock fsm.Clock) *quotav1.QuotaStatus {
	s := &quotav1.QuotaStatus{
		Definition: apiQuota(v.Definition), Usable: v.Usable, Held: v.Held, Consumed: v.Consumed, Available: v.Available,
		AvailableWithParents: v.AvailableWithParents, Zone: quotav1.Zone(v.Zone), Waiting: v.Waiting, Leases: v.Leases,
		Overrun: v.Overrun, ReopensIn: optionalDuration(v.ReopensIn), Observed: v.Observed, BrokenHolders: v.Broken,
		Circuit: quotav1.Circuit(v.Circuit), Forecast: apiForecast(v.Forecast, clock), Samples: int32(v.Samples),
		Others: v.Others, KeptForOthers: v.KeptForOthers,
	}
	if v.ObservedLimit >= 0 {
		s.ObservedLimit, s.ObservedAgo = &v.ObservedLimit, durationpb.New(time.Duration(v.ObservedAgo))
	}
	if p := v.Pacer; p != nil {
		s.Pacer = &quotav1.Pacer{
			Ahead: durationpb.New(time.Duration(p.Ahead)), LendsIn: durationpb.New(time.Duration(p.LendsIn)), Reserve: p.Reserve,
			Zone: quotav1.Zone(p.Zone),
		}
	}
	if over := v.Override; over != nil {
		s.Override = &quotav1.Override{Limit: over.Limit, Left: durationpb.New(time.Duration(over.Left)), Note: over.Note}
	}
	for _, use := range v.Classes {
		one := &quotav1.ClassUse{
			Class: quotav1.Class(use.Class + 1), Share: use.Share, Used: use.Used, Kept: use.Kept, Lent: use.Lent, Borrowed: use.Borrowed,
		}
		if v.Pacer != nil {
			one.Takes = new(use.Takes)
		}
		s.Classes = append(s.Classes, one)
	}
	for i := range v.Members {
		its := &v.Members[i].Quota
		s.Members = append(s.Members, &quotav1.PoolMemberStatus{
			Name: v.Members[i].Name, Quota: its.Definition.Name, Usable: its.Usable, Available: its.AvailableWithParents,
			CooldownLeft: optionalDuration(its.ClosedFor),
		})
	}
	if v.CooldownLeft > 0 {
		s.CooldownLeft = durationpb.New(time.Duration(v.CooldownLeft))
	}
	if v.WindowLeft >= 0 {
		s.WindowClosesIn = durationpb.New(time.Duration(v.WindowLeft))
	}
	if v.CappedTo >= 0 {
		s.CappedTo = &v.CappedTo
	}
	return s
}
