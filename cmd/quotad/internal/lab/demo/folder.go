package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// folder is where a demo keeps everything. One demo at a time has it.
type folder struct {
	path   string
	marker *os.File
}

// markerName is the file that tells a demo's folder from all others. It is locked while a demo runs.
const markerName = ".quotad-demo"

// openFolder makes the folder, emptied of what an earlier demo left there. It touches no folder that is not a demo's.
func openFolder(path string) (*folder, error) {
	dir, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, markerName)); len(entries) > 0 && err != nil {
		return nil, fmt.Errorf("%s is not empty, and no demo made it: choose another --dir", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	marker, err := os.OpenFile(filepath.Join(dir, markerName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	f := &folder{path: dir, marker: marker}
	if err := lock(marker); err != nil {
		f.close()
		return nil, err
	}
	if err := f.empty(entries); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// empty removes what was there and makes what has to be there.
func (f *folder) empty(entries []os.DirEntry) error {
	for _, entry := range entries {
		if entry.Name() == markerName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(f.path, entry.Name())); err != nil {
			return err
		}
	}
	if _, err := f.marker.WriteAt([]byte("Made by quotad demo, which empties this folder when it runs again.\n"), 0); err != nil {
		return err
	}
	return os.Mkdir(filepath.Join(f.path, "logs"), 0o700)
}

// close lets another demo have the folder.
func (f *folder) close() { _ = f.marker.Close() }
