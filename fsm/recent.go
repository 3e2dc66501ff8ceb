package fsm

// recentQuotas is a power of two: how many quotas are found without a search by number.
const recentQuotas = 1 << 12

// recent is what was asked for lately and may be changed. It decides nothing: what is not in it is looked up.
type recent struct {
	quotas [recentQuotas]*quota
	names  names
	holder *holder
	// digested are digests of holders' names.
	digested [recentHolders]digested
}

// recentHolders is a power of two: of how many holders' names the digest is remembered.
const recentHolders = 1 << 10

// digested is a holder's name and its digest.
type digested struct {
	name   string
	digest uint64
}

// digestHolder returns the digest of a holder's name.
func (r *recent) digestHolder(name string) uint64 {
	at := &r.digested[hashName(name)%recentHolders]
	if at.digest == 0 || at.name != name {
		*at = digested{name: name, digest: digestHolder(name)}
	}
	return at.digest
}

// find returns a quota that may be changed; nil: look it up.
func (r *recent) find(number uint32, generation uint64) *quota {
	if q := r.quotas[number%recentQuotas]; q != nil && q.number == number && q.generation == generation {
		return q
	}
	return nil
}

// keep remembers a quota that may be changed.
func (r *recent) keep(q *quota) { r.quotas[q.number%recentQuotas] = q }

// forget forgets a quota that is deleted.
func (r *recent) forget(q *quota) {
	r.quotas[q.number%recentQuotas] = nil
	r.names.forget(q.name)
}
