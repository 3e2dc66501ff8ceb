package entry

import (
	"unicode/utf8"

	"github.com/quotad/quotad/fsm/logpb"
)

// NameSets is the number of sets of two names each; a power of two.
const NameSets = 1 << 12

// Names caches recently used names, so that a frequent name is one string, and its quota's number is found without a
// search. It never affects results.
type Names struct{ sets [NameSets][2]known }

// known is a name and its quota's number; 0: not looked up, or no such quota.
type known struct {
	name   string
	number uint32
}

// of returns a name; false: it is not UTF-8.
func (n *Names) of(data []byte) (string, bool) {
	if k := find(n, data); k != nil {
		return k.name, true
	}
	if !utf8.Valid(data) {
		return "", false
	}
	return n.enter(string(data)).name, true
}

// shared returns the cached string of a name, and caches it if necessary.
func (n *Names) shared(name string) string {
	if name == "" {
		return ""
	}
	if k := find(n, name); k != nil {
		return k.name
	}
	return n.enter(name).name
}

// ShareResult makes a decoded result share its quota names with other results. Names are most of a stored result's
// size, and results that the state produced itself share them.
func (n *Names) ShareResult(result *logpb.Result) {
	granted := result.GetGranted()
	for _, items := range [][]*logpb.GrantedItem{
		granted.GetItems(), granted.GetConsumed().GetItems(), result.GetConsumed().GetItems(),
		result.GetSettled().GetReturned(), result.GetSettled().GetOverrun(), result.GetReleased().GetReturned(),
	} {
		for _, item := range items {
			item.Quota, item.InsteadOf = n.shared(item.Quota), n.shared(item.InsteadOf)
			item.Pool, item.Member = n.shared(item.Pool), n.shared(item.Member)
		}
	}
	if refusal := result.GetRefusal(); refusal != nil {
		refusal.Quota = n.shared(refusal.Quota)
	}
}

// find returns the cached entry of a name, nil if there is none.
func find[T string | []byte](n *Names, name T) *known {
	set := &n.sets[HashName(name)%NameSets]
	for i := range set {
		if set[i].name == string(name) {
			return &set[i]
		}
	}
	return nil
}

// enter caches a name, and evicts the older one of its set.
func (n *Names) enter(name string) *known {
	set := &n.sets[HashName(name)%NameSets]
	set[0], set[1] = known{name: name}, set[0]
	return &set[0]
}

// Number returns the number of the quota with a name; 0: not cached.
func (n *Names) Number(name string) uint32 {
	if k := find(n, name); k != nil {
		return k.number
	}
	return 0
}

// Learn caches the number of the quota with a name.
func (n *Names) Learn(name string, number uint32) {
	k := find(n, name)
	if k == nil {
		k = n.enter(name)
	}
	k.number = number
}

// Forget removes the number of a deleted quota.
func (n *Names) Forget(name string) {
	if k := find(n, name); k != nil {
		k.number = 0
	}
}

// HashName returns a hash of a name for caches, which never affect results. It takes eight bytes at a time. Multiplying
// by the golden ratio spreads them upwards, and the shift brings them down again.
func HashName[T string | []byte](name T) uint32 {
	const golden = 0x9e3779b97f4a7c15
	hash := uint64(len(name))
	for ; len(name) >= 8; name = name[8:] {
		hash = (hash ^ word(name)) * golden
		hash ^= hash >> 32
	}
	var rest uint64
	for i := range len(name) {
		rest = rest<<8 | uint64(name[i])
	}
	hash = (hash ^ rest) * golden
	hash ^= hash >> 32
	return uint32(hash * golden >> 32)
}

// word returns the first eight bytes.
func word[T string | []byte](b T) uint64 {
	_ = b[7]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}
