// Package neterr classifies failed system calls of the network. Windows has error numbers of its own, which package syscall
// does not equate with those of the same name.
package neterr

import (
	"errors"
	"slices"
	"syscall"
)

// InUse reports whether another process listens at the address.
func InUse(err error) bool { return is(err, inUse) }

// Refused reports whether nothing listens at the address.
func Refused(err error) bool { return is(err, refused) }

// Reset reports whether the other side ended the connection.
func Reset(err error) bool { return is(err, reset) }

func is(err error, numbers []syscall.Errno) bool {
	return slices.ContainsFunc(numbers, func(number syscall.Errno) bool { return errors.Is(err, number) })
}
