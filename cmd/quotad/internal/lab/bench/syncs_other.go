//go:build !linux

package bench

import "errors"

// syncCounter counts nothing here: see syncs_linux.go.
type syncCounter struct{}

func countSyncs([]int) (*syncCounter, error) { return nil, errors.ErrUnsupported }

func (*syncCounter) count() (int64, error) { return 0, errors.ErrUnsupported }

func (*syncCounter) close() {}
