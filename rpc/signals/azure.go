package signals

import (
	"net/http"
	"strings"
)

// Azure is the dialect of OpenAI's models on Azure, and of the API Management in front of them. It has OpenAI's headers with resets in
// whole seconds; -1 and 0 mean unknown.
var Azure = Dialect{name: "azure", observe: observeAzure}

func observeAzure(r *response) []Signal {
	if r.status != http.StatusForbidden {
		return observeOpenAI(r)
	}
	// API Management answers 403 to a used-up quota, and 429 to a used-up rate.
	asked := r.retryAfter()
	var said struct {
		Message string       `json:"message"`
		Error   *openaiError `json:"error"`
	}
	if readJSON(r.body, &said) && said.Error != nil {
		said.Message = said.Error.Message
	}
	if !asked.said && !strings.Contains(strings.ToLower(said.Message), "quota") {
		return []Signal{{Class: NotALimit, NoRetry: r.noRetry(), Rule: "azure/forbidden"}}
	}
	return []Signal{asked.or(messageWait(said.Message)).on(Signal{Class: Exhausted, NoRetry: r.noRetry(), Rule: "azure/quota"})}
}
