package logstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Files in the data directory beside the log.
const (
	ClusterFile = "cluster"   // the cluster's id
	NodeFile    = "node"      // this node's id
	NonceFile   = "formation" // this disk's nonce, by which a wiped disk is told from the one that formed the cluster
	FormedFile  = "formed"    // the nonces of the members with which this node formed the cluster
	JoinedFile  = "joined"    // the index of the configuration in which a leader took this disk in as a learner
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

// clearSnapshots removes what is left of snapshots that were being made or removed when the process ended. The data directory is this
// process's own by now.
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

// writeDurably replaces a small file.
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

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
