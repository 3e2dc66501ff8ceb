package raftnode

import (
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
)

// quietAtStop is a logger whose errors are of no interest once the node stops: raft's transport calls its closed
// connections errors.
type quietAtStop struct {
	hclog.Logger
	stopping *atomic.Bool
}

// Error implements hclog.Logger.
func (l quietAtStop) Error(message string, args ...any) {
	if l.stopping.Load() {
		l.Debug(message, args...)
		return
	}
	l.Logger.Error(message, args...)
}
