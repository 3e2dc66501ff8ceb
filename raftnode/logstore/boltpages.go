package logstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"
)

// bbolt trusts its pages. A flipped bit makes it panic, partly in goroutines of its own, read beyond the file, or start from the
// transaction before. So boltPages checks a file before bbolt opens it: from both meta pages to every element, by bbolt's file format.

// The format of a bbolt file. Numbers are in the byte order of the machine.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltPageHead   = 16
	boltMetaSize   = 64
	boltElement    = 16
	boltBucketHead = 16
	boltBranch     = 0x01
	boltLeaf       = 0x02
	boltFreelist   = 0x10
	boltNoFreelist = ^uint64(0)
	boltMaxDepth   = 64
)

// boltPages checks the pages of one file.
type boltPages struct {
	file     io.ReaderAt
	size     int64
	name     string
	pageSize uint64
	// end is the number of pages that the newest transaction counts; the ids are below it.
	end uint64
	// reached has the pages that the walk has visited.
	reached map[uint64]bool
	tops    []string
	// inLogs: the walk is in the bucket of the log, at entry lastIndex. gapEnds is the first entry after the last gap.
	inLogs             bool
	lastIndex, gapEnds uint64
}

// boltLogs is raft-boltdb's bucket of log entries, boltValues its bucket of term and vote.
const (
	boltLogs   = "logs"
	boltValues = "conf"
)

// checkBoltFile checks every page of a bbolt file that is in use, and that the file has the given buckets. It returns the first entry after
// the last gap of the log; 0: no gap. If another process has the file open for writing, it returns ErrDataDirInUse.
func checkBoltFile(path string, buckets ...string) (gapEnds uint64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	if err := lockShared(file); err != nil {
		return 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	name := filepath.Base(path)
	if name == walMetaFile {
		name = filepath.Join(filepath.Base(filepath.Dir(path)), name)
	}
	if info.Size() == 0 {
		return 0, &LostPartError{Dir: filepath.Dir(path), Part: name, Problem: "the file is empty"}
	}
	p := &boltPages{file: file, size: info.Size(), name: name, reached: map[uint64]bool{}}
	root, freelist, err := p.meta()
	if err != nil {
		return 0, err
	}
	if err := p.tree(root, nil, nil, 0, true); err != nil {
		return 0, err
	}
	for _, name := range buckets {
		if !slices.Contains(p.tops, name) {
			return 0, p.damaged(root, "bucket %q is missing", name)
		}
	}
	return p.gapEnds, p.freelist(freelist)
}

// lockShared takes a lock that keeps writers out of a bbolt file.
func lockShared(file *os.File) error {
	for started := time.Now(); ; {
		taken, err := tryLock(file, true)
		switch {
		case taken:
			return nil
		case err != nil:
			return fmt.Errorf("locking %s: %w", file.Name(), err)
		case time.Since(started) > lockPatience:
			return fmt.Errorf("%w: %s", ErrDataDirInUse, filepath.Dir(file.Name()))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *boltPages) damaged(page uint64, format string, args ...any) error {
	return &DamageError{File: p.name, Place: fmt.Sprintf("page %d", page), Problem: fmt.Sprintf(format, args...)}
}

// meta reads both meta pages and requires both to be intact: a disk writes the one sector of a meta page whole or not at all. If the newer
// page is damaged, bbolt would silently continue from the older one.
func (p *boltPages) meta() (root, freelist uint64, err error) {
	newest := uint64(0)
	for page := range uint64(2) {
		var data [boltPageHead + boltMetaSize]byte
		if _, err := p.file.ReadAt(data[:], int64(page*p.pageSize)); err != nil {
			return 0, 0, p.damaged(page, "cannot be read: %v", err)
		}
		meta := data[boltPageHead:]
		sum := fnv.New64a()
		_, _ = sum.Write(meta[:boltMetaSize-8])
		number := func(at int) uint64 { return binary.NativeEndian.Uint64(meta[at:]) }
		switch {
		case number(56) != sum.Sum64():
			return 0, 0, p.damaged(page, "checksum mismatch of a meta page")
		case binary.NativeEndian.Uint32(meta) != boltMagic || binary.NativeEndian.Uint32(meta[4:]) != boltVersion:
			return 0, 0, p.damaged(page, "unknown format of a meta page")
		}
		p.pageSize = uint64(binary.NativeEndian.Uint32(meta[8:]))
		if p.pageSize < 1024 || p.pageSize > 1<<16 {
			return 0, 0, p.damaged(page, "pages of %d bytes", p.pageSize)
		}
		if txid := number(48); txid >= newest {
			newest, root, freelist, p.end = txid, number(16), number(32), number(40)
		}
	}
	if p.end > uint64(p.size)/p.pageSize {
		return 0, 0, p.damaged(p.end-1, "the file is truncated: it has %d pages, but uses %d", uint64(p.size)/p.pageSize, p.end)
	}
	return root, freelist, nil
}

// page reads a page and its overflow pages. It refuses a page that was reached before.
func (p *boltPages) page(id uint64) (data []byte, flags uint16, count int, err error) {
	var head [boltPageHead]byte
	if id < 2 || id >= p.end {
		return nil, 0, 0, p.damaged(id, "referenced, but the file has pages 2 to %d", p.end-1)
	}
	if _, err := p.file.ReadAt(head[:], int64(id*p.pageSize)); err != nil {
		return nil, 0, 0, p.damaged(id, "cannot be read: %v", err)
	}
	overflow := uint64(binary.NativeEndian.Uint32(head[12:]))
	switch {
	case binary.NativeEndian.Uint64(head[:]) != id:
		return nil, 0, 0, p.damaged(id, "its header names page %d", binary.NativeEndian.Uint64(head[:]))
	case overflow >= p.end-id:
		return nil, 0, 0, p.damaged(id, "its header names %d more pages, but there are %d", overflow, p.end-id-1)
	}
	for i := id; i <= id+overflow; i++ {
		if p.reached[i] {
			return nil, 0, 0, p.damaged(i, "used twice")
		}
		p.reached[i] = true
	}
	data = make([]byte, (overflow+1)*p.pageSize)
	if _, err := p.file.ReadAt(data, int64(id*p.pageSize)); err != nil {
		return nil, 0, 0, p.damaged(id, "cannot be read: %v", err)
	}
	return data, binary.NativeEndian.Uint16(head[8:]), int(binary.NativeEndian.Uint16(head[10:])), nil
}

// tree walks the tree below a page. Its keys must be at least low and less than high; nil: no bound.
func (p *boltPages) tree(id uint64, low, high []byte, depth int, top bool) error {
	data, flags, count, err := p.page(id)
	if err != nil {
		return err
	}
	if depth > boltMaxDepth {
		return p.damaged(id, "the tree is deeper than %d pages", boltMaxDepth)
	}
	switch {
	case flags == boltLeaf && (count > 0 || depth == 0):
		return p.leaf(id, data, count, low, high, top)
	case flags == boltBranch && count > 0:
		return p.branch(id, data, count, low, high, depth, top)
	}
	return p.damaged(id, "not a page of a tree: kind %#x with %d elements", flags, count)
}

func (p *boltPages) branch(id uint64, data []byte, count int, low, high []byte, depth int, top bool) error {
	type child struct {
		key []byte
		id  uint64
	}
	children := make([]child, count)
	next := boltPageHead + count*boltElement
	for i := range children {
		at := boltPageHead + i*boltElement
		if next > len(data) {
			return p.damaged(id, "%d elements do not fit into the page", count)
		}
		key, end, err := p.bytes(id, data, at, next, binary.NativeEndian.Uint32(data[at:]), binary.NativeEndian.Uint32(data[at+4:]))
		if err != nil {
			return err
		}
		next, children[i] = end, child{key: key, id: binary.NativeEndian.Uint64(data[at+8:])}
	}
	for i, c := range children {
		if i > 0 && bytes.Compare(children[i-1].key, c.key) >= 0 || i > 0 && bytes.Compare(c.key, low) < 0 ||
			high != nil && bytes.Compare(c.key, high) >= 0 {
			return p.damaged(id, "keys are not in order")
		}
		from, to := c.key, high
		if i == 0 {
			from = low
		}
		if i+1 < count {
			to = children[i+1].key
		}
		if err := p.tree(c.id, from, to, depth+1, top); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks a page's elements. top: every element must be a bucket; otherwise none may be.
func (p *boltPages) leaf(id uint64, data []byte, count int, low, high []byte, top bool) error {
	var before []byte
	next := boltPageHead + count*boltElement
	for i := range count {
		at := boltPageHead + i*boltElement
		if next > len(data) {
			return p.damaged(id, "%d elements do not fit into the page", count)
		}
		number := func(field int) uint32 { return binary.NativeEndian.Uint32(data[at+4*field:]) }
		key, end, err := p.bytes(id, data, at, next, number(1), number(2))
		if err != nil {
			return err
		}
		value, end, err := p.bytes(id, data, at, end, number(1)+number(2), number(3))
		if err != nil {
			return err
		}
		next = end
		if len(key) == 0 || i > 0 && bytes.Compare(before, key) >= 0 || bytes.Compare(key, low) < 0 ||
			high != nil && bytes.Compare(key, high) >= 0 {
			return p.damaged(id, "keys are not in order")
		}
		before = key
		switch flags := number(0); {
		case !top && flags == 0:
			p.indexed(key)
		case top && flags == 1:
			p.tops = append(p.tops, string(key))
			p.inLogs, p.lastIndex = string(key) == boltLogs, 0
			if err := p.bucket(id, value); err != nil {
				return err
			}
		default:
			return p.damaged(id, "element %d is of kind %#x", i, flags)
		}
	}
	return nil
}

// indexed records gaps in the log. A flipped bit that hides entries, such as behind an older copy of a page, leaves a gap.
func (p *boltPages) indexed(key []byte) {
	if !p.inLogs || len(key) != 8 {
		return
	}
	index := binary.BigEndian.Uint64(key)
	if p.lastIndex > 0 && index != p.lastIndex+1 {
		p.gapEnds = index
	}
	p.lastIndex = index
}

// bytes returns a part of a page, at an offset relative to an element, and where the part ends. The parts of a page are contiguous.
func (p *boltPages) bytes(id uint64, data []byte, at, begin int, from, length uint32) (part []byte, end int, err error) {
	if uint64(at)+uint64(from) != uint64(begin) || uint64(begin)+uint64(length) > uint64(len(data)) {
		return nil, 0, p.damaged(id, "elements are at wrong offsets")
	}
	end = begin + int(length)
	return data[begin:end], end, nil
}

// bucket walks the tree that a bucket's value refers to, or the page that it contains.
func (p *boltPages) bucket(id uint64, value []byte) error {
	if len(value) < boltBucketHead {
		return p.damaged(id, "a bucket is truncated")
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return p.tree(root, nil, nil, 0, false)
	}
	inline := value[boltBucketHead:]
	if len(inline) < boltPageHead || binary.NativeEndian.Uint16(inline[8:]) != boltLeaf {
		return p.damaged(id, "a bucket is truncated")
	}
	return p.leaf(id, inline, int(binary.NativeEndian.Uint16(inline[10:])), nil, nil, false)
}

// freelist checks the list of free pages, if the file has one: together with the pages in use they must be all pages.
func (p *boltPages) freelist(id uint64) error {
	if id == boltNoFreelist {
		return nil
	}
	data, flags, count, err := p.page(id)
	if err != nil {
		return err
	}
	list := data[boltPageHead:]
	if count == 0xFFFF {
		count, list = int(min(binary.NativeEndian.Uint64(list), uint64(len(data)))), list[8:]
	}
	if flags != boltFreelist || count*8 > len(list) {
		return p.damaged(id, "not a list of free pages")
	}
	for i := range count {
		free := binary.NativeEndian.Uint64(list[8*i:])
		if free < 2 || free >= p.end || p.reached[free] {
			return p.damaged(id, "page %d is listed as free, but is in use or missing", free)
		}
		p.reached[free] = true
	}
	if missing := p.end - 2 - uint64(len(p.reached)); missing > 0 {
		return p.damaged(id, "%d pages are neither free nor in use", missing)
	}
	return nil
}

// guarded runs code that may panic on a damaged file, and turns a panic, memory faults included, into a DamageError.
func guarded(file string, open func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if reason := recover(); reason != nil {
			err = &DamageError{File: file, Place: wholeFile, Problem: fmt.Sprintf("cannot be opened: %v", reason)}
		}
	}()
	return open()
}
