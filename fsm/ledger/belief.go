package ledger

import (
	"fmt"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// MaxWindowClosing is for how long one caller's word closes or lowers a window at most.
const MaxWindowClosing = fixed.Hour

// Belief is how far what callers say of a rate is believed (docs/decisions/0034-reports-of-rates.md). What one caller alone says holds a
// rate back for as long as it could close it, and then not for as long again: so one that lies holds it back half of the time at most. What
// a refusal of the provider or another caller confirms is believed beyond that. A fleet behind one token is one caller: what others use is
// confirmed by the first refusal that it meets.
type Belief struct {
	// teller said something last: so much, at this moment (cluster time).
	teller       string
	said, saidAt int64
	// firm was confirmed at firmAt.
	firm, firmAt int64
	// since is when more than that was believed for the first time, of the present turn; 0: it was not.
	since int64
}

// Believe returns how much is believed of what a caller says is to be held back. Of the provider's refusal all is; bound is how far one
// caller's word goes.
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

// EncodeBelief leaves out what nobody said.
func EncodeBelief(w *Belief) *logpb.SnapshotWord {
	if *w == (Belief{}) {
		return nil
	}
	return &logpb.SnapshotWord{Teller: w.teller, Said: w.said, SaidNs: w.saidAt, Firm: w.firm, FirmNs: w.firmAt, SinceNs: w.since}
}

// TakeBelief enters what a snapshot has of a belief.
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
