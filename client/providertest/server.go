package providertest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// Server is a Provider that listens.
type Server struct {
	*Provider
	// URL is its address: http://127.0.0.1:port.
	URL    string
	server *http.Server
	done   chan struct{}
}

// NewServer starts a provider on a free port of the loopback interface. Close stops it.
func NewServer(cfg Config) (*Server, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return Serve(listener, cfg), nil
}

// Serve starts a provider on a listener, which it then owns. In addition to the provider's paths it serves those of [Provider.Control].
func Serve(listener net.Listener, cfg Config) *Server {
	p := New(cfg)
	mux := http.NewServeMux()
	mux.Handle(controlPrefix, p.Control())
	mux.Handle("/", p)
	s := &Server{
		Provider: p,
		URL:      "http://" + listener.Addr().String(),
		server: &http.Server{
			Handler:           mux,
			ReadHeaderTimeout: 10 * time.Second,
			ErrorLog:          log.New(io.Discard, "", 0), // broken connections are intentional here
		},
		done: make(chan struct{}),
	}
	go func() {
		defer close(s.done)
		// It always returns an error: after Close, or when the listener breaks, which every caller then notices.
		_ = s.server.Serve(listener)
	}()
	return s
}

// Close stops the server and drops open connections.
func (s *Server) Close() error {
	err := s.server.Close()
	<-s.done
	return err
}

// controlPrefix begins paths that no provider has.
const controlPrefix = "/_provider/"

// Control returns a handler for operators of the provider, not for its callers: GET /_provider/totals, GET /_provider/records (JSON,
// one to a line), POST /_provider/faults with a [Fault].
func (p *Provider) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+controlPrefix+"totals", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p.Totals()) // fails only if the caller has left
	})
	mux.HandleFunc("GET "+controlPrefix+"records", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/jsonl")
		_ = WriteRecords(w, p.Records()) // fails only if the caller has left
	})
	mux.HandleFunc("POST "+controlPrefix+"faults", func(w http.ResponseWriter, r *http.Request) {
		var f Fault
		if err := decodeStrictly(http.MaxBytesReader(w, r.Body, 1<<20), &f); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		p.Inject(f)
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

func decodeStrictly(r io.Reader, into *Fault) error {
	in := json.NewDecoder(r)
	in.DisallowUnknownFields()
	if err := in.Decode(into); err != nil {
		return err
	}
	if into.Status != 0 && (into.Status < 200 || into.Status > 599) {
		return errors.New("status is not between 200 and 599")
	}
	return nil
}
