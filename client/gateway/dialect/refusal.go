package dialect

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
)

// Refusal is an answer of the gateway itself, to be written in the provider's form.
type Refusal struct {
	// Status is the HTTP status.
	Status int
	// Message is for people.
	Message string
	// RequestID is the gateway's id of the call.
	RequestID string

	// The following fields are for refusals by a quota, with status 429.

	// Reason and Quota are the cluster's.
	Reason, Quota string
	// RetryAfter is the time until a retry is useful; below 0: waiting does not help.
	RetryAfter time.Duration
	// Final: no retry can help soon, so clients should not try.
	Final bool
	// Part is the refusing part of the model's quotas: requests, tokens; for GitHub the limit's name.
	Part string
	// Budget: the limit is one of money, or is treated like one, and resets later.
	Budget bool
	// Primary: it is one of GitHub's primary limits. Limit is its amount, Now the present time.
	Primary bool
	Limit   int64
	Now     time.Time
	// Daily: the quota's window lasts a day or more.
	Daily bool
	// Forecast is the cluster's prediction for the requested quotas; nil: none.
	Forecast *Forecast
}

// Forecast predicts that a quota will be exhausted soon, with possible remedies.
type Forecast struct {
	Quota string `json:"quota"`
	// ExhaustedIn is how long it lasts at the present pace, such as 1m30s.
	ExhaustedIn string `json:"exhaustedIn"`
	// Smaller is a factor for the size of calls, 0.1 to 1.
	Smaller float64 `json:"smaller"`
	// Fallback is the quota to use instead; empty: none yet.
	Fallback string `json:"fallback,omitempty"`
	// Parks: background work waits.
	Parks bool `json:"parks,omitempty"`
}

// header formats a forecast as a header, for answers in a provider's form.
func (f *Forecast) header() string {
	said := fmt.Sprintf("quota=%s; exhausted-in=%s; smaller=%s", strconv.QuoteToASCII(f.Quota), f.ExhaustedIn,
		strconv.FormatFloat(f.Smaller, 'f', -1, 64))
	if f.Fallback != "" {
		said += "; fallback=" + strconv.QuoteToASCII(f.Fallback)
	}
	return said
}

// Answer is a refusal in a provider's form.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Refuse writes a refusal in the provider's form.
func (n Name) Refuse(r Refusal) Answer {
	a := Answer{Status: r.Status, Header: http.Header{"Content-Type": {"application/json"}}}
	a.Header.Set("X-Request-Id", r.RequestID)
	switch {
	case r.Quota != "" && r.Reason != "":
		a.Header.Set("X-Quotad-Refusal", fmt.Sprintf("%s; quota=%s", r.Reason, strconv.QuoteToASCII(r.Quota)))
	case r.Reason != "":
		a.Header.Set("X-Quotad-Refusal", r.Reason)
	}
	if r.Forecast != nil {
		a.Header.Set("X-Quotad-Forecast", r.Forecast.header())
	}
	if r.RetryAfter > 0 || r.Status == http.StatusTooManyRequests && r.RetryAfter == 0 {
		a.Header.Set("Retry-After", strconv.FormatInt(ceilSeconds(r.RetryAfter), 10))
		a.Header.Set("Retry-After-Ms", strconv.FormatInt(int64(math.Ceil(float64(r.RetryAfter)/float64(time.Millisecond))), 10))
	}
	if r.Final {
		a.Header.Set("X-Should-Retry", "false")
	}
	switch n {
	case Anthropic:
		a.anthropic(r)
	case Gemini:
		a.gemini(r)
	case Bedrock:
		a.bedrock(r)
	case GitHub:
		a.github(r)
	case Generic:
		a.generic(r)
	case OpenAI, Azure, Codex:
		a.openAI(r, n == Azure)
	}
	return a
}

// ceilSeconds returns whole seconds, rounded up.
func ceilSeconds(d time.Duration) int64 { return int64((max(d, 0) + time.Second - 1) / time.Second) }

// seconds formats a duration as providers do: 11.84s.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(math.Ceil(max(d, 0).Seconds()*1000)/1000, 'f', -1, 64) + "s"
}

func (a *Answer) write(value any) {
	body, err := json.Marshal(value)
	if err != nil {
		body = []byte("{}") // never: the values are maps of strings and numbers
	}
	a.Body = body
}

// openAITypes are the types and codes of errors by status.
var openAITypes = map[int][2]string{
	http.StatusUnauthorized:          {"invalid_request_error", "invalid_api_key"},
	http.StatusForbidden:             {"invalid_request_error", "quotad_refused"},
	http.StatusNotFound:              {"invalid_request_error", "not_found"},
	http.StatusBadGateway:            {"server_error", "bad_gateway"},
	http.StatusServiceUnavailable:    {"server_error", "service_unavailable"},
	http.StatusRequestEntityTooLarge: {"invalid_request_error", "request_too_large"},
}

func (a *Answer) openAI(r Refusal, azure bool) {
	kind, ok := openAITypes[r.Status]
	if !ok {
		kind = [2]string{"invalid_request_error", "quotad_refused"}
	}
	message := r.Message
	if r.Status == http.StatusTooManyRequests {
		kind = [2]string{"requests", "rate_limit_exceeded"}
		switch {
		case r.Budget:
			kind = [2]string{"insufficient_quota", "insufficient_quota"}
		case isTokens(r.Part):
			kind[0] = "tokens"
		}
		switch {
		case r.Budget || r.RetryAfter < 0:
		case azure:
			message += fmt.Sprintf(" Please retry after %d seconds.", ceilSeconds(r.RetryAfter))
		default:
			message += fmt.Sprintf(" Please try again in %s.", seconds(r.RetryAfter))
		}
		if azure && !r.Budget {
			kind[1] = "429"
		}
	}
	a.write(map[string]any{"error": map[string]any{"message": message, "type": kind[0], "param": nil, "code": kind[1]}})
}

func isTokens(part string) bool {
	return part == "tokens" || part == "input-tokens" || part == "output-tokens"
}

var anthropicTypes = map[int]string{
	http.StatusUnauthorized:          "authentication_error",
	http.StatusForbidden:             "permission_error",
	http.StatusNotFound:              "not_found_error",
	http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests:       "rate_limit_error",
	http.StatusBadGateway:            "api_error",
	http.StatusServiceUnavailable:    "api_error",
}

func (a *Answer) anthropic(r Refusal) {
	kind := anthropicTypes[r.Status]
	switch {
	case kind == "":
		kind = "invalid_request_error"
	case r.Budget:
		kind = "billing_error"
	}
	a.Header.Set("Request-Id", r.RequestID)
	a.write(map[string]any{
		"type": "error", "request_id": r.RequestID, "error": map[string]any{"type": kind, "message": r.Message},
	})
}

var geminiStatuses = map[int]string{
	http.StatusUnauthorized:       "UNAUTHENTICATED",
	http.StatusForbidden:          "PERMISSION_DENIED",
	http.StatusNotFound:           "NOT_FOUND",
	http.StatusTooManyRequests:    "RESOURCE_EXHAUSTED",
	http.StatusBadGateway:         "UNAVAILABLE",
	http.StatusServiceUnavailable: "UNAVAILABLE",
}

func (a *Answer) gemini(r Refusal) {
	status := geminiStatuses[r.Status]
	if status == "" {
		status = "INVALID_ARGUMENT"
	}
	said := map[string]any{"code": r.Status, "message": r.Message, "status": status}
	if r.Status == http.StatusTooManyRequests {
		id := "QuotadPerMinute"
		if r.Daily || r.Budget {
			id = "QuotadPerDay"
		}
		details := []any{map[string]any{
			"@type":      "type.googleapis.com/google.rpc.QuotaFailure",
			"violations": []any{map[string]any{"quotaId": id, "quotaMetric": "quotad/" + r.Part}},
		}}
		if r.RetryAfter >= 0 {
			said["message"] = r.Message + " Please retry in " + seconds(r.RetryAfter) + "."
			details = append(details, map[string]any{
				"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": seconds(r.RetryAfter),
			})
		}
		said["details"] = details
	}
	a.write(map[string]any{"error": said})
}

var bedrockTypes = map[int]string{
	http.StatusUnauthorized:       "UnrecognizedClientException",
	http.StatusForbidden:          "AccessDeniedException",
	http.StatusNotFound:           "ResourceNotFoundException",
	http.StatusTooManyRequests:    "ThrottlingException",
	http.StatusBadGateway:         "InternalServerException",
	http.StatusServiceUnavailable: "ServiceUnavailableException",
}

func (a *Answer) bedrock(r Refusal) {
	kind := bedrockTypes[r.Status]
	if kind == "" {
		kind = "ValidationException"
	}
	message := r.Message
	if r.Status == http.StatusTooManyRequests {
		what := "requests"
		if isTokens(r.Part) {
			what = "tokens"
		}
		message = "Too many " + what + ", please wait before trying again. (" + r.Message + ")"
	}
	a.Header.Set("X-Amzn-Errortype", kind)
	a.Header.Set("X-Amzn-Requestid", r.RequestID)
	a.write(map[string]any{"message": message})
}

// gitHubDocs explains GitHub's limits; clients recognise secondary limits by its fragment.
const gitHubDocs = "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api"

func (a *Answer) github(r Refusal) {
	said := map[string]any{"message": r.Message}
	switch {
	case r.Status != http.StatusTooManyRequests:
	case r.Primary:
		said["message"] = "API rate limit exceeded (" + r.Message + ")."
		said["documentation_url"] = gitHubDocs
		limit := strconv.FormatInt(r.Limit, 10)
		a.Header.Set("X-Ratelimit-Limit", limit)
		a.Header.Set("X-Ratelimit-Used", limit)
		a.Header.Set("X-Ratelimit-Remaining", "0")
		a.Header.Set("X-Ratelimit-Resource", r.Part)
		if !r.Now.IsZero() {
			reset := r.Now.Add(max(r.RetryAfter, 0) + time.Second - time.Nanosecond)
			a.Header.Set("X-Ratelimit-Reset", strconv.FormatInt(reset.Unix(), 10))
		}
	default:
		said["message"] = "You have exceeded a secondary rate limit (" + r.Message + ")."
		said["documentation_url"] = gitHubDocs + "#about-secondary-rate-limits"
	}
	a.write(said)
}

// generic follows RFC 9457 and, for quotas, draft-ietf-httpapi-ratelimit-headers.
func (a *Answer) generic(r Refusal) {
	a.Header.Set("Content-Type", "application/problem+json")
	said := map[string]any{"type": "about:blank", "title": http.StatusText(r.Status), "status": r.Status, "detail": r.Message}
	if r.Status == http.StatusTooManyRequests {
		said["type"], said["title"] = "https://iana.org/assignments/http-problem-types#quota-exceeded", "quota exceeded"
		said["violated-policies"] = []string{r.Quota}
	}
	if r.Forecast != nil {
		said["forecast"] = r.Forecast
	}
	a.write(said)
}
