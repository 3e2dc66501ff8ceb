package fsm

import "github.com/quotad/quotad/fsm/entry"

// cachedQuotas is a power of two: how many quotas are found without a search by number.
const cachedQuotas = 1 << 12

// cache is what was looked up lately and may be changed. It decides nothing: a miss is looked up.
type cache struct {
	quotas [cachedQuotas]*quota
	names  entry.Names
}

// find returns a quota that may be changed; nil: look it up.
func (r *cache) find(number uint32, generation uint64) *quota {
	if q := r.quotas[number%cachedQuotas]; q != nil && q.number == number && q.MadeIn(generation) {
		return q
	}
	return nil
}

// keep remembers a quota that may be changed.
func (r *cache) keep(q *quota) { r.quotas[q.number%cachedQuotas] = q }

// forget forgets a quota that is deleted.
func (r *cache) forget(q *quota) {
	r.quotas[q.number%cachedQuotas] = nil
	r.names.Forget(q.name)
}

// cachedHolders is a power of two: of how many holders' names the digest is remembered.
const cachedHolders = 1 << 10

// digested is a holder's name and its digest.
type digested struct {
	name   string
	digest uint64
}

// digests are digests of holders' names that were looked up lately.
type digests [cachedHolders]digested

// of returns the digest of a holder's name.
func (d *digests) of(name string) uint64 {
	at := &d[entry.HashName(name)%cachedHolders]
	if at.digest == 0 || at.name != name {
		*at = digested{name: name, digest: entry.DigestHolder(name)}
	}
	return at.digest
}
