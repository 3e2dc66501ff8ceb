package ledger

import (
	"fmt"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// MaxWindowClosing is the longest time for which one caller's reports close or lower a window.
const MaxWindowClosing = fixed.Hour

// Trust is how far callers' reports about a rate are trusted (docs/decisions/0034-reports-of-rates.md). The unconfirmed
// reports of one caller hold a rate back for as long as the caller could close it, and then not for an equally long
// time. So false reports hold it back half of the time at most. An amount that a refusal of the provider or another
// caller confirms is trusted beyond that. A fleet with one token is one caller: the first refusal that it meets confirms
// what others use.
type Trust struct {
	// caller reported last: the amount reported at reportedAt (cluster time).
	caller               string
	reported, reportedAt int64
	// confirmed is the amount confirmed at confirmedAt.
	confirmed, confirmedAt int64
	// since is when more than the confirmed amount was first trusted in the present cycle; 0: it was not.
	since int64
}

// Accept records a caller's report that an amount is to be held back, and returns how much of it is trusted: all if the
// provider refused. bound is how long one caller's reports hold (nanoseconds).
func (t *Trust) Accept(caller string, amount int64, refused bool, now, bound int64) int64 {
	if amount <= 0 {
		return 0
	}
	if now-t.confirmedAt >= bound {
		t.confirmed, t.confirmedAt = 0, 0
	}
	confirmed := int64(0) // by this report
	switch {
	case refused:
		confirmed = amount
	case t.caller != "" && t.caller != caller && now-t.reportedAt < bound:
		confirmed = min(amount, t.reported)
	}
	if confirmed > 0 && confirmed >= t.confirmed {
		t.confirmed, t.confirmedAt = confirmed, now
	}
	t.caller, t.reported, t.reportedAt = caller, amount, now
	if amount <= t.confirmed {
		return amount
	}
	if t.since == 0 || now-t.since >= 2*bound {
		t.since = max(now, 1)
	}
	if now-t.since < bound {
		return amount
	}
	return t.confirmed
}

// EncodeTrust returns nil if nobody reported.
func EncodeTrust(t *Trust) *logpb.SnapshotTrust {
	if *t == (Trust{}) {
		return nil
	}
	return &logpb.SnapshotTrust{
		Caller: t.caller, Reported: t.reported, ReportedNs: t.reportedAt, Confirmed: t.confirmed, ConfirmedNs: t.confirmedAt, SinceNs: t.since,
	}
}

// TakeTrust restores trust from a snapshot.
func TakeTrust(encoded *logpb.SnapshotTrust) (t Trust, err error) {
	if encoded == nil {
		return t, nil
	}
	t = Trust{
		caller: encoded.Caller, reported: encoded.Reported, reportedAt: encoded.ReportedNs,
		confirmed: encoded.Confirmed, confirmedAt: encoded.ConfirmedNs, since: encoded.SinceNs,
	}
	for _, n := range []int64{t.reported, t.reportedAt, t.confirmed, t.confirmedAt, t.since} {
		if n < 0 {
			return t, fmt.Errorf("somebody said %d at %d, confirmed are %d at %d, since %d",
				t.reported, t.reportedAt, t.confirmed, t.confirmedAt, t.since)
		}
	}
	return t, nil
}
