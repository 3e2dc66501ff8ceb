package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Gateway is the process through which programs of a machine call a model. The suite's *gateway implements it.
type Gateway interface {
	// Host is the name of its host.
	Host() string
	// Running says whether it runs.
	Running() bool
	// Kill kills it, and says whether it ran.
	Kill() bool
	// Start starts it and waits until it listens.
	Start(ctx context.Context) error
	// SwapKey replaces the provider's key. The provider accepts both keys during overlap, and only the new one afterwards.
	SwapKey(overlap func()) error
}

// gatewayFaults begins the names of gateway faults.
const gatewayFaults = "gateway-"

// Gateway says whether the mix has gateway faults, and so needs a gateway.
func (m Mix) Gateway() bool {
	for _, name := range m.Names() {
		if strings.HasPrefix(name, gatewayFaults) {
			return true
		}
	}
	return false
}

// gatewayKilled kills the gateway with SIGKILL while calls are in flight, and starts it again.
func gatewayKilled() Fault {
	return onGateway("killed", func(ctx context.Context, e *Env, hold func(context.Context)) (string, error) {
		if !e.Gateway.Kill() {
			return "", errNotSeen
		}
		hold(ctx)
		return "1 process gone", e.Gateway.Start(context.WithoutCancel(ctx))
	})
}

// awayFor is how long no node can be reached, at most until the end of the run.
const awayFor = 30 * time.Second

// gatewayCutOff cuts the gateway off from all nodes, but not from the provider.
func gatewayCutOff() Fault {
	return onGateway("cut-off", func(ctx context.Context, e *Env, _ func(context.Context)) (string, error) {
		before := e.Links.Dropped()
		each := func(do func(from, to string) error) error {
			var err error
			for _, node := range e.Cluster.Nodes() {
				err = errors.Join(err, do(e.Gateway.Host(), node.ID), do(node.ID, e.Gateway.Host()))
			}
			return err
		}
		err := each(e.Links.Cut)
		wait(ctx, awayFor)
		err = errors.Join(err, each(e.Links.HealLink))
		dropped := e.Links.Dropped() - before
		if err == nil && dropped == 0 {
			err = errNotSeen
		}
		return fmt.Sprintf("%d packets dropped", dropped), err
	})
}

// gatewayUpstreamCuts makes the provider break streams off in the middle.
func gatewayUpstreamCuts() Fault {
	return onGateway("upstream-cuts", func(ctx context.Context, e *Env, hold func(context.Context)) (string, error) {
		before := e.Cut()
		e.CutStreams(true)
		hold(ctx)
		e.CutStreams(false)
		cut := e.Cut() - before
		if cut == 0 {
			return "", errNotSeen
		}
		return fmt.Sprintf("%d streams were broken off", cut), nil
	})
}

// swapWithin is how long a replaced key may be used. The file is checked every five seconds. Calls may have chosen the key before they
// waited for a grant and for the provider's cooldown.
const swapWithin = 15 * time.Second

// gatewayKeySwapped swaps the file of the provider's key, as Kubernetes swaps a secret.
func gatewayKeySwapped() Fault {
	return onGateway("key-swapped", func(ctx context.Context, e *Env, _ func(context.Context)) (string, error) {
		err := e.Gateway.SwapKey(func() { wait(context.WithoutCancel(ctx), swapWithin) })
		return "the provider takes the new key alone", err
	})
}

// onGateway makes a fault of the gateway.
func onGateway(name string, do func(context.Context, *Env, func(context.Context)) (string, error)) Fault {
	return Fault{Name: gatewayFaults + name, do: func(ctx context.Context, e *Env, _ *rand.Rand, hold func(context.Context)) (hit, error) {
		seen, err := do(ctx, e, hold)
		return hit{targets: []string{"gateway"}, seen: seen}, err
	}}
}
