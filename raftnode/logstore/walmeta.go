package logstore

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/types"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// walDB is the file in which raft-wal keeps its list of files, term and vote, in raft-wal's own format. In addition, it has a checksum of
// the list, checks its pages before the file is opened, and knows which file was created last.
type walDB struct {
	db       *bolt.DB
	readOnly bool
}

var (
	walMetaBucket   = []byte(metadb.MetaBucket)
	walStableBucket = []byte(metadb.StableBucket)
	walMetaKey      = []byte(metadb.MetaKey)
	// walSumKey is the key of the list's checksum. Data directories of older versions lack it.
	walSumKey = []byte("m-sum")
	// keyLastFile is the key of the newest file's id and size. It is set once the file is durable, before the first append to it.
	keyLastFile = []byte("LastFile")
)

// Load implements types.MetaStore.
func (m *walDB) Load(dir string) (state types.PersistentState, err error) {
	path := filepath.Join(dir, walMetaFile)
	if m.db == nil {
		if err := m.open(path); err != nil {
			return state, err
		}
	}
	err = m.db.View(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(walMetaBucket)
		raw, sum := bucket.Get(walMetaKey), bucket.Get(walSumKey)
		if raw == nil {
			return onlyNew(tx, dir)
		}
		if sum != nil && !bytes.Equal(sum, listSum(raw)) {
			return &DamageError{File: filepath.Join("wal", walMetaFile), Place: "the list of files", Problem: "checksum mismatch"}
		}
		if err := json.Unmarshal(raw, &state); err != nil {
			return &DamageError{File: filepath.Join("wal", walMetaFile), Place: "the list of files", Problem: err.Error()}
		}
		return nil
	})
	return state, err
}

// onlyNew returns an error unless the store is new. The list of files is the store's first value, and no file is created before it. If
// there are values or files, the list was lost: raft-wal would take the log for a new one and remove the old files.
func onlyNew(tx *bolt.Tx, dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var there []string
	for _, file := range files {
		if filepath.Ext(file.Name()) == ".wal" {
			there = append(there, file.Name())
		}
	}
	for _, name := range [][]byte{walMetaBucket, walStableBucket} {
		if key, _ := tx.Bucket(name).Cursor().First(); key != nil {
			there = append(there, string(key))
		}
	}
	if len(there) == 0 {
		return nil
	}
	return &DamageError{
		File: filepath.Join("wal", walMetaFile), Place: "the list of files", Problem: fmt.Sprintf("missing, but %s is there", there[0]),
	}
}

func listSum(list []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.Checksum(list, castagnoli))
}

// open opens or creates the file.
func (m *walDB) open(path string) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) && !m.readOnly {
		if err := makeWALMeta(path); err != nil {
			return err
		}
	}
	if _, err := checkBoltFile(path, metadb.MetaBucket, metadb.StableBucket); err != nil {
		return err
	}
	err := guarded(filepath.Join("wal", walMetaFile), func() (err error) {
		m.db, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: lockPatience, ReadOnly: m.readOnly})
		return err
	})
	if errors.Is(err, berrors.ErrTimeout) {
		return fmt.Errorf("%w: %s", ErrDataDirInUse, filepath.Dir(filepath.Dir(path)))
	}
	return err
}

// makeWALMeta creates a file that gets its name once it is complete.
func makeWALMeta(path string) error {
	making := path + ".tmp"
	if err := os.RemoveAll(making); err != nil {
		return err
	}
	db, err := bolt.Open(making, 0o600, nil)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		_, errMeta := tx.CreateBucket(walMetaBucket)
		_, errStable := tx.CreateBucket(walStableBucket)
		return errors.Join(errMeta, errStable)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Rename(making, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// CommitState implements types.MetaStore.
func (m *walDB) CommitState(state types.PersistentState) error {
	encoded, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return m.update(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(walMetaBucket)
		return errors.Join(bucket.Put(walMetaKey, encoded), bucket.Put(walSumKey, listSum(encoded)))
	})
}

func (m *walDB) update(change func(tx *bolt.Tx) error) error {
	if m.db == nil {
		return metadb.ErrUnintialized
	}
	return m.db.Update(change)
}

// GetStable implements types.MetaStore.
func (m *walDB) GetStable(key []byte) (value []byte, err error) {
	if m.db == nil {
		return nil, metadb.ErrUnintialized
	}
	err = m.db.View(func(tx *bolt.Tx) error {
		value = bytes.Clone(tx.Bucket(walStableBucket).Get(key))
		return nil
	})
	return value, err
}

// SetStable implements types.MetaStore.
func (m *walDB) SetStable(key, value []byte) error {
	return m.update(func(tx *bolt.Tx) error {
		if value == nil {
			return tx.Bucket(walStableBucket).Delete(key)
		}
		return tx.Bucket(walStableBucket).Put(key, value)
	})
}

// Close implements io.Closer.
func (m *walDB) Close() error {
	if m.db == nil {
		return nil
	}
	err := m.db.Close()
	m.db = nil
	return err
}

// Get implements raft.StableStore, so that stable can use the file.
func (m *walDB) Get(key []byte) ([]byte, error) { return m.GetStable(key) }

// Set implements raft.StableStore.
func (m *walDB) Set(key, value []byte) error { return m.SetStable(key, value) }

// GetUint64 implements raft.StableStore. It fails: walDB stores only numbers with a checksum.
func (*walDB) GetUint64([]byte) (uint64, error) { return 0, errors.New("a number without a checksum") }

// SetUint64 implements raft.StableStore. It fails as GetUint64 does.
func (*walDB) SetUint64([]byte, uint64) error { return errors.New("a number without a checksum") }

// fileOf serves the function fileOf.
func (*walDB) fileOf(uint64) string { return filepath.Join("wal", walMetaFile) }

// made records that a file exists, and its size, before the first append to it.
func (m *walDB) made(id, size uint64) error {
	values := &stable{store: m, bound: true}
	return values.set(keyLastFile, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, id), size))
}

// lastMade returns the id and size of the newest file, if known.
func (m *walDB) lastMade() (id, size uint64, known bool, err error) {
	raw, err := (&stable{store: m, bound: true}).get(keyLastFile)
	if err != nil || len(raw) != 16 {
		return 0, 0, false, err
	}
	return binary.BigEndian.Uint64(raw), binary.BigEndian.Uint64(raw[8:]), true, nil
}

// notMade returns nil if a missing file was never created.
func (m *walDB) notMade(id uint64, path string) error {
	last, _, known, err := m.lastMade()
	if err == nil && known && last >= id {
		err = &LostPartError{Dir: filepath.Dir(filepath.Dir(path)), Part: filepath.Join("wal", filepath.Base(path)), Problem: "missing"}
	}
	return err
}

// cutOff returns an error if a file is shorter than at its creation.
func (m *walDB) cutOff(id uint64, path string, has int) error {
	last, size, known, err := m.lastMade()
	if err == nil && known && last == id && uint64(has) < size {
		err = &DamageError{
			File: filepath.Join("wal", filepath.Base(path)), Place: fmt.Sprintf("%d bytes long", has),
			Problem: fmt.Sprintf("truncated: it was created with %d bytes", size),
		}
	}
	return err
}
