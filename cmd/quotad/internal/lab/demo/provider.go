package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/quotad/quotad/client/providertest"
)

// providerReady is the line with which the provider process reports its URL.
type providerReady struct {
	URL string `json:"url"`
}

// runProvider is the provider process: it serves until ctx ends.
func runProvider(ctx context.Context, seed uint64, out io.Writer) error {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := providertest.Serve(listener, providerConfig(seed))
	if err := json.NewEncoder(out).Encode(providerReady{URL: server.URL}); err != nil {
		return err
	}
	<-ctx.Done()
	return server.Close()
}

// referee reads the provider's counts.
type referee struct {
	url  string
	http *http.Client
}

func newReferee(url string) *referee {
	return &referee{url: url, http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}}
}

// totals returns the provider's counts of each fleet and API.
func (f *referee) totals(ctx context.Context) (map[mode]map[api]providertest.Totals, error) {
	body, err := f.get(ctx, "totals")
	if err != nil {
		return nil, err
	}
	defer body.Close() //nolint:errcheck // it was read
	var all []providertest.Totals
	if err := json.NewDecoder(body).Decode(&all); err != nil {
		return nil, err
	}
	out := make(map[mode]map[api]providertest.Totals)
	for _, m := range []mode{own, governed} {
		out[m] = make(map[api]providertest.Totals)
		for _, t := range all {
			if t.Key == m.key() {
				out[m][api(t.API)] = t
			}
		}
	}
	return out, nil
}

// records returns every request that the provider saw.
func (f *referee) records(ctx context.Context) ([]providertest.Record, error) {
	body, err := f.get(ctx, "records")
	if err != nil {
		return nil, err
	}
	defer body.Close() //nolint:errcheck // it was read
	return providertest.ReadRecords(body)
}

func (f *referee) get(ctx context.Context, what string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/_provider/"+what, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := f.http.Do(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the provider's %s: status %d", what, response.StatusCode)
	}
	return response.Body, nil
}
