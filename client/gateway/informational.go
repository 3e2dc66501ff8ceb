package gateway

import "net/http"

// finalWriter filters a provider's informational answers, and keeps the gateway's own headers: the proxy clears all headers after an
// informational answer.
type finalWriter struct {
	http.ResponseWriter
	own http.Header
	// informs: the client's HTTP version has informational answers.
	informs bool
}

func newFinalWriter(w http.ResponseWriter, r *http.Request) finalWriter {
	return finalWriter{ResponseWriter: w, own: w.Header().Clone(), informs: r.ProtoAtLeast(1, 1)}
}

// WriteHeader implements http.ResponseWriter. 100 Continue is between a client and the server that it talks to: the gateway has sent
// its own.
func (w finalWriter) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		if status != http.StatusContinue && w.informs {
			w.ResponseWriter.WriteHeader(status)
		}
		return
	}
	header := w.Header()
	for name, values := range w.own {
		if _, there := header[name]; !there {
			header[name] = values
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController find the underlying writer.
func (w finalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
