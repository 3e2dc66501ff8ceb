//go:build unix

package cli

import (
	"errors"
	"os"
	"path/filepath"
)

// renameDurably renames a file. After it returns, a power cut does not undo the rename.
func renameDurably(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
