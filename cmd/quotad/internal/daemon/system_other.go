//go:build !unix

package daemon

import (
	"errors"
	"io/fs"
)

// Nothing of this is used: Run refuses to run a node here.

func makePrivate() {}

func otherOwner(fs.FileInfo) (owner uint32, other bool) { return 0, false }

func openFilesLimit() (uint64, error) { return 0, errors.ErrUnsupported }
