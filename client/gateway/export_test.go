package gateway

import (
	"context"
	"net"
)

// ReachNodesBy sets the function that dials the nodes.
func (o *Options) ReachNodesBy(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	o.dial = dial
}

// ServerOn returns a server for a listener outside the configuration, such as one in memory.
func (g *Gateway) ServerOn(listener net.Listener) *Server {
	s := &Server{gateway: g}
	s.add(listener, false)
	return s
}
