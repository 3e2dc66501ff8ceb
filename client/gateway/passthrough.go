package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// maxAPI is the largest forwarded request of the cluster's API, in bytes: the API's own bound.
const maxAPI = 4 << 20

// lends reports whether a call gets the gateway's token: callers' calls do, and operators' calls do not. Whatever verbs the token has, no
// local process operates the cluster by it.
func lends(procedure string) bool {
	switch procedure {
	case quotav1connect.TaskServiceRetryTaskProcedure, quotav1connect.TaskServiceForgetTaskProcedure:
		return false
	}
	service := strings.TrimPrefix(path.Dir(procedure), "/")
	return service == quotav1connect.QuotaServiceName || service == quotav1connect.TaskServiceName
}

// serveAPI forwards a call of quota.v1.* to the cluster unchanged, except that a command without a request id gets one. A caller's own
// token goes with it. If this gateway requires no tokens, it adds its own token, which covers only the holders of this machine.
func (g *Gateway) serveAPI(w http.ResponseWriter, r *http.Request, c *call) {
	// Check the header as the caller sent it: the proxy removes headers named by Connection before it rewrites the request.
	nothing := r.Header.Get("Authorization") == ""
	if g.options.Tokens != nil && nothing {
		c.refuse(w, dialect.Refusal{Status: http.StatusUnauthorized, Message: "quotad: send a token of the cluster as Authorization: Bearer"})
		return
	}
	adds := g.options.Tokens == nil && nothing && g.cluster.token != ""
	if adds && !lends(r.URL.Path) {
		c.refuse(w, dialect.Refusal{Status: http.StatusForbidden, Message: "quotad: " + strings.TrimPrefix(r.URL.Path, "/quota.v1.") +
			" is for operators: call a node, or send a token of your own as Authorization: Bearer"})
		return
	}
	keep := accountant{gateway: g, most: c.state.config.Limits.Memory}
	defer keep.release()
	var body bytes.Buffer
	switch n, err := io.Copy(io.MultiWriter(&keep, &body), io.LimitReader(r.Body, maxAPI+1)); {
	case err != nil:
		c.refuse(w, bodyRefusal(err))
		return
	case n > maxAPI:
		c.refuse(w, dialect.Refusal{Status: http.StatusRequestEntityTooLarge, Message: "quotad: a request of the API has at most 4 MiB"})
		return
	}
	passes := httputil.ReverseProxy{
		FlushInterval: -1, ErrorLog: discardLog, Transport: &apiSender{gateway: g, call: readAPICall(r, body.Bytes())},
		Rewrite: func(p *httputil.ProxyRequest) {
			if adds {
				p.Out.Header.Set("Authorization", "Bearer "+g.cluster.token)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if sent, ok := errors.AsType[*upstreamError](err); ok {
				c.refuse(w, dialect.Refusal{Status: http.StatusBadGateway, Message: fmt.Sprintf(
					"quotad: a node did not answer, so the outcome is unknown (%v); send it again with the same request id", sent)})
				return
			}
			c.refuse(w, c.awayRefusal(err))
		},
	}
	passes.ServeHTTP(newFinalWriter(w, r), r)
}

// apiSender sends a call to the nodes, the leader first, until one of them has decided it, or the cluster is away. A follower forwards
// it. A call that may have been carried out is sent again only if that is safe.
type apiSender struct {
	gateway *Gateway
	call    *apiCall
	// token is the Authorization header that it is sent with.
	token string
	// doubt: an attempt may have been carried out. unknown is an answer that reports that; nil: none did.
	doubt   bool
	unknown *http.Response
}

// apiPause is the pause after all nodes failed to take the call.
const apiPause = 50 * time.Millisecond

// RoundTrip implements http.RoundTripper.
func (s *apiSender) RoundTrip(request *http.Request) (*http.Response, error) {
	s.token = request.Header.Get("Authorization")
	s.gateway.api.number(request.Context(), s.gateway, s.call, s.token)
	defer s.call.finish()
	ctx, cancel := context.WithCancel(request.Context())
	if s.call.prompt {
		late := time.AfterFunc(awayAfter, cancel)
		defer late.Stop()
	}
	response, err := s.askUntil(request.WithContext(ctx))
	if response == nil || err != nil {
		silent := ctx.Err() != nil && request.Context().Err() == nil
		cancel()
		switch {
		case silent && s.doubt:
			return nil, &upstreamError{err: errSilent, sent: true}
		case silent:
			return nil, errSilent
		}
		return nil, err
	}
	response.Body = splice{response.Body, closeAlso{response.Body, cancel}}
	return response, nil
}

// errSilent: no node answered in time, for a call that does not wait.
var errSilent = fmt.Errorf("no answer within %v", awayAfter)

// closeAlso closes a body and then calls end.
type closeAlso struct {
	io.Closer
	end func()
}

// Close implements io.Closer.
func (c closeAlso) Close() error {
	defer c.end()
	return c.Closer.Close()
}

// askUntil asks the nodes repeatedly until one has decided the call.
func (s *apiSender) askUntil(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	until := time.Now().Add(awayAfter)
	for {
		began := time.Now()
		response, decided, err := s.askAll(request)
		if decided {
			return response, err
		}
		if time.Since(began) > awayAfter {
			until = time.Now().Add(awayAfter) // the call waited there, which shows nothing about the cluster
		}
		if time.Now().After(until) || sleep(ctx, apiPause) != nil {
			return response, err
		}
	}
}

// askAll asks one node after the other. The call is decided if an answer is final, or if it must not be sent again. Otherwise askAll
// returns the answer to give if later attempts bring nothing better.
func (s *apiSender) askAll(request *http.Request) (undecided *http.Response, decided bool, failed error) {
	for _, address := range s.gateway.nodesInOrder() {
		response, err := s.ask(request, address)
		switch {
		case err == nil:
			switch s.outcome(response) {
			case apiDecided:
				return response, true, nil
			case apiUnknown:
				s.doubt, s.unknown = true, response
			case apiNotAccepted:
				undecided = response
			}
		case isDial(err):
			failed = errors.Join(failed, err)
		default:
			failed = err
			if !s.call.reads {
				s.doubt, failed = true, &upstreamError{err: err, sent: true}
			}
			if !s.call.repeats || request.Context().Err() != nil {
				return nil, true, failed
			}
		}
	}
	switch {
	case s.unknown != nil:
		return s.unknown, false, nil
	case s.doubt:
		return nil, false, &upstreamError{err: cmp.Or(failed, errUndecided), sent: true}
	case undecided != nil:
		return undecided, false, nil
	}
	return nil, false, failed
}

// errUndecided: no node accepts a repeat of a call that may have been carried out.
var errUndecided = errors.New("no node takes it now")

// nodesInOrder returns the addresses of the nodes, with the leader's first if it is known.
func (g *Gateway) nodesInOrder() []string {
	leader := g.client.Leader()
	if leader == "" {
		return g.cluster.addresses
	}
	return append([]string{leader}, slices.DeleteFunc(slices.Clone(g.cluster.addresses), func(address string) bool {
		return base(address) == leader
	})...)
}

// ask sends the call to a node.
func (s *apiSender) ask(request *http.Request, address string) (*http.Response, error) {
	to, err := url.Parse(base(address))
	if err != nil {
		return nil, err
	}
	attempt := request.Clone(request.Context())
	attempt.URL.Scheme, attempt.URL.Host, attempt.Host = to.Scheme, to.Host, to.Host
	attempt.URL.Path = strings.TrimRight(to.Path, "/") + request.URL.Path
	attempt.Header = onceOnly(attempt.Header)
	body := s.call.body()
	attempt.Body, attempt.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return s.gateway.cluster.http.Transport.RoundTrip(attempt)
}

// apiOutcome is the outcome of a call according to an answer.
type apiOutcome int

const (
	apiDecided apiOutcome = iota
	apiNotAccepted
	apiUnknown
)

// maxAPIError bounds how much of an error is read to determine the call's outcome, in bytes.
const maxAPIError = 64 << 10

// outcome determines the call's outcome from an answer. If the call may not be sent again, any answer is final.
func (s *apiSender) outcome(response *http.Response) apiOutcome {
	if response.StatusCode < http.StatusBadRequest || !s.call.repeats || s.call.header.Get("Quotad-No-Forward") != "" {
		return apiDecided
	}
	start, err := io.ReadAll(io.LimitReader(response.Body, maxAPIError))
	if err != nil || len(start) == maxAPIError {
		response.Body = splice{io.MultiReader(bytes.NewReader(start), response.Body), response.Body}
		return apiDecided
	}
	_ = response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(start))
	info := errorInfoOf(start)
	switch {
	case info.GetReason() == quotav1.Reason_REASON_UNKNOWN_SESSION && s.call.numbered():
		// The gateway's session ended. A new number is a new request, so it may be sent only if this one certainly had no effect.
		s.gateway.api.forget(s.call, s.token)
		if s.doubt {
			return apiUnknown
		}
		s.gateway.api.number(response.Request.Context(), s.gateway, s.call, s.token)
		return apiNotAccepted
	case info.GetOutcome() == quotav1.Outcome_OUTCOME_UNKNOWN:
		return apiUnknown
	case info.GetReason() == quotav1.Reason_REASON_NO_LEADER, info.GetReason() == quotav1.Reason_REASON_STOPPING:
		return apiNotAccepted
	}
	return apiDecided
}

// errorInfoOf returns the detail of a node's error; nil if it has none.
func errorInfoOf(body []byte) *quotav1.ErrorInfo {
	var said struct {
		Details []struct {
			Type  string `json:"type"`
			Value string `json:"value"`
		} `json:"details"`
	}
	if json.Unmarshal(body, &said) != nil {
		return nil
	}
	for _, detail := range said.Details {
		value, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(detail.Value, "="))
		info := &quotav1.ErrorInfo{}
		if detail.Type == "quota.v1.ErrorInfo" && err == nil && proto.Unmarshal(value, info) == nil {
			return info
		}
	}
	return nil
}
