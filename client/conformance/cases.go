package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quotad/quotad/raftnode/loopback"
	"github.com/quotad/quotad/rpc/quotav1"
)

// testCase is one rule for clients.
type testCase struct {
	name string
	// rule is the tested rule, source its place in the documentation.
	rule, source string
	// slow cases wait for seconds.
	slow bool
	run  func(*kit, *driver) error
}

// cases returns all cases, in the order recommended for a new client.
func cases() []testCase {
	return []testCase{
		{
			name: "numbering", source: "docs/api.md, Outcome of a command",
			rule: "Every Reserve has a request id: a session from OpenSession and a seq that no other request of the session has.",
			run:  numbering,
		},
		{
			name: "acked_below", source: "docs/api.md, Bounds (unacknowledged requests of a session)",
			rule: "Requests carry acked_below, which follows the answers that arrived, so that the cluster can drop their results.",
			run:  acknowledging,
		},
		{
			name: "repeat", source: "docs/consistency.md, Not accepted, unknown, applied",
			rule: "A request whose answer was lost is sent again under its own id, also to another leader, and is granted once.",
			run:  repeating,
		},
		{
			name: "refusal", source: "docs/api.md, Conventions (\"No\" is an answer)",
			rule: "A refusal is an answer with a reason, a quota and a retry-after. The client shows it and does not ask again by itself.",
			run:  refusing,
		},
		{
			name: "full-disk", source: "docs/api.md, Calls of holders (Batch)",
			rule: "The results of a Batch belong to its commands by position: on a full disk a Reserve in it is not accepted, a Release is applied.",
			run:  fullDisk,
		},
		{
			name: "outcomes", source: "docs/api.md, Outcome of a command", slow: true,
			rule: "The client tells three outcomes apart: what was certainly not accepted, what is unknown, and what was applied or rejected.",
			run:  outcomes,
		},
		{
			name: "session", source: "docs/consistency.md, What checks each promise (row 25)", slow: true,
			rule: "When a session is gone, a request that may have been carried out has an unknown outcome; it is not sent again under another id.",
			run:  losingTheSession,
		},
		{
			name: "deadline", source: "docs/api.md, Conventions (Durations, never timestamps)", slow: true,
			rule: "A deadline is: before the send of the answered attempt, plus served_in, plus what is left; never later, and a little earlier.",
			run:  deadlines,
		},
	}
}

func numbering(k *kit, d *driver) error {
	const one, atOnce = 6, 12
	quota, err := k.rate("numbering", 1_000)
	if err != nil {
		return err
	}
	leases := map[string]bool{}
	for range one {
		a, err := reserve(d, quota, applied)
		if err != nil {
			return err
		}
		leases[a.Lease] = true
	}
	var all []*pending
	for range atOnce {
		p, err := d.begin(request{Do: doReserve, Items: []item{{quota, 1}}, TTL: 600_000, Within: 60_000})
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	for _, p := range all {
		a, err := p.wait()
		if err == nil {
			err = expect(a, applied, "reserve at the same time")
		}
		if err != nil {
			return err
		}
		leases[a.Lease] = true
	}
	if len(leases) != one+atOnce {
		return fmt.Errorf("%d Reserves produced %d leases", one+atOnce, len(leases))
	}
	numbers := map[number]bool{}
	for _, s := range k.seen.of(reservesOf(quota)) {
		id := idOf(s.command)
		if id.GetSession() == 0 || id.GetSeq() == 0 {
			return fmt.Errorf("a Reserve carries the request id {%v}: it needs session and seq", id)
		}
		numbers[number{id.GetSession(), id.GetSeq()}] = true
	}
	if len(numbers) != one+atOnce {
		return fmt.Errorf("%d Reserves had %d numbers", one+atOnce, len(numbers))
	}
	return k.held(quota, one+atOnce)
}

func acknowledging(k *kit, d *driver) error {
	const requests, behind = 40, 20
	quota, err := k.rate("acked", 1_000)
	if err != nil {
		return err
	}
	for range requests {
		if _, err := reserve(d, quota, applied); err != nil {
			return err
		}
	}
	all := k.seen.of(reservesOf(quota))
	last := idOf(all[len(all)-1].command)
	if last.GetAckedBelow()+behind < last.GetSeq() {
		return fmt.Errorf("request %d carries acked_below %d, though all before it were answered: the cluster keeps their results",
			last.GetSeq(), last.GetAckedBelow())
	}
	return k.held(quota, requests)
}

func repeating(k *kit, d *driver) error {
	quota, err := k.rate("repeat", 1_000)
	if err != nil {
		return err
	}
	takes := reservesOf(quota)
	k.seen.set(func(e *exchange) fate { return fate{lost: e.carries(takes)} })
	p, err := d.begin(request{Do: doReserve, Items: []item{{quota, 1}}, TTL: 600_000, Within: 60_000})
	if err != nil {
		return err
	}
	lost := func() bool { return granted(k.seen.of(takes)) != nil }
	if err := eventually("a Reserve was carried out and its answer lost", lost); err != nil {
		return err
	}
	old := k.cluster.leader()
	if old == nil {
		return errNoLeader
	}
	old.kill()
	defer func() { _ = old.start() }() // the next case needs only a majority
	if err := eventually("another node leads", func() bool { return k.cluster.leader() != nil }); err != nil {
		return err
	}
	k.seen.set(nil)
	a, err := p.wait()
	if err != nil {
		return err
	}
	if err := expect(a, applied, "a Reserve whose answers were lost for a while"); err != nil {
		return err
	}
	first := idOf(granted(k.seen.of(takes)).command)
	for _, s := range k.seen.of(takes) {
		if id := idOf(s.command); id.GetSession() != first.GetSession() || id.GetSeq() != first.GetSeq() {
			return fmt.Errorf("it was sent under {%v} first and under {%v} then: the first may have been carried out", first, id)
		}
	}
	return k.held(quota, 1)
}

// granted returns the first sighting that the node answered with a lease; nil: there is none yet.
func granted(all []sighting) *sighting {
	for i := range all {
		if all[i].result.GetReserve().GetLease() != nil {
			return &all[i]
		}
	}
	return nil
}

func refusing(k *kit, d *driver) error {
	quota, err := k.rate("refusal", 1)
	if err != nil {
		return err
	}
	a, err := d.call(request{Do: doReserve, Items: []item{{quota, 1}}, TTL: 600_000, Consume: true, Within: 60_000})
	if err == nil {
		err = expect(a, applied, "reserve and consume all")
	}
	if err != nil {
		return err
	}
	a, err = reserve(d, quota, refused)
	if err != nil {
		return err
	}
	all := k.seen.of(reservesOf(quota))
	refusal := all[len(all)-1].result.GetReserve().GetRefusal()
	numbers := map[uint64]bool{}
	for _, s := range all {
		numbers[idOf(s.command).GetSeq()] = true
	}
	want := refusal.GetRetryAfter().AsDuration()
	switch {
	case len(numbers) != 2:
		return fmt.Errorf("%d requests were made of two Reserves: a refusal is an answer, and the caller says when to ask again", len(numbers))
	case a.Reason != "EXHAUSTED" || a.Quota != quota:
		return fmt.Errorf("the client shows reason %q of quota %q, the cluster said EXHAUSTED of %q", a.Reason, a.Quota, quota)
	case a.RetryAfter == nil:
		return fmt.Errorf("the client shows no retry-after, the cluster said %v", want)
	case apart(time.Duration(*a.RetryAfter)*time.Millisecond-want) > 5*time.Millisecond:
		return fmt.Errorf("the client shows a retry-after of %d ms, the cluster said %v", *a.RetryAfter, want)
	}
	return nil
}

func apart(d time.Duration) time.Duration { return max(d, -d) }

func fullDisk(k *kit, d *driver) error {
	quota, err := k.rate("disk", 1_000)
	if err != nil {
		return err
	}
	first, err := reserve(d, quota, applied)
	if err != nil {
		return err
	}
	second, err := reserve(d, quota, applied)
	if err != nil {
		return err
	}
	k.cluster.setFull(true)
	defer k.cluster.setFull(false)
	if err := k.probe(quota, false); err != nil {
		return err
	}
	more := request{Do: doReserve, Items: []item{{quota, 1}}, TTL: 600_000}
	a, err := d.call(request{Do: doBatch, Within: 1_500, Commands: []request{
		more, {Do: doRelease, Lease: first.Lease}, more, {Do: doRenew, Lease: second.Lease, TTL: 1_200_000},
	}})
	if err != nil {
		return err
	}
	want := []string{notAccepted, applied, notAccepted, applied}
	if len(a.Results) != len(want) {
		return fmt.Errorf("a batch of %d commands has %d results", len(want), len(a.Results))
	}
	for i, outcome := range want {
		if outcome == notAccepted && a.Results[i].Outcome == unknown && unanswered(k.seen.of(reservesOf(quota))) {
			outcome = unknown // its time ended with another attempt in flight
		}
		if err := expect(a.Results[i], outcome, fmt.Sprintf("command %d of reserve, release, reserve, renew on a full disk", i+1)); err != nil {
			return err
		}
	}
	if err := k.held(quota, 1); err != nil {
		return err
	}
	k.cluster.setFull(false)
	if err := k.probe(quota, true); err != nil {
		return err
	}
	_, err = reserve(d, quota, applied)
	return err
}

// unanswered reports whether an attempt was abandoned before its answer arrived.
func unanswered(all []sighting) bool {
	return slices.ContainsFunc(all, func(s sighting) bool { return !s.delivered })
}

// probe waits until the cluster grants leases again, or refuses them because its disks are full. It releases its own leases.
func (k *kit) probe(quota string, grants bool) error {
	return eventually(fmt.Sprintf("the cluster grants: %v", grants), func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		quotas, err := k.cluster.quotas()
		if err != nil {
			return false
		}
		one := int64(1)
		response, err := quotas.Reserve(ctx, &quotav1.ReserveRequest{Holder: "kit", Items: []*quotav1.Item{{Quota: quota, Amount: &one}}})
		if lease := response.GetLease(); err == nil && lease != nil {
			_, _ = quotas.Release(ctx, &quotav1.ReleaseRequest{Lease: lease.GetId(), Fence: lease.GetFence()})
		}
		return (err == nil) == grants
	})
}

func outcomes(k *kit, d *driver) error {
	quota, err := k.rate("outcomes", 1_000)
	if err != nil {
		return err
	}
	// Rejected: the lease was released.
	a, err := reserve(d, quota, applied)
	if err != nil {
		return err
	}
	for _, step := range []struct{ do, outcome, reason string }{{doRelease, applied, ""}, {doConsume, rejected, "STALE_FENCE"}} {
		got, err := d.call(request{Do: step.do, Lease: a.Lease, Within: 60_000})
		if err == nil {
			err = expect(got, step.outcome, step.do+" of a lease")
		}
		if err == nil && step.reason != got.Reason {
			err = fmt.Errorf("%s of a lease that was released: reason %q, want %q", step.do, got.Reason, step.reason)
		}
		if err != nil {
			return err
		}
	}
	// Unknown: it is carried out, and no answer arrives.
	takes := reservesOf(quota)
	k.seen.set(func(e *exchange) fate { return fate{lost: e.carries(takes), silent: e.carries(takes)} })
	a, err = d.call(request{Do: doReserve, Items: []item{{quota, 1}}, TTL: 600_000, Within: 3_000})
	k.seen.set(nil)
	if err == nil {
		err = expect(a, unknown, "a Reserve that is carried out and never answered")
	}
	if err != nil {
		return err
	}
	if _, err := reserve(d, quota, applied); err != nil {
		return err
	}
	// Not accepted: nobody listens.
	nowhere, err := loopback.Free(size)
	if err != nil {
		return err
	}
	if err := connect(d, nowhere); err != nil {
		return err
	}
	a, err = d.call(request{Do: doReserve, Items: []item{{quota, 1}}, TTL: 600_000, Within: 3_000})
	if err != nil {
		return err
	}
	return expect(a, notAccepted, "a Reserve where nobody listens")
}

func losingTheSession(k *kit, d *driver) error {
	quota, err := k.rate("session", 1_000)
	if err != nil {
		return err
	}
	if _, err := reserve(d, quota, applied); err != nil {
		return err
	}
	takes := reservesOf(quota)
	k.seen.set(func(e *exchange) fate { return fate{lost: e.carries(takes)} })
	p, err := d.begin(request{Do: doReserve, Items: []item{{quota, 1}}, TTL: 600_000, Within: 60_000})
	if err != nil {
		return err
	}
	lost := func() bool {
		return slices.ContainsFunc(k.seen.of(takes), func(s sighting) bool { return s.fate.lost && s.result.GetReserve().GetLease() != nil })
	}
	if err := eventually("a Reserve was carried out and its answer lost", lost); err != nil {
		return err
	}
	all := k.seen.of(takes)
	session := idOf(all[len(all)-1].command).GetSession()
	err = k.retry("close the session", func(ctx context.Context) error {
		quotas, err := k.cluster.quotas()
		if err != nil {
			return err
		}
		_, err = quotas.CloseSession(ctx, &quotav1.CloseSessionRequest{Session: session})
		return err
	})
	if err != nil {
		return err
	}
	k.seen.set(nil)
	a, err := p.wait()
	if err == nil {
		err = expect(a, unknown, "a Reserve that was carried out, whose answer and session are lost")
	}
	if err != nil {
		return err
	}
	if err := k.held(quota, 2); err != nil {
		return err
	}
	_, err = reserve(d, quota, applied)
	return err
}
