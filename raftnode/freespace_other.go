//go:build !unix

package raftnode

import "errors"

// freeSpace knows no system without nodes.
func freeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }
