package logstore

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// dropBlank removes an empty log store if the directory has no other data of a node. An interrupted first start leaves one: the file's name
// became durable without its content. Next to other data, an empty store means that its content was lost or damaged.
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

// isBlank tells whether a file is empty or holds only zeros.
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
