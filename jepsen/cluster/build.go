package cluster

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"sync"
	"syscall"

	"github.com/quotad/quotad/rpc/quotav1"
)

// Binary is the quotad that the node's next process runs.
func (n *Node) Binary() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.binary
}

// SetBinary sets the build of the node's next process.
func (n *Node) SetBinary(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.binary = path
}

// Visitor is a process of another build. It is not a node of the cluster, and the supervisor does not restart it.
type Visitor struct {
	cmd *exec.Cmd
	// said is its output so far.
	said said
}

// said collects a process's output.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

// Impersonate starts a build as the node itself, at its place and on its disk. The node must not run. The process ends with ctx at the
// latest.
func (n *Node) Impersonate(ctx context.Context, binary string) (*Visitor, error) {
	return n.cluster.visit(ctx, binary, n.host, n.ID, n.cluster.config.Data(n.ID), n.how)
}

// Invite starts a build that waits to be added under an ID, at a place of its own. The process ends with ctx at the latest.
func (c *Cluster) Invite(ctx context.Context, binary, id, data string) (*Visitor, error) {
	return c.visit(ctx, binary, c.config.Guest, id, data, []string{"--join=true"})
}

func (c *Cluster) visit(ctx context.Context, binary string, host Host, id, data string, how []string) (*Visitor, error) {
	flags, err := c.flags(host, id, data, how)
	if err != nil {
		return nil, err
	}
	v := &Visitor{cmd: exec.CommandContext(ctx, binary, flags...)}
	v.cmd.Stdout, v.cmd.Stderr = &v.said, &v.said
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return v, host.Start(v.cmd)
}

// Said is the process's output so far.
func (v *Visitor) Said() string {
	v.said.mu.Lock()
	defer v.said.mu.Unlock()
	return v.said.text.String()
}

// Await waits until the process ends by itself, and returns its exit code; below 0: a signal ended it.
func (v *Visitor) Await() (code int, err error) {
	err = v.cmd.Wait()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		return 0, err
	}
	return v.cmd.ProcessState.ExitCode(), nil
}

// Kill ends the process at once.
func (v *Visitor) Kill() error {
	err := v.cmd.Process.Kill()
	_, waitErr := v.Await()
	return errors.Join(err, waitErr)
}

// Admit asks a leader to add the process at the guest's place.
func (c *Cluster) Admit(ctx context.Context, leader *Node, id string) error {
	_, err := leader.admin.AddMember(ctx, &quotav1.AddMemberRequest{
		Id: id, RaftAddress: raftAddress(c.config.Guest), ApiAddress: apiAddress(c.config.Guest),
	})
	return err
}
