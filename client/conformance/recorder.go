package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/rpc/quotav1"
)

// exchange is a request of the client and the node's answer, as the proxy saw them.
type exchange struct {
	member  int
	method  string
	arrived time.Time
	// commands are those of a Batch, or the single one of another call.
	commands []*quotav1.Command
	// fate is the treatment of its answer.
	fate fate

	// The following fields are set once the node has answered: results by position, empty if the call failed as a whole.
	answered time.Time
	results  []*quotav1.CommandResult
	servedIn time.Duration
	// delivered: the answer was sent to the client.
	delivered bool
}

// recorder records exchanges, and decides the fate of each.
type recorder struct {
	mu   sync.Mutex
	all  []*exchange
	rule func(*exchange) fate
	// unread is the error of a request that could not be decoded.
	unread error
}

// reset discards the records.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all, r.rule, r.unread = nil, nil, nil
}

// set decides the fate of each exchange from now on; nil: all answers arrive.
func (r *recorder) set(rule func(*exchange) fate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rule = rule
}

// request records a request; nil: it carries no commands.
func (r *recorder) request(member int, method string, header http.Header, body []byte) *exchange {
	e := &exchange{member: member, method: method, arrived: time.Now()}
	message := requestOf(method)
	if message == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := decode(header, body, message); err != nil {
		r.unread = fmt.Errorf("a %s that cannot be read: %w", method, err)
		return nil
	}
	e.commands = commandsOf(message)
	if r.rule != nil {
		e.fate = r.rule(e)
	}
	r.all = append(r.all, e)
	return e
}

// answer records an answer and returns its fate.
func (r *recorder) answer(e *exchange, response *http.Response, data []byte) fate {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.answered = time.Now()
	message := responseOf(e.method)
	if response.StatusCode == http.StatusOK && decode(response.Header, data, message) == nil {
		e.results = resultsOf(message)
		if with, ok := message.(interface{ GetMeta() *quotav1.Meta }); ok {
			e.servedIn = with.GetMeta().GetServedIn().AsDuration()
		}
	}
	return e.fate
}

// deliver records the delivery of an answer to the client, before it happens.
func (r *recorder) deliver(e *exchange) {
	if e == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.delivered = true
}

// sighting is one command in an exchange.
type sighting struct {
	*exchange
	command *quotav1.Command
	// result is nil until there is one.
	result *quotav1.CommandResult
}

// of returns the sightings of commands that match a filter, in order of arrival.
func (r *recorder) of(takes func(*quotav1.Command) bool) (out []sighting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.all {
		copied := *e
		for i, command := range e.commands {
			if !takes(command) {
				continue
			}
			s := sighting{exchange: &copied, command: command}
			if i < len(e.results) {
				s.result = e.results[i]
			}
			out = append(out, s)
		}
	}
	return out
}

// reservesOf matches Reserves of one quota.
func reservesOf(quota string) func(*quotav1.Command) bool {
	return func(c *quotav1.Command) bool {
		items := c.GetReserve().GetItems()
		return len(items) > 0 && items[0].GetQuota() == quota
	}
}

// carries reports whether an exchange has a command that matches a filter.
func (e *exchange) carries(takes func(*quotav1.Command) bool) bool {
	return slices.ContainsFunc(e.commands, takes)
}

// decode decodes a message in any of its encodings.
func decode(header http.Header, body []byte, into proto.Message) error {
	if strings.EqualFold(header.Get("Content-Encoding"), "gzip") {
		unpacked, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return err
		}
		if body, err = io.ReadAll(io.LimitReader(unpacked, maxBody)); err != nil {
			return err
		}
	}
	kind, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	switch kind {
	case "application/json":
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, into)
	case "application/proto":
		return proto.Unmarshal(body, into)
	case "application/grpc", "application/grpc+proto":
		const prefix = 5 // a flag and a length precede each message
		if len(body) < prefix || body[0] != 0 {
			return errors.New("a gRPC message that is compressed or cut off")
		}
		size := int(body[1])<<24 | int(body[2])<<16 | int(body[3])<<8 | int(body[4])
		if size > len(body)-prefix {
			return errors.New("a gRPC message that is cut off")
		}
		return proto.Unmarshal(body[prefix:prefix+size], into)
	}
	return fmt.Errorf("content type %q: send application/json, application/proto or application/grpc", kind)
}

func requestOf(method string) proto.Message {
	switch method {
	case "Reserve":
		return &quotav1.ReserveRequest{}
	case "Consume":
		return &quotav1.ConsumeRequest{}
	case "Settle":
		return &quotav1.SettleRequest{}
	case "Release":
		return &quotav1.ReleaseRequest{}
	case "Renew":
		return &quotav1.RenewRequest{}
	case "Withdraw":
		return &quotav1.WithdrawRequest{}
	case "Report":
		return &quotav1.ReportRequest{}
	case "Batch":
		return &quotav1.BatchRequest{}
	}
	return nil
}

func responseOf(method string) proto.Message {
	switch method {
	case "Reserve":
		return &quotav1.ReserveResponse{}
	case "Consume":
		return &quotav1.ConsumeResponse{}
	case "Settle":
		return &quotav1.SettleResponse{}
	case "Release":
		return &quotav1.ReleaseResponse{}
	case "Renew":
		return &quotav1.RenewResponse{}
	case "Withdraw":
		return &quotav1.WithdrawResponse{}
	case "Report":
		return &quotav1.ReportResponse{}
	}
	return &quotav1.BatchResponse{}
}

// commandsOf returns the commands of a request.
func commandsOf(message proto.Message) []*quotav1.Command {
	var c quotav1.Command
	switch m := message.(type) {
	case *quotav1.BatchRequest:
		return m.GetCommands()
	case *quotav1.ReserveRequest:
		c.Kind = &quotav1.Command_Reserve{Reserve: m}
	case *quotav1.ConsumeRequest:
		c.Kind = &quotav1.Command_Consume{Consume: m}
	case *quotav1.SettleRequest:
		c.Kind = &quotav1.Command_Settle{Settle: m}
	case *quotav1.ReleaseRequest:
		c.Kind = &quotav1.Command_Release{Release: m}
	case *quotav1.RenewRequest:
		c.Kind = &quotav1.Command_Renew{Renew: m}
	case *quotav1.WithdrawRequest:
		c.Kind = &quotav1.Command_Withdraw{Withdraw: m}
	case *quotav1.ReportRequest:
		c.Kind = &quotav1.Command_Report{Report: m}
	}
	return []*quotav1.Command{&c}
}

// resultsOf returns the results of an answer.
func resultsOf(message proto.Message) []*quotav1.CommandResult {
	var r quotav1.CommandResult
	switch m := message.(type) {
	case *quotav1.BatchResponse:
		return m.GetResults()
	case *quotav1.ReserveResponse:
		r.Kind = &quotav1.CommandResult_Reserve{Reserve: m}
	case *quotav1.ConsumeResponse:
		r.Kind = &quotav1.CommandResult_Consume{Consume: m}
	case *quotav1.SettleResponse:
		r.Kind = &quotav1.CommandResult_Settle{Settle: m}
	case *quotav1.ReleaseResponse:
		r.Kind = &quotav1.CommandResult_Release{Release: m}
	case *quotav1.RenewResponse:
		r.Kind = &quotav1.CommandResult_Renew{Renew: m}
	case *quotav1.WithdrawResponse:
		r.Kind = &quotav1.CommandResult_Withdraw{Withdraw: m}
	case *quotav1.ReportResponse:
		r.Kind = &quotav1.CommandResult_Report{Report: m}
	}
	return []*quotav1.CommandResult{&r}
}

// idOf returns a command's request id.
func idOf(c *quotav1.Command) *quotav1.RequestId {
	switch kind := c.GetKind().(type) {
	case *quotav1.Command_Reserve:
		return kind.Reserve.GetRequestId()
	case *quotav1.Command_Consume:
		return kind.Consume.GetRequestId()
	case *quotav1.Command_Settle:
		return kind.Settle.GetRequestId()
	case *quotav1.Command_Release:
		return kind.Release.GetRequestId()
	case *quotav1.Command_Renew:
		return kind.Renew.GetRequestId()
	case *quotav1.Command_Withdraw:
		return kind.Withdraw.GetRequestId()
	case *quotav1.Command_Report:
		return kind.Report.GetRequestId()
	}
	return nil
}
