package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/quotad/quotad/client"
)

// goDriver drives the Go client.
type goDriver struct {
	mu     sync.Mutex
	client *client.Client
	leases map[string]*client.Lease
}

// maxLine bounds a line of the protocol, in bytes.
const maxLine = 1 << 20

// serveDriver answers commands until the input ends. Commands run concurrently.
func serveDriver(in io.Reader, out io.Writer) error {
	d := &goDriver{leases: map[string]*client.Lease{}}
	var writing sync.Mutex
	var running sync.WaitGroup
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	encoder := json.NewEncoder(out)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("read a command: %w", err)
		}
		running.Go(func() {
			a := d.do(r)
			a.ID = r.ID
			writing.Lock()
			defer writing.Unlock()
			_ = encoder.Encode(a) // the reader may have gone
		})
	}
	running.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client != nil {
		_ = d.client.Close() // leases expire
	}
	return lines.Err()
}

// do carries out a command.
func (d *goDriver) do(r request) answer {
	within := time.Duration(r.Within) * time.Millisecond
	if within <= 0 {
		within = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	switch r.Do {
	case doConnect:
		return d.connect(r)
	case doReserve:
		return d.reserve(ctx, r)
	case doBatch:
		return d.batch(r)
	}
	d.mu.Lock()
	lease := d.leases[r.Lease]
	d.mu.Unlock()
	if lease == nil {
		return answer{Outcome: rejected, Error: fmt.Sprintf("command %q of lease %q: no such command or lease", r.Do, r.Lease)}
	}
	var err error
	switch r.Do {
	case doConsume:
		_, err = lease.Consume(ctx)
	case doRenew:
		err = lease.Renew(ctx, time.Duration(r.TTL)*time.Millisecond)
	case doRelease:
		_, err = lease.Release(ctx)
	case doLeft:
		return answer{Outcome: applied, Left: lease.Left().Milliseconds()}
	default:
		return answer{Outcome: rejected, Error: "unknown command " + r.Do}
	}
	return outcomeOf(err)
}

func (d *goDriver) connect(r request) answer {
	c, err := client.New(r.Nodes, client.WithHolder(r.Holder), client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return answer{Outcome: rejected, Error: err.Error()}
	}
	d.mu.Lock()
	before := d.client
	d.client = c
	d.mu.Unlock()
	if before != nil {
		_ = before.Close() // leases expire
	}
	return answer{Outcome: applied}
}

func (d *goDriver) reserve(ctx context.Context, r request) answer {
	ask := client.ReserveRequest{
		TTL: time.Duration(r.TTL) * time.Millisecond, Wait: time.Duration(r.Wait) * time.Millisecond, Consume: r.Consume,
	}
	for _, i := range r.Items {
		ask.Items = append(ask.Items, client.Item{Quota: i.Quota, Amount: i.Amount})
	}
	d.mu.Lock()
	c := d.client
	d.mu.Unlock()
	if c == nil {
		return answer{Outcome: rejected, Error: "connect comes first"}
	}
	lease, err := c.Reserve(ctx, ask)
	if err != nil {
		return outcomeOf(err)
	}
	id := strconv.FormatUint(lease.ID(), 10)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leases[id] = lease
	return answer{Outcome: applied, Lease: id, Left: lease.Left().Milliseconds()}
}

// batch runs commands concurrently: concurrent requests of a process travel together.
func (d *goDriver) batch(r request) answer {
	a := answer{Outcome: applied, Results: make([]answer, len(r.Commands))}
	var running sync.WaitGroup
	for i, command := range r.Commands {
		running.Go(func() {
			command.Within = r.Within
			a.Results[i] = d.do(command)
		})
	}
	running.Wait()
	return a
}

// outcomeOf converts an error of the client to its outcome.
func outcomeOf(err error) answer {
	if err == nil {
		return answer{Outcome: applied}
	}
	a := answer{Outcome: rejected, Error: err.Error()}
	if reason, ok := errors.AsType[client.Reason](err); ok {
		a.Reason = reason.String()
	}
	var refusal *client.RefusalError
	switch {
	case errors.As(err, &refusal):
		a.Outcome, a.Quota = refused, refusal.Quota
		if refusal.RetryAfter >= 0 {
			wait := refusal.RetryAfter.Milliseconds()
			a.RetryAfter = &wait
		}
	case errors.As(err, new(*client.UnknownOutcomeError)):
		a.Outcome = unknown
	case errors.As(err, new(*client.NotAcceptedError)):
		a.Outcome = notAccepted
	}
	return a
}
