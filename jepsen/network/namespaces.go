//go:build linux

package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// proxyMark marks the packets of proxies, which are not redirected again.
const proxyMark = 0x51

// namespaces is the fabric of network namespaces on a bridge.
type namespaces struct {
	bridge netns.NsHandle
	mu     sync.Mutex
	spaces []*space
}

// space is a host's namespace.
type space struct {
	host   *Host
	handle netns.NsHandle
	// rules manages the packet filter of the namespace, links its devices.
	rules        *nftables.Conn
	table        *nftables.Table
	input, nat   *nftables.Chain
	links        *netlink.Handle
	device       int
	from         map[*Host]dropping
	droppedSoFar map[*Host]uint64
}

// inNew runs f on a thread in a new namespace, and returns that namespace.
func inNew(f func() error) (netns.NsHandle, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return netns.None(), err
	}
	defer func() { _ = home.Close() }()
	made, err := netns.New()
	if err != nil {
		return netns.None(), fmt.Errorf("make a network namespace: %w", err)
	}
	err = f()
	if back := netns.Set(home); back != nil {
		panic(fmt.Sprintf("network: the thread cannot leave a namespace: %v", back)) // it would run other goroutines there
	}
	return made, err
}

// inside runs f on a thread in a namespace.
func inside(space netns.NsHandle, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer func() { _ = home.Close() }()
	if err := netns.Set(space); err != nil {
		return err
	}
	err = f()
	if back := netns.Set(home); back != nil {
		panic(fmt.Sprintf("network: the thread cannot leave a namespace: %v", back)) // it would run other goroutines there
	}
	return err
}

// openNamespaces makes the bridge.
func openNamespaces() (*namespaces, error) {
	handle, err := inNew(func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = "switch"
		bridge := &netlink.Bridge{LinkAttrs: attributes}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("make a bridge: %w", err)
		}
		return netlink.LinkSetUp(bridge)
	})
	if err != nil {
		return nil, err
	}
	return &namespaces{bridge: handle}, nil
}

// add makes a namespace with a port on the bridge. Addresses are of 198.18.0.0/15, which RFC 2544 reserves for benchmarks.
func (f *namespaces) add(h *Host) error {
	h.listenIP = fmt.Sprintf("198.18.0.%d", h.number)
	h.ip = h.listenIP
	handle, err := inNew(func() error {
		loopback, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(loopback)
	})
	if err != nil {
		return err
	}
	s := &space{host: h, handle: handle, from: map[*Host]dropping{}, droppedSoFar: map[*Host]uint64{}}
	h.space = s
	if err := f.plug(h.number, handle); err != nil {
		return err
	}
	if s.links, err = netlink.NewHandleAt(handle); err != nil {
		return err
	}
	device, err := s.links.LinkByName("eth0")
	if err != nil {
		return err
	}
	s.device = device.Attrs().Index
	address, err := netlink.ParseAddr(h.ip + "/24")
	if err != nil {
		return err
	}
	if err := errors.Join(s.links.AddrAdd(device, address), s.links.LinkSetUp(device)); err != nil {
		return err
	}
	f.mu.Lock()
	f.spaces = append(f.spaces, s)
	f.mu.Unlock()
	return s.filter()
}

// plug connects a namespace with the bridge.
func (f *namespaces) plug(number int, handle netns.NsHandle) error {
	return inside(f.bridge, func() error {
		near := fmt.Sprintf("port%d", number)
		attributes := netlink.NewLinkAttrs()
		attributes.Name = near
		pair := &netlink.Veth{LinkAttrs: attributes, PeerName: "eth0", PeerNamespace: netlink.NsFd(handle)}
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("make a link: %w", err)
		}
		bridge, err := netlink.LinkByName("switch")
		if err != nil {
			return err
		}
		port, err := netlink.LinkByName(near)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMaster(port, bridge), netlink.LinkSetUp(port))
	})
}

// filter prepares the packet filter of a namespace.
func (s *space) filter() error {
	var err error
	if s.rules, err = nftables.New(nftables.WithNetNSFd(int(s.handle))); err != nil {
		return err
	}
	s.table = s.rules.AddTable(&nftables.Table{Name: "faults", Family: nftables.TableFamilyIPv4})
	s.input = s.rules.AddChain(&nftables.Chain{
		Name: "input", Table: s.table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	})
	s.nat = s.rules.AddChain(&nftables.Chain{
		Name: "nat", Table: s.table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
	})
	return s.rules.Flush()
}

func (f *namespaces) start(h *Host, cmd *exec.Cmd) error { return inside(h.space.handle, cmd.Start) }

func (f *namespaces) dial(ctx context.Context, h *Host, network, address string, mark bool) (net.Conn, error) {
	dialer := &net.Dialer{}
	if mark {
		dialer.Control = func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, proxyMark) })
			return errors.Join(err, failed)
		}
	}
	var conn net.Conn
	// This goroutine dials an address without a name itself, so the socket is made on this thread.
	err := inside(h.space.handle, func() error {
		var err error
		conn, err = dialer.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

func (f *namespaces) listen(h *Host, address string) (net.Listener, error) {
	var listener net.Listener
	err := inside(h.space.handle, func() error {
		var err error
		listener, err = net.Listen("tcp4", address) //nolint:noctx // it does not wait
		return err
	})
	return listener, err
}

// drop replaces the rules of the receiving namespace.
func (f *namespaces) drop(from, to *Host, d dropping) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := to.space
	if s.from[from] == d {
		return nil
	}
	if err := s.count(); err != nil {
		return err
	}
	if d == (dropping{}) {
		delete(s.from, from)
	} else {
		s.from[from] = d
	}
	s.rules.FlushChain(s.input)
	for other, dropping := range s.from {
		s.rules.AddRule(&nftables.Rule{Table: s.table, Chain: s.input, Exprs: dropping.rule(other), UserData: []byte(other.name)})
	}
	return s.rules.Flush()
}

// rule is the rule that drops packets from a host.
func (d dropping) rule(from *Host) []expr.Any {
	match := []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, // the source address
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: net.ParseIP(from.ip).To4()},
	}
	if d.percent < 100 {
		share := binaryutil.NativeEndian.PutUint32(uint32(d.percent))
		match = append(match, &expr.Numgen{Register: 1, Modulus: 100, Type: unix.NFT_NG_RANDOM},
			&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binary.BigEndian.AppendUint32(nil, binaryutil.NativeEndian.Uint32(share))})
	}
	match = append(match, &expr.Counter{})
	if d.reject {
		return append(match, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	}
	return append(match, &expr.Verdict{Kind: expr.VerdictDrop})
}

// count adds up the counters of the rules, which are lost with them.
func (s *space) count() error {
	rules, err := s.rules.GetRules(s.table, s.input)
	if err != nil {
		return err
	}
	for _, rule := range rules {
		for _, e := range rule.Exprs {
			if counter, ok := e.(*expr.Counter); ok {
				for from := range s.from {
					if from.name == string(rule.UserData) {
						s.droppedSoFar[from] += counter.Packets
					}
				}
			}
		}
	}
	return nil
}

func (f *namespaces) dropped() (map[Link]uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[Link]uint64{}
	for _, s := range f.spaces {
		for from, count := range s.droppedSoFar {
			all[Link{from.name, s.host.name}] += count
		}
		if len(s.from) == 0 {
			continue
		}
		rules, err := s.rules.GetRules(s.table, s.input)
		if err != nil {
			return all, err
		}
		for _, rule := range rules {
			for _, e := range rule.Exprs {
				if counter, ok := e.(*expr.Counter); ok {
					all[Link{string(rule.UserData), s.host.name}] += counter.Packets
				}
			}
		}
	}
	return all, nil
}

// rate bounds the bandwidth from a host by a token bucket of the kernel.
func (f *namespaces) rate(h *Host, bytesPerSecond int64) error {
	attributes := netlink.QdiscAttrs{LinkIndex: h.space.device, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	bucket := &netlink.Tbf{QdiscAttrs: attributes}
	if bytesPerSecond > 0 {
		// The kernel drops packets above the burst, and passes packets of up to 64 KiB to the bucket.
		const burst, queue = 96 << 10, 512 << 10
		bucket.Rate, bucket.Limit = uint64(bytesPerSecond), queue
		bucket.Buffer = netlink.Xmittime(bucket.Rate, burst)
		return h.space.links.QdiscReplace(bucket)
	}
	if err := h.space.links.QdiscDel(bucket); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// route redirects connections of a host to another's port to a proxy that listens on the host.
func (f *namespaces) route(h, to *Host, port int, proxy net.Addr) error {
	s := h.space
	tcp, ok := proxy.(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("%v is no TCP address", proxy)
	}
	s.rules.AddRule(&nftables.Rule{Table: s.table, Chain: s.nat, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(proxyMark)},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 9, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}, // the destination address
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: net.ParseIP(to.ip).To4()},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, // the destination port
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(uint16(port))},
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(uint16(tcp.Port))},
		&expr.Redir{RegisterProtoMin: 1},
	}})
	return s.rules.Flush()
}

func (f *namespaces) close() error {
	var err error
	for _, s := range f.spaces {
		if s.links != nil {
			s.links.Close()
		}
		err = errors.Join(err, s.handle.Close())
	}
	return errors.Join(err, f.bridge.Close())
}
