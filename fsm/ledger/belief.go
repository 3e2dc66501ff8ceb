package ledger

import (
	"fmt"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// MaxWindowClosing is the longest time for which one caller's reports close or lower a window.
const MaxWindowClosing = fixed.Hour

// Belief is how far callers' reports about a rate are believed (docs/decisions/0034-reports-of-rates.md). The
// unconfirmed reports of one caller hold a rate back for as long as the caller could close it, and then not for as long
// again. So false reports hold it back half of the time at most. What a refusal of the provider or another caller
// confirms is believed beyond that. A fleet with one token is one caller: the first refusal that it meets confirms what
// others use.
type Belief struct {
	// teller reported last: the amount said at saidAt (cluster time).
	teller       string
	said, saidAt int64
	// firm is the amount confirmed at firmAt.
	firm, firmAt int64
	// since is when more than firm was first believed in the present cycle; 0: it was not.
	since int64
}

// Believe returns how much is believed of an amount that a caller reports to be held back: all if the provider refused.
// bound is how long one caller's reports hold (nanoseconds).
func (w *Belief) Believe(caller string, amount int64, refused bool, now, bound int64) int64 {
	if amount <= 0 {
		return 0
	}
	if now-w.firmAt >= bound {
		w.firm, w.firmAt = 0, 0
	}
	confirmed := int64(0)
	switch {
	case refused:
		confirmed = amount
	case w.teller != "" && w.teller != caller && now-w.saidAt < bound:
		confirmed = min(amount, w.said)
	}
	if confirmed > 0 && confirmed >= w.firm {
		w.firm, w.firmAt = confirmed, now
	}
	w.teller, w.said, w.saidAt = caller, amount, now
	if amount <= w.firm {
		return amount
	}
	if w.since == 0 || now-w.since >= 2*bound {
		w.since = max(now, 1)
	}
	if now-w.since < bound {
		return amount
	}
	return w.firm
}

// EncodeBelief returns nil if nobody reported.
func EncodeBelief(w *Belief) *logpb.SnapshotWord {
	if *w == (Belief{}) {
		return nil
	}
	return &logpb.SnapshotWord{Teller: w.teller, Said: w.said, SaidNs: w.saidAt, Firm: w.firm, FirmNs: w.firmAt, SinceNs: w.since}
}

// TakeBelief restores a belief from a snapshot.
func TakeBelief(encoded *logpb.SnapshotWord) (w Belief, err error) {
	if encoded == nil {
		return w, nil
	}
	w = Belief{
		teller: encoded.Teller, said: encoded.Said, saidAt: encoded.SaidNs, firm: encoded.Firm, firmAt: encoded.FirmNs, since: encoded.SinceNs,
	}
	for _, n := range []int64{w.said, w.saidAt, w.firm, w.firmAt, w.since} {
		if n < 0 {
			return w, fmt.Errorf("somebody said %d at %d, confirmed are %d at %d, since %d", w.said, w.saidAt, w.firm, w.firmAt, w.since)
		}
	}
	return w, nil
}
