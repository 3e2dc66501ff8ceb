// Package loopback finds addresses for nodes that all run on one machine.
package loopback

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports come from below the range that systems use for outgoing connections and for listeners at port 0 (Linux from 32768, others from
// 49152). They come in blocks. A process claims a block for its lifetime by listening at the block's first port, which it returns to no
// caller. So while a node is stopped, no other process that uses this package takes its port, and the node can restart there.
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
	claims []net.Listener // kept: the garbage collector closes a listener that nothing refers to
	rest   []int          // ports of claimed blocks, not tried yet
)

// Free returns n loopback addresses that have no listener. It never returns one twice, and none that another live process got from it.
func Free(n int) ([]string, error) {
	mu.Lock()
	defer mu.Unlock()
	if n > ports { // otherwise it would claim all blocks and leave other processes none
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
			continue // the port is in use
		}
		if err := listener.Close(); err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	return addresses, nil
}

// claim adds the ports of an unclaimed block, and tells whether there was one.
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
