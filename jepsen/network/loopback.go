//go:build linux

package network

import (
	"context"
	"fmt"
	"net"
	"os/exec"
)

// loopback is the fabric of addresses of 127/8. Hosts listen on 127.77.0.N; others reach them at 127.77.1.N, where a proxy listens. It
// identifies callers by their source address.
type loopback struct{}

func (loopback) add(h *Host) error {
	h.listenIP, h.ip = fmt.Sprintf("127.77.0.%d", h.number), fmt.Sprintf("127.77.1.%d", h.number)
	return nil
}

func (loopback) start(_ *Host, cmd *exec.Cmd) error { return cmd.Start() }

func (loopback) dial(ctx context.Context, h *Host, network, address string, _ bool) (net.Conn, error) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(h.listenIP)}}
	return dialer.DialContext(ctx, network, address)
}

func (loopback) listen(_ *Host, address string) (net.Listener, error) {
	return net.Listen("tcp4", address) //nolint:noctx // it does not wait
}

func (loopback) drop(_, _ *Host, _ dropping) error { return ErrUnsupported }

func (loopback) rate(_ *Host, bytesPerSecond int64) error {
	if bytesPerSecond > 0 {
		return fmt.Errorf("rate: %w", ErrUnsupported)
	}
	return nil
}

func (loopback) dropped() (map[Link]uint64, error) { return nil, nil }

// route does nothing: callers use the proxy's address already.
func (loopback) route(_, _ *Host, _ int, _ net.Addr) error { return nil }

func (loopback) close() error { return nil }
