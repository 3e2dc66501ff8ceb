//go:build unix

package cli

import (
	"errors"
	"os"
	"path/filepath"
)

// renameDurably gives a file another file's name. Once it returns, a power cut does not undo it.
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
