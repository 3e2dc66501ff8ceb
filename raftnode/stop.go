package raftnode

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// fail stops the node with an error.
func (n *Node) fail(err error) {
	n.errMu.Lock()
	if n.err == nil {
		n.err = err
	}
	n.errMu.Unlock()
	n.doneOnce.Do(func() {
		n.logger.Error("the node stops", "error", err)
		n.stopping.Store(true)
		if n.port != nil {
			_ = n.port.Close() // first, so that peers notice
		}
		close(n.done)
	})
}

// Done returns a channel that is closed when the node has stopped; Err then returns the reason.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err returns why the node stopped by itself; nil while it runs or after Close.
func (n *Node) Err() error {
	n.errMu.Lock()
	defer n.errMu.Unlock()
	return n.err
}

// Close transfers leadership, stops the node, and waits for the end, bounded by ctx.
func (n *Node) Close(ctx context.Context) error {
	n.closeOnce.Do(func() {
		n.stopping.Store(true)
		n.transferOnStop(ctx)
		close(n.closing)
		n.doneOnce.Do(func() {
			_ = n.port.Close()
			close(n.done)
		})
		n.hub.close()
	})
	stopped := make(chan struct{})
	go func() {
		n.wg.Wait()
		_ = n.transport.Close()
		_ = n.raft.Shutdown().Error()
		n.port.Wait()
		n.closeFiles()
		close(stopped)
	}()
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the node did not stop in time: %w", ctx.Err())
	}
}

// Kill stops without transferring leadership, as a crash would, except that data in the operating system's cache survives.
func (n *Node) Kill() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n.stopping.Store(true)
	n.doneOnce.Do(func() {
		_ = n.port.Close()
		close(n.done)
	})
	_ = n.Close(ctx)
}

// LeadsOthers says whether this node leads and has another voter to which it can transfer leadership.
func (n *Node) LeadsOthers() bool {
	voters, _ := n.voters()
	return n.raft.State() == raft.Leader && len(voters) > 1
}

func (n *Node) isDone() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

func (n *Node) closeFiles() {
	if n.log != nil {
		_ = n.log.Close()
	}
	if n.transport.NetworkTransport != nil {
		_ = n.transport.Close()
	}
	if n.port != nil {
		_ = n.port.Close()
	}
}
