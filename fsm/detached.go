package fsm

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
)

// pageBytes is the size of a page, unless one record takes more.
const pageBytes = 4096

// page holds detached operations: records of operations whose leases have ended, in the order of leases and numbers.
// Each consumed amount that is never settled becomes one, and stays until it stops counting: a minute's calls, or a
// day's. So they are packed: they take a quarter of the memory of objects, the garbage collector skips them, and they
// are listed together.
type page struct {
	cow.Made
	// from is the page's key: none of its detached records comes before it.
	from operationKey
	// last is the key of its last record, or of one since dropped.
	last operationKey
	// check is when to check its records again (cluster time): the earliest of their times.
	check  int64
	packed []byte
}

// operationKey orders detached records.
type operationKey struct{ lease, op uint64 }

func (k operationKey) less(than operationKey) bool {
	return k.lease < than.lease || k.lease == than.lease && k.op < than.op
}

// keptPage is a page with its key next to the pointer: a search reads only the page that it finds.
type keptPage struct {
	from operationKey
	*page
}

func lessPage(a, b keptPage) bool { return a.from.less(b.from) }

// pageDue says when to check a page again.
type pageDue struct {
	at   int64
	from operationKey
}

func lessPageDue(a, b pageDue) bool { return a.at < b.at || a.at == b.at && a.from.less(b.from) }

// pageOf returns the page where a detached record is, or would be: mostly the last. It is nil if the record comes
// before all pages.
func (rs *records) pageOf(key operationKey) (found *page) {
	if last, ok := rs.detached.Max(); !ok || !key.less(last.from) {
		return last.page
	}
	rs.detached.Descend(keptPage{from: key}, func(p keptPage) bool {
		found = p.page
		return false
	})
	return found
}

// detachedOperation returns the record of an ended lease's operation, nil if there is none. Changes need keepDetached.
func (rs *records) detachedOperation(lease, op uint64) *operation {
	key := operationKey{lease, op}
	p := rs.pageOf(key)
	if p == nil {
		return nil
	}
	from, to, found := p.seek(key)
	if !found {
		return nil
	}
	return unpack(p.packed[from:to])
}

// eachOperation calls fn for the records of all operations, by lease and number, until it returns false.
func (s *State) eachOperation(fn func(*operation) bool) bool {
	attached, going := s.attached(), true
	s.records.detached.Scan(func(p keptPage) bool {
		for rest := p.packed; len(rest) > 0 && going; {
			var packed []byte
			packed, rest = cut(rest)
			o := unpack(packed)
			going = attached.eachBelow(operationKey{o.lease, o.op}, fn) && fn(o)
		}
		return going
	})
	return going && attached.eachBelow(operationKey{math.MaxUint64, math.MaxUint64}, fn)
}

// keepDetached enters the record of an ended lease's operation, or replaces the record with the same check time.
func (rs *records) keepDetached(o *operation) {
	key := operationKey{o.lease, o.op}
	rs.packing = pack(rs.packing[:0], o)
	p := rs.editPage(key, o.check)
	from, to, found := p.seek(key)
	rs.book.Add(o.account, accounts.Operations, orphanBytes(o, rs.packing)-rs.chargedFor(p.packed[from:to]))
	if !found {
		rs.count++
		if from > 0 && from == len(p.packed) && from+len(rs.packing) > pageBytes {
			p = &page{Made: cow.In(rs.generation), from: key, check: o.check, packed: make([]byte, 0, pageBytes)} // the next ones mostly follow
			rs.enterPage(p)
			from, to = 0, 0
		}
	}
	p.packed = slices.Replace(p.packed, from, to, rs.packing...)
	if from+len(rs.packing) == len(p.packed) {
		p.last = key
	}
	if o.check < p.check {
		rs.checks.Delete(pageDue{p.check, p.from})
		p.check = o.check
		rs.checks.Set(pageDue{p.check, p.from})
	}
	if len(p.packed) > pageBytes {
		rs.split(p)
	}
}

// The most that an overrun adds to a packed detached record, and the digest of the actual amounts.
const (
	overrunBytes = 48
	actualBytes  = 16
)

// orphanBytes returns the charge for the record of an ended lease's operation: its length and, until it is settled, the
// room that overruns may take.
func orphanBytes(o *operation, packed []byte) int64 {
	if o.actual != 0 {
		return int64(len(packed))
	}
	return int64(len(packed)) + actualBytes + overrunBytes*int64(len(o.charges))
}

// chargedFor returns the charge for a packed detached record, 0 if it is empty.
func (rs *records) chargedFor(packed []byte) int64 {
	if len(packed) == 0 {
		return 0
	}
	unpackDue(packed, &rs.scanned)
	return orphanBytes(&rs.scanned, packed)
}

// editPage returns, for update, the page for a detached record that is entered.
func (rs *records) editPage(key operationKey, check int64) *page {
	p := rs.pageOf(key)
	if p != nil && p.MadeIn(rs.generation) {
		return p
	}
	c := &page{from: key, check: check}
	if p != nil {
		*c = *p
	} else if first, ok := rs.detached.Min(); ok {
		rs.dropPage(first.page)
		*c = *first.page
		c.from = key // the record comes before all others
	}
	c.Made, c.packed = cow.In(rs.generation), slices.Clone(c.packed)
	rs.enterPage(c)
	return c
}

func (rs *records) enterPage(p *page) {
	rs.detached.Load(keptPage{p.from, p}) // mostly the last
	rs.checks.Load(pageDue{p.check, p.from})
}

func (rs *records) dropPage(p *page) {
	rs.detached.Delete(keptPage{from: p.from})
	rs.checks.Delete(pageDue{p.check, p.from})
}

// split makes two pages of one, if it has more than one detached record.
func (rs *records) split(p *page) {
	var half, last int
	for half < len(p.packed)/2 {
		first, _ := cut(p.packed[half:])
		half, last = half+len(first), half
	}
	if half == len(p.packed) {
		half = last
	}
	if half == 0 {
		return
	}
	rs.dropPage(p)
	rs.enterPage(rs.pageWith(p.from, p.packed[:half]))
	rs.enterPage(rs.pageWith(keyOf(p.packed[half:]), p.packed[half:]))
}

// pageWith returns a page with a copy of packed detached records.
func (rs *records) pageWith(from operationKey, packed []byte) *page {
	p := &page{Made: cow.In(rs.generation), from: from, check: math.MaxInt64, packed: slices.Clone(packed)}
	for len(packed) > 0 {
		p.last = keyOf(packed)
		var first []byte
		first, packed = cut(packed)
		unpackDue(first, &rs.scanned)
		p.check = min(p.check, rs.scanned.check)
	}
	return p
}

// expire drops detached records that stopped counting.
func (rs *records) expire() {
	for done := 0; done < maxForgottenPerEntry; {
		first, ok := rs.checks.Min()
		if !ok || first.at > rs.clock.Now {
			return
		}
		p, _ := rs.detached.Get(keptPage{from: first.from})
		done += 1 + rs.expirePage(p.page)
	}
}

// expirePage drops the detached records of a page that stopped counting, and returns how many.
func (rs *records) expirePage(p *page) (forgotten int) {
	rs.dropPage(p)
	kept := rs.packing[:0]
	o := &rs.scanned
	var bill runBill
	for rest := p.packed; len(rest) > 0; {
		var packed []byte
		packed, rest = cut(rest)
		switch unpackDue(packed, o); {
		case o.check > rs.clock.Now:
			kept = append(kept, packed...)
		case rs.amounts.staysOn(o):
			o, before := unpack(packed), len(kept)
			o.check = rs.amounts.nextCheck(o)
			kept = pack(kept, o)
			bill.add(rs, o.account, orphanBytes(o, kept[before:])-orphanBytes(o, packed))
		default:
			rs.amounts.closeRecord(o)
			bill.add(rs, o.account, -orphanBytes(o, packed))
			forgotten++
		}
	}
	bill.settle(rs)
	if rs.packing = kept; len(kept) > 0 {
		p := rs.pageWith(rs.joined(p.from))
		rs.enterPage(p)
		if len(p.packed) > pageBytes { // a later check time may take a byte more
			rs.split(p)
		}
	}
	rs.count -= int64(forgotten)
	return forgotten
}

// joined returns the packed records that replace a dropped page, together with those of a neighbour page if both are
// small. Without this, pages with one record each would take four times the charged bytes.
func (rs *records) joined(from operationKey) (first operationKey, packed []byte) {
	few := func(p *page) bool { return p != nil && len(p.packed)+len(rs.packing) <= pageBytes/2 }
	if before := rs.pageOf(from); few(before) {
		rs.dropPage(before)
		rs.packing = slices.Insert(rs.packing, 0, before.packed...)
		return before.from, rs.packing
	}
	if after := rs.pageAfter(from); few(after) {
		rs.dropPage(after)
		rs.packing = append(rs.packing, after.packed...)
	}
	return from, rs.packing
}

// pageAfter returns the first page at or after a key, nil if there is none.
func (rs *records) pageAfter(key operationKey) (found *page) {
	rs.detached.Ascend(keptPage{from: key}, func(p keptPage) bool {
		found = p.page
		return false
	})
	return found
}

// runBill sums the charges of a run of detached records: mostly a whole page belongs to one caller.
type runBill struct {
	account uint64
	bytes   int64
}

func (b *runBill) add(rs *records, account uint64, bytes int64) {
	if account != b.account {
		b.settle(rs)
		b.account = account
	}
	b.bytes += bytes
}

func (b *runBill) settle(rs *records) {
	if b.bytes != 0 {
		rs.book.Add(b.account, accounts.Operations, b.bytes)
		b.bytes = 0
	}
}

// liveDetached returns the record of an ended lease's operation, nil if there is none or it is due to be dropped.
func (rs *records) liveDetached(lease, op uint64) *operation {
	o := rs.detachedOperation(lease, op)
	if o == nil || o.check <= rs.clock.Now && !rs.amounts.staysOn(o) {
		return nil
	}
	return o
}

// seek returns where a detached record is in a page, or where it would be inserted.
func (p *page) seek(key operationKey) (from, to int, found bool) {
	if p.last.less(key) {
		return len(p.packed), len(p.packed), false
	}
	for rest := p.packed; len(rest) > 0; from = to {
		var packed []byte
		packed, rest = cut(rest)
		to = from + len(packed)
		switch at := keyOf(packed); {
		case at == key:
			return from, to, true
		case key.less(at):
			return from, from, false
		}
	}
	return from, from, false
}

// cut splits packed detached records into the first one and the rest.
func cut(packed []byte) (first, rest []byte) {
	size, n := binary.Uvarint(packed)
	end := n + int(size)
	return packed[:end], packed[end:]
}

// pack appends a detached record: its length, then the fields that unpackDue and unpack read.
func pack(to []byte, o *operation) []byte {
	var room [256]byte
	b := room[:0]
	for _, n := range [...]uint64{o.lease, o.op, o.account, o.actual} {
		b = binary.AppendUvarint(b, n)
	}
	b = binary.AppendUvarint(binary.AppendVarint(b, o.check), uint64(len(o.charges)))
	for i := range o.charges {
		c := &o.charges[i]
		b = binary.AppendUvarint(b, uint64(c.quota))
		var bits uint64
		if c.ancestor {
			bits |= ancestorBit
		}
		if c.overrun {
			bits |= overrunBit
		}
		b = binary.AppendUvarint(b, bits|uint64(c.class)<<classShift)
		for _, n := range [...]int64{c.amount, c.consumed, c.unspent, c.end, c.window, c.before} {
			b = binary.AppendVarint(b, n)
		}
	}
	for _, n := range [...]uint64{o.fence, o.asked, o.unspent} {
		b = binary.AppendUvarint(b, n)
	}
	for _, n := range [...]int64{o.spendBy, o.spendByWall, o.transit, o.beganWall} {
		b = binary.AppendVarint(b, n)
	}
	b = append(b, o.holder...)
	return append(binary.AppendUvarint(to, uint64(len(b))), b...)
}

// Bits of a packed charge; its class is above them.
const (
	ancestorBit = 1
	overrunBit  = 2
	classShift  = 2
)

// unpacker reads what pack wrote.
type unpacker struct{ rest []byte }

func open(packed []byte) unpacker {
	_, n := binary.Uvarint(packed)
	return unpacker{packed[n:]}
}

func (u *unpacker) unsigned() uint64 {
	v, n := binary.Uvarint(u.rest)
	u.rest = u.rest[n:]
	return v
}

func (u *unpacker) signed() int64 {
	v, n := binary.Varint(u.rest)
	u.rest = u.rest[n:]
	return v
}

// keyOf returns the key of the first packed detached record.
func keyOf(packed []byte) operationKey {
	u := open(packed)
	return operationKey{u.unsigned(), u.unsigned()}
}

// unpackDue reads into o the fields that expiry needs: lease and number, account, settled or not, check time, and
// charges.
func unpackDue(packed []byte, o *operation) unpacker {
	u := open(packed)
	o.lease, o.op, o.account, o.actual, o.check = u.unsigned(), u.unsigned(), u.unsigned(), u.unsigned(), u.signed()
	charges := u.unsigned()
	o.charges = slices.Grow(o.charges[:0], int(charges))
	for range charges {
		c := charge{quota: uint32(u.unsigned())}
		bits := u.unsigned()
		c.ancestor, c.overrun, c.class = bits&ancestorBit != 0, bits&overrunBit != 0, int8(bits>>classShift)
		c.amount, c.consumed, c.unspent = u.signed(), u.signed(), u.signed()
		c.end, c.window, c.before = u.signed(), u.signed(), u.signed()
		o.charges = append(o.charges, c)
	}
	return u
}

// unpack decodes a whole detached record.
func unpack(packed []byte) *operation {
	o := &operation{detached: true}
	o.charges = o.single[:0]
	u := unpackDue(packed, o)
	o.fence, o.asked, o.unspent = u.unsigned(), u.unsigned(), u.unsigned()
	o.spendBy, o.spendByWall, o.transit, o.beganWall = u.signed(), u.signed(), u.signed(), u.signed()
	o.holder = string(u.rest)
	return o
}
