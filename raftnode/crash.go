package raftnode

import (
	"sync/atomic"
)

// crashPoints lets a test kill the process at a named point. It is nil in production.
type crashPoints struct {
	name  atomic.Pointer[string]
	left  atomic.Int32
	crash func()
}

func (c *crashPoints) set(name string, count int32) {
	c.left.Store(max(count, 1))
	c.name.Store(&name)
}

// pass kills the process if this is the set point and its count of passes is reached.
func (c *crashPoints) pass(name string) {
	if c == nil {
		return
	}
	if at := c.name.Load(); at != nil && *at == name && c.left.Add(-1) == 0 {
		c.crash()
	}
}
