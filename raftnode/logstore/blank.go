package logstore

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// dropBlank removes a log store that was never written, where the directory has nothing else of a node: its first start was interrupted,
// and the file's name became durable without its content. With anything else there, such a store is lost or damaged.
func (d *Disk) dropBlank() error {
	if d.has == "" || d.witness != nil || len(d.parts) > 0 || len(d.snapshots) > 0 {
		return nil
	}
	path := d.has.path(d.dir)
	if d.has == WAL {
		files, err := os.ReadDir(path)
		if err != nil || len(files) != 1 {
			return err
		}
		path = filepath.Join(path, walMetaFile)
	}
	blank, err := isBlank(path)
	if err != nil || !blank {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	d.has = ""
	return syncDir(filepath.Dir(path))
}

// isBlank tells whether a file has no content, or zeros alone.
func isBlank(path string) (blank bool, err error) {
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	page, zeros := make([]byte, 4096), make([]byte, 4096)
	for {
		n, err := file.Read(page)
		switch {
		case !bytes.Equal(page[:n], zeros[:n]):
			return false, nil
		case errors.Is(err, io.EOF):
			return true, nil
		case err != nil:
			return false, err
		}
	}
}
