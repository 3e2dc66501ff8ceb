package accounts

import "github.com/quotad/quotad/fsm/entry"

// cached is a power of two: how many accounts are found without a search.
const cached = 1 << 10

// cache is what was looked up lately and may be changed. It decides nothing: a miss is looked up.
type cache struct {
	byNumber [cached]*Account
	// byName leads to an account that may be gone.
	byName [cached]accountName
}

// find returns an account; nil: look it up.
func (r *cache) find(number uint64) *Account {
	if a := r.byNumber[number%cached]; a != nil && a.Number == number {
		return a
	}
	return nil
}

// keep remembers an account as it is now.
func (r *cache) keep(a *Account) { r.byNumber[a.Number%cached] = a }

// forget forgets an account that is dropped.
func (r *cache) forget(number uint64) {
	if r.find(number) != nil {
		r.byNumber[number%cached] = nil
	}
}

// name returns the place where an account's name would be remembered.
func (r *cache) name(parent uint64, name string) *accountName {
	return &r.byName[(uint64(entry.HashName(name))+parent)%cached]
}
