// Package loopback finds addresses for nodes that all run on this machine.
package loopback

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports are drawn from below those that systems hand to whoever connects or listens at port 0 (Linux from 32768, others
// from 49152). They come in blocks, and a process claims a block for as long as it runs: it listens at the block's first port, which
// it returns to nobody. So no other process that asks this package has a node's port while the node is stopped, and it comes
// back to its own.
const (
	lowest    = 15_000
	highest   = 30_000
	blockSize = 50

	blocks = (highest - lowest) / blockSize
	ports  = blocks * (blockSize - 1)
)

var (
	mu     sync.Mutex
	order  = rand.Perm(blocks)
	claims []net.Listener // kept, since a listener that nothing refers to is closed
	rest   []int          // ports of claimed blocks that were not looked at
)

// Free returns n addresses of loopback at which nobody listens, none of which it returned before, here or in another process
// that still runs.
func Free(n int) ([]string, error) {
	mu.Lock()
	defer mu.Unlock()
	if n > ports { // else it would claim them all, and other processes would have none
		return nil, tooFew(n)
	}
	var addresses []string
	for len(addresses) < n {
		if len(rest) == 0 && !claim() {
			return nil, tooFew(n)
		}
		address := at(rest[0])
		rest = rest[1:]
		listener, err := listen(address)
		if err != nil {
			continue // somebody has it
		}
		if err := listener.Close(); err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	return addresses, nil
}

// claim adds the ports of a block that no process has, and tells whether there was one.
func claim() bool {
	for len(order) > 0 {
		first := lowest + order[0]*blockSize
		order = order[1:]
		listener, err := listen(at(first))
		if err != nil {
			continue
		}
		claims = append(claims, listener)
		for port := first + 1; port < first+blockSize; port++ {
			rest = append(rest, port)
		}
		return true
	}
	return false
}

func at(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

func listen(address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(context.Background(), "tcp", address)
}

func tooFew(n int) error {
	return fmt.Errorf("the ports from %d to %d of 127.0.0.1 have no %d that are free and in no other process's use", lowest, highest-1, n)
}
