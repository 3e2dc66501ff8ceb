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
	// accounts are found by number, accountNames by name; of the latter the account may be gone.
	accounts     [recentAccounts]*account
	accountNames [recentAccounts]accountName
}

// recentAccounts is a power of two: how many accounts are found without a search.
const recentAccounts = 1 << 10

// account returns an account; nil: look it up.
func (r *recent) account(number uint64) *account {
	if a := r.accounts[number%recentAccounts]; a != nil && a.number == number {
		return a
	}
	return nil
}

// keepAccount remembers an account as it is now.
func (r *recent) keepAccount(a *account) { r.accounts[a.number%recentAccounts] = a }

// forgetAccount forgets an account that is dropped.
func (r *recent) forgetAccount(number uint64) {
	if r.account(number) != nil {
		r.accounts[number%recentAccounts] = nil
	}
}

// accountName returns the place where an account's name would be remembered.
func (r *recent) accountName(parent uint64, name string) *accountName {
	return &r.accountNames[(uint64(hashName(name))+parent)%recentAccounts]
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
