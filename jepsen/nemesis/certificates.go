package nemesis

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/quotad/quotad/jepsen/certs"
	"github.com/quotad/quotad/jepsen/cluster"
)

// Rotation is the name of the fault that rotates certificates: runs with it need TLS.
const Rotation = "tls-rotation"

var errClearText = errors.New("the cluster speaks clear text")

// bundle is the file of the CAs that sign for the nodes; empty: clear text.
func (e *Env) bundle() string {
	if set := e.Cluster.Certificates(); set != nil {
		return set.Bundle()
	}
	return ""
}

// rotation is one change of CA.
type rotation struct {
	env      *Env
	set      *certs.Set
	old, new int
	// reloads counts the reloads of nodes, refused the refusals of certificates of the dropped CA.
	reloads, refused int
}

// rotate changes all nodes to another CA and its certificates, node by node and step by step, as in the runbook: meanwhile some nodes have
// the new ones and others do not. Calls must continue, which the checkers judge, and the nodes must reach each other throughout. Afterwards
// the dropped CA must have no effect.
func rotate() Fault {
	return Fault{Name: Rotation, do: func(ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context)) (h hit, err error) {
		set := e.Cluster.Certificates()
		if set == nil {
			return h, errClearText
		}
		nodes, _ := all(ctx, e, r)
		r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		h.targets = names(nodes...)
		ctx = context.WithoutCancel(ctx)               // the runbook knows no half rotation
		if err := finishRotation(ctx, e); err != nil { // an earlier one that was cut off
			return h, err
		}
		o := &rotation{env: e, set: set, old: set.Generation()}
		if o.new, err = set.Next(ctx); err != nil {
			return h, err
		}
		err = o.step(ctx, nodes, func(id string) error { return set.Trust(id, o.old, o.new) })
		err = errors.Join(err, set.TrustCallers(o.old, o.new))
		if err == nil {
			err = o.step(ctx, nodes[:1+len(nodes)/2], func(id string) error { return set.UsePair(id, o.new) })
			hold(ctx) // with certificates of both
			err = errors.Join(err, o.step(ctx, nodes[1+len(nodes)/2:], func(id string) error { return set.UsePair(id, o.new) }))
		}
		if err == nil {
			err = o.step(ctx, nodes, func(id string) error { return set.Trust(id, o.new) })
		}
		if err == nil { // otherwise nodes may show old certificates until Heal completes the rotation
			err = set.TrustCallers(o.new)
		}
		if err == nil {
			err = o.dropped(ctx, nodes)
		}
		if err == nil {
			set.Rotated()
		}
		h.seen = fmt.Sprintf("%d reloads, %d times refused", o.reloads, o.refused)
		return h, err
	}}
}

// finishRotation completes a rotation that was cut off: no cluster is left in the middle of one.
func finishRotation(ctx context.Context, e *Env) error {
	set := e.Cluster.Certificates()
	if set == nil {
		return nil
	}
	nodes := map[string]*cluster.Node{}
	var ids []string
	for _, node := range e.Cluster.Nodes() {
		if !node.Retired() {
			nodes[node.ID], ids = node, append(ids, node.ID)
		}
	}
	return set.Finish(ids, func(id string) error { return within(ctx, 30*time.Second, nodes[id].Reload) })
}

// seesOthersWithin is how long a node may take to reach all others after a reload; more than two elections.
const seesOthersWithin = 10 * time.Second

// step changes files of one node after the other, reloads it, and checks that it can still reach the others.
func (o *rotation) step(ctx context.Context, nodes []*cluster.Node, change func(id string) error) error {
	for _, node := range nodes {
		if err := change(node.ID); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, seesOthersWithin)
		err := node.Reload(ctx)
		if err == nil {
			o.reloads++
			err = node.AwaitReady(ctx, seesOthersWithin)
		}
		cancel()
		if err != nil {
			return brokenError(fmt.Sprintf("%s after its files changed: %v", node.ID, err))
		}
	}
	return nil
}

// dropped checks that certificates of the dropped CA are refused: of a node on the port between nodes, even with a member's name, and of an
// API. Certificates of the new CA must be accepted in the same way, or a refusal would prove nothing.
func (o *rotation) dropped(ctx context.Context, nodes []*cluster.Node) error {
	for i, node := range nodes {
		member := nodes[(i+1)%len(nodes)].ID
		switch err := o.asNode(ctx, node, member, o.new); {
		case refusedByTLS(err):
			return brokenError(fmt.Sprintf("%s refuses the present certificate of %s: %v", node.ID, member, err))
		case err != nil:
			return fmt.Errorf("%s cannot be reached as %s: %w", node.ID, member, err)
		}
		if err := o.asNode(ctx, node, member, o.old); !refusedByTLS(err) {
			return brokenError(fmt.Sprintf("%s does not refuse the certificate that the dropped CA signed for %s: %v", node.ID, member, err))
		}
		conn, err := certs.Secured(o.env.Dial, o.set.CA(o.old))(ctx, "tcp", node.API)
		if err == nil {
			_ = conn.Close()
			return brokenError(fmt.Sprintf("the API of %s still shows a certificate of the dropped CA", node.ID))
		}
		if _, ok := errors.AsType[x509.UnknownAuthorityError](err); !ok {
			return fmt.Errorf("the API of %s: %w", node.ID, err)
		}
		o.refused += 2
	}
	return o.outside(ctx, nodes[len(nodes)-1])
}

// asNode connects to a node's port for nodes with a member's pair of a generation. A server reports its verdict only after the client's
// part of the handshake; one that accepts waits for the client to speak first.
func (o *rotation) asNode(ctx context.Context, node *cluster.Node, member string, generation int) error {
	config, err := o.set.AsNode(member, generation, o.set.CA(o.new))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := certs.Handshake(ctx, o.env.Dial, "tcp", node.Raft, config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return nil
	}
	return err
}

// refusedByTLS says whether the other side ended a connection because of the certificate.
func refusedByTLS(err error) bool {
	_, ok := errors.AsType[tls.AlertError](err)
	if op, is := errors.AsType[*net.OpError](err); is && op.Op == "remote error" {
		return true
	}
	return ok
}

// outside restarts a node with its files from before the rotation: it must reach no other. With the present files it must return.
func (o *rotation) outside(ctx context.Context, node *cluster.Node) error {
	if !node.Stop() {
		return fmt.Errorf("%s did not stop within 15 s", node.ID)
	}
	err := errors.Join(o.set.Trust(node.ID, o.old, o.new), o.set.UsePair(node.ID, o.old), node.Start())
	if err != nil {
		return err
	}
	if node.AwaitReady(ctx, 3*time.Second) == nil {
		err = brokenError(fmt.Sprintf("%s takes part with a certificate of the dropped CA", node.ID))
	}
	o.refused++
	err = errors.Join(err, o.set.Trust(node.ID, o.new), o.set.UsePair(node.ID, o.new))
	reload, cancel := context.WithTimeout(ctx, seesOthersWithin)
	defer cancel()
	if reloadErr := node.Reload(reload); reloadErr != nil {
		return errors.Join(err, reloadErr)
	}
	if readyErr := node.AwaitReady(ctx, seesOthersWithin); readyErr != nil {
		err = errors.Join(err, brokenError(fmt.Sprintf("%s with its present certificate: %v", node.ID, readyErr)))
	}
	return err
}
