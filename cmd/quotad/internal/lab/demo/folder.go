package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// folder holds all files of a demo. One demo at a time uses it.
type folder struct {
	path   string
	marker *os.File
}

// markerName is the file that identifies a demo's folder. It is locked while a demo runs.
const markerName = ".quotad-demo"

// openFolder creates the folder, or empties it if an earlier demo made it. It changes no other folder.
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

// empty removes the entries and creates the folder's initial contents.
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

// close releases the folder for another demo.
func (f *folder) close() { _ = f.marker.Close() }
