//go:build !unix

package daemon

import (
	"errors"
	"io/fs"
)

// These are unused: Run refuses to run a node here.

func makePrivate() {}

func otherOwner(fs.FileInfo) (owner uint32, other bool) { return 0, false }

func openFilesLimit() (uint64, error) { return 0, errors.ErrUnsupported }
