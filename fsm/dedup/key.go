package dedup

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// applyKeyed carries out a request with an idempotency key, once while the key is remembered.
func (t *Table) applyKeyed(host Host, command *logpb.Command) *logpb.Result {
	at := host.Moment()
	key, known, isKnown := t.keyOf(&at, command)
	digest := host.Digest(command)
	if isKnown {
		if known.digest != digest {
			return reused("this idempotency key was used for another request")
		}
		return known.result
	}
	for _, b := range [...]accounts.Budget{accounts.Keys, accounts.Results} {
		switch at.Accounts.Taking(host.Payer(), b, at.Now) {
		case accounts.AtBudget:
			return at.Accounts.OverBudget(b, "use a session and acknowledge its requests; keys go at the end of their life")
		case accounts.AllTaken:
			return effect.Fail(logpb.Reason_REASON_SESSIONS_FULL, "no more idempotency keys can be remembered",
				"come back later, or use a session and acknowledge its requests")
		case accounts.MayTake:
		}
	}
	result := host.Apply(command, RequestID{Key: key})
	t.keepKey(at.Accounts, key, keyResult{digest: digest, result: result, made: at.Now, account: at.Accounts.Open(host.Payer())})
	return result
}

// lives reports whether a key's life has not ended.
func (k *keyResult) lives(at *Moment) bool {
	return fixed.AddSaturated(k.made, at.Accounts.Limits.KeyLife) > at.Now
}

func (t *Table) keepKey(book *accounts.Book, key string, k keyResult) {
	k.size = sizeOf(k.result)
	if old, had := t.keys.Get(key); had {
		t.dropKey(book, key, old)
	}
	t.keys.Set(key, k)
	t.bytes += k.size
	book.Add(k.account, accounts.Keys, 1)
	book.Add(k.account, accounts.Results, k.size)
	t.keyEnds.Set(dueByKey{At: k.made, ID: key})
}

func (t *Table) dropKey(book *accounts.Book, key string, k keyResult) {
	t.keys.Delete(key)
	t.bytes -= k.size
	book.Add(k.account, accounts.Keys, -1)
	book.Add(k.account, accounts.Results, -k.size)
	t.keyEnds.Delete(dueByKey{At: k.made, ID: key})
}

// ExpireKeys drops up to most idempotency keys whose life is over.
func (t *Table) ExpireKeys(host Host, most int) {
	at := host.Moment()
	isOld := func(d dueByKey) bool { return fixed.AddSaturated(d.At, at.Accounts.Limits.KeyLife) <= at.Now }
	for _, end := range cow.TakeDue(t.keyEnds, most, isOld) {
		known, _ := t.keys.Get(end.ID)
		t.dropKey(at.Accounts, end.ID, known)
	}
}
