package neterr

import (
	"errors"
	"io"
	"net"
	"testing"
)

// TestNetwork_FailuresAreRecognized: the errors come from the system that runs the test, not from constants.
func TestNetwork_FailuresAreRecognized(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_, taken := net.Listen("tcp", address)

	connection, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	tcp, is := accepted.(*net.TCPConn)
	if !is {
		t.Fatalf("accepted a %T", accepted)
	}
	if err := errors.Join(tcp.SetLinger(0), tcp.Close(), listener.Close()); err != nil {
		t.Fatal(err)
	}
	_, ended := connection.Read(make([]byte, 1))
	_ = connection.Close()
	_, nobody := net.Dial("tcp", address)

	for name, test := range map[string]struct {
		err                   error
		inUse, refused, reset bool
	}{
		"a second listener":       {err: taken, inUse: true},
		"a call of nobody":        {err: nobody, refused: true},
		"a read after a reset":    {err: ended, reset: true},
		"the end of a connection": {err: io.EOF},
		"nothing":                 {},
	} {
		if InUse(test.err) != test.inUse || Refused(test.err) != test.refused || Reset(test.err) != test.reset {
			t.Errorf("%s (%v): in use %v, refused %v, reset %v", name, test.err, InUse(test.err), Refused(test.err), Reset(test.err))
		}
	}
}
