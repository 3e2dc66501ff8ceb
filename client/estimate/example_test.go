package estimate_test

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/rpc/signals"
)

func ExampleLearner() {
	learner := estimate.NewLearner(nil)
	call := estimate.Key{Upstream: "openai", Model: "gpt-5", Holder: "picard"}

	route := estimate.RouteOf(signals.OpenAI, &url.URL{Path: "/v1/responses"})
	request := estimate.Read(signals.OpenAI, route, strings.NewReader(`{"model":"gpt-5","input":"`+strings.Repeat("word", 300)+`"}`))
	fmt.Println("before:", learner.Estimate(call, request, 0).AtArrival())

	for range 20 {
		learner.Learn(call, request, estimate.Said{Input: 330, Output: 500})
	}
	fmt.Println("after 20 calls:", learner.Estimate(call, request, 0).AtArrival())
	// Output:
	// before: 4300
	// after 20 calls: 830
}
