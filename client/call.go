package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/quotad/quotad/rpc/signals"
)

// call returns the quotas that a request draws on, and the request to send: if possible, with a body that can be read
// again.
func (t *Transport) call(request *http.Request) (*http.Request, Call, error) {
	s := &t.settings
	if s.match == nil && len(s.providers) == 0 {
		closeBody(request)
		return nil, Call{}, errNothingGoverned
	}
	provider := s.providerOf(request)
	if provider == nil && s.match == nil {
		t.warnUngoverned(request)
		return request, Call{}, nil
	}
	var call Call
	if provider == nil && isStream(request) {
		// Its writer may wait for the answer, so it is read only if the call draws on a quota.
		if call = s.match(request); len(call.Items) == 0 {
			return request, call, nil
		}
	}
	request, err := t.makeRepeatable(request)
	if err != nil {
		return nil, Call{}, err
	}
	if s.match != nil && len(call.Items) == 0 {
		call = s.match(request)
	}
	if provider != nil && len(call.Items) == 0 {
		call = provider.call(request)
	}
	if len(call.Items) == 0 {
		return request, call, nil
	}
	call.Items = slices.Clone(call.Items) // these may be the matcher's own
	call.Dialect = s.dialectOf(call, provider)
	t.appraise(request.Context(), &call)
	if s.adjust != nil {
		s.adjust(request, &call)
	}
	return request, call, nil
}

// errNothingGoverned reports a Transport without providers and without a matcher.
var errNothingGoverned = errors.New(
	"quotad: the transport has no provider: pass one such as client.OpenAI() to NewTransport, or use client.Match")

// providerOf returns the provider whose host a request goes to; nil for other hosts.
func (s *transportSettings) providerOf(request *http.Request) *upstream {
	for _, p := range s.providers {
		if p.takes(request) {
			return p
		}
	}
	return nil
}

// dialectOf returns the dialect for reading the answer to a call.
func (s *transportSettings) dialectOf(call Call, p *upstream) signals.Dialect {
	switch {
	case s.dialect.Name() != "":
		return s.dialect
	case call.Dialect.Name() != "":
		return call.Dialect
	case p != nil:
		return p.dialect
	}
	return signals.Auto
}

// warnUngoverned warns once about requests that pass without a quota, if none was governed so far: the hosts are
// probably wrong.
func (t *Transport) warnUngoverned(request *http.Request) {
	if t.calls.Load() > 0 {
		return
	}
	t.warned.Do(func() {
		var hosts []string
		for _, p := range t.settings.providers {
			hosts = append(hosts, p.hosts...)
		}
		t.client.logger.Warn("a request was sent without a quota: its host belongs to no provider of the transport (see client.Hosts)",
			"host", request.URL.Host, "hosts", hosts)
	})
}

func closeBody(request *http.Request) {
	if request.Body != nil {
		_ = request.Body.Close()
	}
}

// isStream reports whether a request's body has an unknown length and cannot be read again.
func isStream(request *http.Request) bool {
	return request.Body != nil && request.Body != http.NoBody && request.GetBody == nil && request.ContentLength <= 0
}

// makeRepeatable returns the request with GetBody set. It reads the body for that, unless the body is too long.
func (t *Transport) makeRepeatable(request *http.Request) (*http.Request, error) {
	most := t.settings.maxBody
	if request.Body == nil || request.Body == http.NoBody || request.GetBody != nil || request.ContentLength > most || most == 0 {
		return request, nil
	}
	start, err := io.ReadAll(io.LimitReader(request.Body, most+1))
	if err != nil {
		closeBody(request)
		return nil, fmt.Errorf("quotad: read the request's body: %w", err)
	}
	copied := request.Clone(request.Context())
	if int64(len(start)) > most {
		copied.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(start), request.Body), request.Body}
		return copied, nil
	}
	closeBody(request)
	if len(start) == 0 {
		copied.Body = http.NoBody
		return copied, nil
	}
	copied.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(start)), nil }
	copied.Body, _ = copied.GetBody()
	if request.ContentLength <= 0 {
		// The length is known now, and some providers refuse a body without one.
		copied.ContentLength, copied.TransferEncoding = int64(len(start)), nil
	}
	return copied, nil
}
