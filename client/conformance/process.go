package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// driver is the client under test: a process that answers commands.
type driver struct {
	process *exec.Cmd
	in      io.WriteCloser
	done    chan struct{}

	mu      sync.Mutex
	next    int64
	waiting map[int64]chan answer
	err     error
}

// patience is how long a driver may take in addition to a command's time.
const patience = time.Minute

// startDriver starts a driver. Its standard error goes to this process's.
func startDriver(command []string) (*driver, error) {
	process := exec.CommandContext(context.Background(), command[0], command[1:]...) // stopped by stop
	process.Stderr = os.Stderr
	in, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}
	d := &driver{process: process, in: in, done: make(chan struct{}), waiting: map[int64]chan answer{}}
	go d.read(out)
	return d, nil
}

// read delivers answers to their waiting commands.
func (d *driver) read(out io.Reader) {
	defer close(d.done)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			d.end(fmt.Errorf("the driver wrote a line that is no answer: %q: %w", lines.Text(), err))
			return
		}
		d.mu.Lock()
		waiting := d.waiting[a.ID]
		delete(d.waiting, a.ID)
		d.mu.Unlock()
		if waiting == nil {
			d.end(fmt.Errorf("the driver answered command %d, which nobody asked or which it answered before", a.ID))
			return
		}
		waiting <- a
	}
	d.end(errors.Join(errors.New("the driver ended"), lines.Err()))
}

func (d *driver) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
	}
}

// pending is a command in flight.
type pending struct {
	of     *driver
	do     string
	result chan answer
	within time.Duration
}

// begin sends a command without waiting for its answer.
func (d *driver) begin(r request) (*pending, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	r.ID = d.next
	p := &pending{of: d, do: r.Do, result: make(chan answer, 1), within: patience + time.Duration(r.Within+r.Wait)*time.Millisecond}
	d.waiting[r.ID] = p.result
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if _, err := d.in.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("write to the driver: %w", err)
	}
	return p, nil
}

// wait waits for the answer.
func (p *pending) wait() (answer, error) {
	timer := time.NewTimer(p.within)
	defer timer.Stop()
	select {
	case a := <-p.result:
		return a, nil
	case <-p.of.done:
		select {
		case a := <-p.result: // the last answer
			return a, nil
		default:
		}
		p.of.mu.Lock()
		defer p.of.mu.Unlock()
		return answer{}, p.of.err
	case <-timer.C:
		return answer{}, fmt.Errorf("the driver did not answer %q within %v", p.do, p.within)
	}
}

// call sends a command and waits for its answer.
func (d *driver) call(r request) (answer, error) {
	p, err := d.begin(r)
	if err != nil {
		return answer{}, err
	}
	return p.wait()
}

// stop ends the driver: by the end of its input, and by force if it keeps running.
func (d *driver) stop() {
	_ = d.in.Close()
	kill := time.AfterFunc(10*time.Second, func() { _ = d.process.Process.Kill() })
	defer kill.Stop()
	<-d.done
	_ = d.process.Wait() // its exit status says nothing about the client
}
