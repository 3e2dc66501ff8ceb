package gateway

import (
	"net"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"
)

// peerOf returns the name of the user at the other end of a unix socket, or else the uid; empty: unknown.
func peerOf(c net.Conn) string {
	socket, ok := c.(*net.UnixConn)
	if !ok {
		return ""
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return ""
	}
	var peer *unix.Ucred
	if raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return ""
	}
	id := strconv.FormatUint(uint64(peer.Uid), 10)
	if known, err := user.LookupId(id); err == nil {
		return known.Username
	}
	return "uid-" + id
}
