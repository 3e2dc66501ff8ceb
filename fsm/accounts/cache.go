package accounts

import "github.com/quotad/quotad/fsm/entry"

// cached is how many accounts are found without a search; a power of two.
const cached = 1 << 10

// cache holds recently used accounts. It never affects results: after a miss, the tables are searched.
type cache struct {
	byNumber [cached]*Account
	// byName may lead to accounts that are dropped.
	byName [cached]accountName
}

// find returns an account; nil: not cached.
func (r *cache) find(number uint64) *Account {
	if a := r.byNumber[number%cached]; a != nil && a.Number == number {
		return a
	}
	return nil
}

// keep caches an account as it is now.
func (r *cache) keep(a *Account) { r.byNumber[a.Number%cached] = a }

// forget removes a dropped account.
func (r *cache) forget(number uint64) {
	if r.find(number) != nil {
		r.byNumber[number%cached] = nil
	}
}

// name returns the slot for an account's name.
func (r *cache) name(parent uint64, name string) *accountName {
	return &r.byName[(uint64(entry.HashName(name))+parent)%cached]
}
