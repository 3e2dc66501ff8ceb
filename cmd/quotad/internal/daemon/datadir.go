package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// UnsafeDirError says that other users can change data that the node trusts.
type UnsafeDirError struct{ Dir, Message, Hint string }

// Error implements error.
func (e *UnsafeDirError) Error() string { return "data directory " + e.Dir + ": " + e.Message }

// prepareDataDir makes the directory for its owner alone, and refuses one that other users can write or own.
func prepareDataDir(dir string) error {
	makePrivate() // the libraries below create files and folders with the umask's mode
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return &UnsafeDirError{
			Dir: dir, Message: fmt.Sprintf("its mode is %04o: other users can write it", info.Mode().Perm()),
			Hint: "chmod 700 " + dir,
		}
	}
	if owner, other := otherOwner(info); other {
		return &UnsafeDirError{Dir: dir, Message: fmt.Sprintf("it belongs to user %d", owner), Hint: "chown it to the user that runs quotad"}
	}
	return nil
}

// The disk's speed is measured with a few writes like those of the log.
const (
	syncWrites    = 9
	syncBytes     = 4096
	slowSync      = 20 * time.Millisecond
	syncProbeFile = ".sync-probe"
)

// measureSync returns the median time of a small durable write in the directory.
func measureSync(dir string) (median time.Duration, err error) {
	path := filepath.Join(dir, syncProbeFile)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, file.Close(), os.Remove(path))
	}()
	times := make([]time.Duration, syncWrites)
	page := make([]byte, syncBytes)
	for i := range times {
		started := time.Now()
		if _, err := file.Write(page); err != nil {
			return 0, err
		}
		if err := file.Sync(); err != nil {
			return 0, err
		}
		times[i] = time.Since(started)
	}
	slices.Sort(times)
	return times[syncWrites/2], nil
}
