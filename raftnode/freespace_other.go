//go:build !unix

package raftnode

import "errors"

// freeSpace fails: this system is not supported.
func freeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }
