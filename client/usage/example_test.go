package usage_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/quotad/quotad/client/usage"
)

// A Meter reads a copy of the body while another reader uses it.
func ExampleMeter() {
	response := &http.Response{
		Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: io.NopCloser(strings.NewReader(
			`data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}` + "\n\ndata: [DONE]\n\n")),
	}
	meter := usage.NewMeter(response.Header)
	defer meter.End()
	if _, err := io.Copy(io.Discard, io.TeeReader(response.Body, meter)); err != nil {
		fmt.Println(err)
		return
	}
	said := meter.Said()
	fmt.Println(said.Input.N, said.Output.N, said.Last)
	// Output: 9 2 true
}
