package logstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Small files in the data directory.
const (
	ClusterFile = "cluster"   // the cluster's id
	NodeFile    = "node"      // this node's id
	NonceFile   = "formation" // this disk's nonce: it tells the disk that formed the cluster from a wiped one
	FormedFile  = "formed"    // the nonces of the members with which this node formed the cluster
	JoinedFile  = "joined"    // the index of the configuration in which a leader added this disk as a learner
)

// prepareDir makes the data directory.
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("every user can write the data directory %[1]s: chmod 700 %[1]s", dir)
	}
	return os.MkdirAll(filepath.Join(dir, "snapshots"), 0o700)
}

// clearSnapshots removes the remains of snapshots whose creation or removal was interrupted. This process must own the data directory.
func clearSnapshots(dir string) error {
	_, unfinished, err := ListSnapshots(dir)
	if err != nil {
		return err
	}
	for _, name := range unfinished {
		if err := os.RemoveAll(filepath.Join(dir, "snapshots", name)); err != nil {
			return err
		}
	}
	return nil
}

// writeDurably replaces a small file atomically and durably.
func writeDurably(path, content string) error {
	temporary := path + ".new"
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.WriteString(content); err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the file names in a directory durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
