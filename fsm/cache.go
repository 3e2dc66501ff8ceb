package fsm

import "github.com/quotad/quotad/fsm/entry"

// cachedQuotas is how many quotas the cache finds by number; a power of two.
const cachedQuotas = 1 << 12

// cache holds recently used quotas that may be changed. It never affects results: after a miss, the tables are
// searched.
type cache struct {
	quotas [cachedQuotas]*quota
	names  entry.Names
}

// find returns a quota that may be changed; nil: not cached.
func (r *cache) find(number uint32, generation uint64) *quota {
	if q := r.quotas[number%cachedQuotas]; q != nil && q.number == number && q.MadeIn(generation) {
		return q
	}
	return nil
}

// keep caches a quota that may be changed.
func (r *cache) keep(q *quota) { r.quotas[q.number%cachedQuotas] = q }

// forget removes a deleted quota.
func (r *cache) forget(q *quota) {
	r.quotas[q.number%cachedQuotas] = nil
	r.names.Forget(q.name)
}

// cachedHolders is how many digests of holders' names are cached; a power of two.
const cachedHolders = 1 << 10

// digested is a holder's name and its digest.
type digested struct {
	name   string
	digest uint64
}

// digests caches recently used digests of holders' names.
type digests [cachedHolders]digested

// of returns the digest of a holder's name.
func (d *digests) of(name string) uint64 {
	at := &d[entry.HashName(name)%cachedHolders]
	if at.digest == 0 || at.name != name {
		*at = digested{name: name, digest: entry.DigestHolder(name)}
	}
	return at.digest
}
