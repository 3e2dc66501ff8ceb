package dialect

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/rpc/signals"
)

var names = []Name{Anthropic, Azure, Bedrock, Codex, Gemini, Generic, GitHub, OpenAI}

func TestOperation_OfEachCall(t *testing.T) {
	for path, want := range map[string]struct {
		dialect   Name
		generates bool
		model     string
		form      Name
	}{
		"/v1/chat/completions":      {OpenAI, true, "", OpenAI},
		"/v1/responses":             {OpenAI, true, "", OpenAI},
		"/v1/moderations":           {OpenAI, false, "", OpenAI},
		"/v1/files":                 {OpenAI, false, "", OpenAI},
		"/codex/responses":          {Codex, true, "", Codex},
		"/v1/messages":              {Anthropic, true, "", Anthropic},
		"/v1/messages/count_tokens": {Anthropic, false, "", Anthropic},
		"/v1/messages/batches":      {Anthropic, false, "", Anthropic},
		"/v1beta/models/gemini-3:streamGenerateContent":  {Gemini, true, "gemini-3", Gemini},
		"/v1beta/models/gemini-3:countTokens":            {Gemini, false, "gemini-3", Gemini},
		"/v1beta/openai/chat/completions":                {Gemini, true, "", OpenAI},
		"/openai/deployments/mine/chat/completions":      {Azure, true, "mine", Azure},
		"/model/anthropic.claude-v1%3A0/converse-stream": {Bedrock, true, "anthropic.claude-v1:0", Bedrock},
		"/model/anthropic.claude-v1%3A0/count-tokens":    {Bedrock, false, "anthropic.claude-v1:0", Bedrock},
		"/v1/chat/%63ompletions":                         {OpenAI, true, "", OpenAI},
		"/v1%2Fchat%2fcompletions":                       {OpenAI, true, "", OpenAI},
		"/v1/message%73":                                 {Anthropic, true, "", Anthropic},
		"/model/x%2Fy/%63onverse":                        {Bedrock, true, "x/y", Bedrock},
		"/v1beta/model%73/m%3AgenerateContent":           {Gemini, true, "m", Gemini},
		"/v1beta/%6fpenai/chat/completions":              {Gemini, true, "", OpenAI},
		"/repos/a/b/issues":                              {GitHub, false, "", GitHub},
		"/anything/completions":                          {Generic, false, "", Generic},
		// Videos, runs of threads and calls.
		"/v1/videos":                               {OpenAI, true, "", OpenAI},
		"/v1/videos/v1/remix":                      {OpenAI, true, "", OpenAI},
		"/openai/v1/video/generations/jobs":        {Azure, true, "", Azure},
		"/v1/threads/runs":                         {OpenAI, true, "", OpenAI},
		"/v1/threads/t/runs":                       {OpenAI, true, "", OpenAI},
		"/v1/threads/t/runs/r/submit_tool_outputs": {OpenAI, true, "", OpenAI},
		"/v1/threads/t/messages":                   {OpenAI, false, "", OpenAI},
		"/v1/threads/t/runs/r/cancel":              {OpenAI, false, "", OpenAI},
		"/v1/uploads/u/complete":                   {OpenAI, false, "", OpenAI},
		"/v1/evals/e/runs":                         {OpenAI, false, "", OpenAI},
		"/v1/realtime/calls":                       {OpenAI, true, "", OpenAI},
		"/v1/realtime/client_secrets":              {OpenAI, true, "", OpenAI},
		"/openai/v1/realtime/client_secrets":       {Azure, true, "", Azure},
		"/v1/realtime/sessions":                    {OpenAI, true, "", OpenAI},
		"/v1/realtime/transcription_sessions":      {OpenAI, true, "", OpenAI},
		"/openai/realtimeapi/sessions":             {Azure, true, "", Azure},
		"/v1alpha/auth_tokens":                     {Gemini, true, "", Gemini},
		"/v1/realtime/calls/c/hangup":              {OpenAI, false, "", OpenAI},
		"/v1/ocr":                                  {OpenAI, true, "", OpenAI},
		"/v2/rerank":                               {OpenAI, true, "", OpenAI},
		"/providers/cohere/v2/rerank":              {Azure, true, "", Azure},
		"/v1/chatkit/sessions":                     {OpenAI, false, "", OpenAI},
		"/v1/engines/davinci/completions":          {OpenAI, true, "davinci", OpenAI},
		"/v1/experimental/generate_prompt":         {Anthropic, true, "", Anthropic},
		// Models of Gemini outside of /models/, and its other ways to generate.
		"/v1beta/tunedModels/t:generateContent":     {Gemini, true, "t", Gemini},
		"/v1beta/dynamic/d:streamGenerateContent":   {Gemini, true, "d", Gemini},
		"/v1beta/models/aqa:generateAnswer":         {Gemini, true, "aqa", Gemini},
		"/v1beta/models/m:whatComesNext":            {Gemini, true, "m", Gemini},
		"/v1beta/models/m:batchEmbedContents":       {Gemini, true, "m", Gemini},
		"/v1beta/models/m:batchGenerateContent":     {Gemini, false, "m", Gemini},
		"/v1beta/models/m/operations/o:cancel":      {Gemini, false, "m", Gemini},
		"/v1beta/interactions":                      {Gemini, true, "", Gemini},
		"/v1beta/interactions/i/cancel":             {Gemini, false, "", Gemini},
		"/v1beta/files":                             {Gemini, false, "", Gemini},
		"/model/m/invoke-with-bidirectional-stream": {Bedrock, true, "m", Bedrock},
		"/async-invoke":                             {Bedrock, true, "", Bedrock},
		"/guardrail/g/version/1/apply":              {Bedrock, false, "", Bedrock},
		// Providers that also support another one's dialect.
		"/openai/v1/chat/completions":         {Bedrock, true, "", OpenAI},
		"/openai/v1/models":                   {Bedrock, false, "", OpenAI},
		"/anthropic/v1/messages":              {Azure, true, "", Anthropic},
		"/anthropic/v1/messages/count_tokens": {Azure, false, "", Anthropic},
		"/models/chat/completions":            {Azure, true, "", Azure},
		"/v1/chat/completions/":               {Anthropic, true, "", OpenAI},
		"/api/v1/messages":                    {OpenAI, true, "", Anthropic},
		"/messages":                           {OpenAI, true, "", Anthropic},
		// Spellings that lenient servers read alike.
		"/OpenAI/deployments/Mine/Chat/Completions": {Azure, true, "Mine", Azure},
		"/v1/chat/completions;x":                    {OpenAI, true, "", OpenAI},
		"/v1/chat/completions;a=b/":                 {OpenAI, true, "", OpenAI},
		"/v1/chat/completions%3Bx":                  {OpenAI, true, "", OpenAI},
		"/v1/chat/completions%20":                   {OpenAI, true, "", OpenAI},
		"/v1/chat/completions%09.":                  {OpenAI, true, "", OpenAI},
		"/v1/chat%5Ccompletions":                    {OpenAI, true, "", OpenAI},
		"//v1//responses//compact":                  {OpenAI, true, "", OpenAI},
		"/v1/Messages%20":                           {Anthropic, true, "", Anthropic},
		"/v1beta/Models/m:GENERATECONTENT":          {Gemini, true, "m", Gemini},
		"/Model/m/Converse;x":                       {Bedrock, true, "m", Bedrock},
	} {
		op := want.dialect.Operation(http.MethodPost, path)
		if op.Generates() != want.generates || op.Model != want.model || op.Dialect != want.form {
			t.Errorf("%s %s gives %+v", want.dialect, path, op)
		}
		for _, method := range []string{http.MethodPut, http.MethodPatch, "QUERY"} {
			if got := want.dialect.Operation(method, path); got != op {
				t.Errorf("%s %s gives %+v", method, path, got)
			}
		}
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodDelete} {
			if got := want.dialect.Operation(method, path); got.Generates() || got.Dialect == "" {
				t.Errorf("%s %s gives %+v", method, path, got)
			}
		}
	}
	for _, path := range []string{"/v1/embeddings", "/v1/rerank", "/reranking"} {
		if op := OpenAI.Operation(http.MethodPost, path); op.Operation != estimate.Embed {
			t.Errorf("%s gives %+v", path, op)
		}
	}
}

func TestRewrite_TakesTheFormOfAnEnterpriseServer(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v3/user": "/user", "/api/graphql": "/graphql", "/api/v3": "", "/user": "/user", "/api/v35": "/api/v35",
	} {
		if got := GitHub.Rewrite(path); got != want {
			t.Errorf("%s gives %s", path, got)
		}
		if got := OpenAI.Rewrite(path); got != path {
			t.Errorf("openai: %s gives %s", path, got)
		}
	}
}

func TestGitHubDraws_FollowThePublishedLimits(t *testing.T) {
	for name, want := range map[string]struct {
		method, path, body string
		draws              string
	}{
		"read":     {"GET", "/user", "", "core 1 concurrent 1 points 1"},
		"create":   {"POST", "/repos/a/b/issues", "{}", "core 1 concurrent 1 points 5 content 1"},
		"delete":   {"DELETE", "/repos/a/b", "", "core 1 concurrent 1 points 5"},
		"search":   {"GET", "/search/issues", "", "search 1 concurrent 1 points 1"},
		"code":     {"GET", "/search/code", "", "code_search 1 concurrent 1 points 1"},
		"query":    {"POST", "/graphql", `{"query":"query { viewer { login } }"}`, "graphql 1 concurrent 1 graphql-points 1"},
		"mutation": {"POST", "/graphql", `{"query":"mutation { addStar }"}`, "graphql 1 concurrent 1 graphql-points 5 content 1"},
		"unread":   {"POST", "/graphql", `{`, "graphql 1 concurrent 1 graphql-points 5 content 1"},
		"free":     {"GET", "/rate_limit", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, d := range GitHubDraws(want.method, want.path, "", []byte(want.body), true) {
				if !slices.Contains(GitHubLimits(true), d.Name) || slices.Contains(GitHubLimits(false), d.Name) != (len(got) == 0) {
					t.Errorf("%s is not among the limits that there are", d.Name)
				}
				got = append(got, d.Name, strconv.FormatInt(d.Amount, 10))
			}
			if strings.Join(got, " ") != want.draws {
				t.Errorf("got %v, want %s", got, want.draws)
			}
			if primary := GitHubDraws(want.method, want.path, "", []byte(want.body), false); len(primary) > 1 {
				t.Errorf("without secondary limits: %v", primary)
			}
		})
	}
}

// A reader of the provider must read a refusal as the provider's own: package signals knows all dialects.
func TestRefuse_IsReadAsTheProviders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(names).Draw(t, "dialect")
		wait := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "wait"))
		r := Refusal{
			Status: http.StatusTooManyRequests, Message: "q is EXHAUSTED (quotad, holder x).", RequestID: "qgw_1", Reason: "EXHAUSTED", Quota: "t/q",
			RetryAfter: wait, Part: rapid.SampledFrom([]string{"requests", "tokens", "core"}).Draw(t, "part"), Limit: 10, Now: time.Now(),
		}
		r.Primary = r.Part == "core"
		a := name.Refuse(r)
		if !json.Valid(a.Body) {
			t.Fatalf("%s: %s is not JSON", name, a.Body)
		}
		reads, err := signals.DialectNamed(string(name))
		if err != nil {
			t.Fatal(err)
		}
		verdict, refused := signals.Verdict(reads.Observe(time.Now(), a.Status, a.Header, a.Body))
		if !refused || !verdict.Class.Limited() || verdict.Class == signals.Billing {
			t.Fatalf("%s: %s is read as %+v", name, a.Body, verdict)
		}
		if !verdict.RetryAfter.Known || verdict.RetryAfter.D < wait-time.Millisecond || verdict.RetryAfter.D > wait+2*time.Second {
			t.Fatalf("%s: a wait of %v is read as %+v", name, wait, verdict.RetryAfter)
		}
	})
}

func TestRefuse_OtherStatusesAreNoLimits(t *testing.T) {
	for _, name := range names {
		for _, status := range []int{400, 401, 403, 404, 413, 415, 502, 503} {
			a := name.Refuse(Refusal{Status: status, Message: "quotad: no", RequestID: "qgw_1"})
			if !json.Valid(a.Body) || !strings.Contains(string(a.Body), "quotad: no") || a.Status != status {
				t.Errorf("%s %d: %s", name, status, a.Body)
			}
		}
	}
}

func FuzzOperation(f *testing.F) {
	f.Add("/v1beta/models/m:generateContent", `{"query":"x"}`)
	f.Add("/model/%2F/converse", "")
	f.Fuzz(func(_ *testing.T, path, body string) {
		for _, name := range names {
			name.Operation(http.MethodPost, path)
			_ = name.Rewrite(path)
		}
		GitHubDraws(http.MethodPost, path, body, []byte(body), true)
	})
}
