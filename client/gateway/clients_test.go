package gateway_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quotad/quotad/client/gateway"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/rpc/quotav1"
)

// The tests of this file use the providers' own clients, which "make test-clients" downloads. They run each program twice: directly
// against the fake provider, and through the gateway. Keys are made up, and nothing leaves the machine.

// installed returns the path of a file that make test-clients downloaded.
func installed(t *testing.T, path string) string {
	t.Helper()
	folder := os.Getenv("QUOTAD_CLIENTS")
	if folder == "" {
		t.Skip("make test-clients fetches the clients and runs this")
	}
	found := filepath.Join(folder, path)
	if _, err := os.Stat(found); err != nil {
		t.Fatal(err)
	}
	return found
}

// run runs a program in its own environment and returns its output.
func run(t *testing.T, environment []string, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "NO_PROXY=*"}, environment...)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s%s", program, args, err, out, failed.String())
	}
	return string(out)
}

// before starts a gateway for a fake provider of one dialect.
func before(t *testing.T, name string, answer http.HandlerFunc, quotas ...*quotav1.Quota) *fixture {
	t.Helper()
	c := startCluster(t, quotas...)
	p := startProvider(t, answer)
	conf := configOf(c, map[string]config.Upstream{name: upstreamOf(p, name)})
	conf.Listen.Unix = filepath.Join(t.TempDir(), "gateway.sock")
	return startGateway(t, c, p, conf, gateway.Options{})
}

// sameAsDirect compares a program's output against the provider with that through the gateway.
func sameAsDirect(t *testing.T, direct, through string) {
	t.Helper()
	if direct != through || direct == "" {
		t.Errorf("direct it prints\n%s\nand through the gateway\n%s", direct, through)
	}
}

// TestClients_A1_OpenAI: both SDKs print the same, twice a whole answer and once a stream. The last line is the refusal of a model
// without a quota, which the SDK with retries does not repeat.
func TestClients_A1_OpenAI(t *testing.T) {
	programs := map[string][]string{"js": {"node", installed(t, "openai.mjs")}, "go": {installed(t, "openai-go")}}
	for name, program := range programs {
		t.Run(name, func(t *testing.T) {
			f := before(t, "openai", openAIsAnswer, rate("openai/gpt-5/requests", 100), tokens("openai/gpt-5/tokens", 100_000))
			lines := func(base string) []string {
				out := run(t, []string{"OPENAI_BASE_URL=" + base + "/v1", "OPENAI_API_KEY=sk-made-up"}, program[0], program[1:]...)
				return strings.SplitAfter(strings.TrimSpace(out), "\n")
			}
			direct := lines(f.provider.URL)
			sent := len(f.provider.seen())
			through := lines(f.url + "/openai")
			sameAsDirect(t, strings.Join(direct[:len(direct)-1], ""), strings.Join(through[:len(through)-1], ""))
			refused := through[len(through)-1]
			if !strings.Contains(refused, "403") || !strings.Contains(refused, "quotad quota apply") {
				t.Errorf("a model without a quota: %s", refused)
			}
			calls := int64(sent - 1)
			if n := len(f.provider.seen()) - sent; int64(n) != calls {
				t.Errorf("the provider saw %d calls, want %d", n, calls)
			}
			f.cluster.consumed("openai/gpt-5/requests", calls)
			f.cluster.consumed("openai/gpt-5/tokens", 11*calls)
		})
	}
}

// openAIsAnswer answers a chat, and refuses the model gpt-none.
func openAIsAnswer(w http.ResponseWriter, r *http.Request) {
	var ask bytes.Buffer
	_, _ = ask.ReadFrom(r.Body)
	switch {
	case strings.Contains(ask.String(), `"gpt-none"`):
		speak(403, `{"error":{"message":"no such model","type":"invalid_request_error","param":null,"code":"none"}}`)(w, r)
	case strings.Contains(ask.String(), `"stream":true`):
		sent := []string{chatEvents[0], chatEvents[1], chatEvents[3]}
		if strings.Contains(ask.String(), "include_usage") {
			sent = chatEvents
		}
		events(nil, sent...)(w, r)
	default:
		speak(200, chatAnswer)(w, r)
	}
}

func TestClients_A2_Anthropic(t *testing.T) {
	programs := map[string][]string{"js": {"node", installed(t, "anthropic.mjs")}, "go": {installed(t, "anthropic-go")}}
	const model = "claude-opus-4"
	stream := []string{
		`event: message_start` + "\n" + `data: {"type":"message_start","message":{"id":"msg_1","type":"message",` +
			`"role":"assistant","content":[],"model":"claude-opus-4-20250929","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,` +
			`"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}}}` + "\n\n",
		`event: content_block_start` + "\n" + `data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}` + "\n\n",
		"event: ping\ndata: {\"type\":\"ping\"}\n\n",
		`event: content_block_delta` + "\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}` + "\n\n",
		`event: content_block_stop` + "\n" + `data: {"type":"content_block_stop","index":0}` + "\n\n",
		`event: message_delta` + "\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},` +
			`"usage":{"input_tokens":null,"output_tokens":15}}` + "\n\n",
		`event: message_stop` + "\n" + `data: {"type":"message_stop"}` + "\n\n",
	}
	for name, program := range programs {
		t.Run(name, func(t *testing.T) {
			f := before(t, "anthropic", events(nil, stream...), rate("anthropic/"+model+"/requests", 100),
				tokens("anthropic/"+model+"/input-tokens", 100_000), tokens("anthropic/"+model+"/output-tokens", 100_000))
			prints := func(base string) string {
				return run(t, []string{"ANTHROPIC_BASE_URL=" + base, "ANTHROPIC_API_KEY=sk-ant-made-up"}, program[0], program[1:]...)
			}
			sameAsDirect(t, prints(f.provider.URL), prints(f.url+"/anthropic"))
			f.cluster.consumed("anthropic/"+model+"/requests", 1)
			f.cluster.consumed("anthropic/"+model+"/input-tokens", 25)
			f.cluster.consumed("anthropic/"+model+"/output-tokens", 15)
		})
	}
}

func TestClients_A3_GenAI(t *testing.T) {
	programs := map[string][]string{"js": {"node", installed(t, "genai.mjs")}, "go": {installed(t, "genai-go")}}
	const stream = "data: {\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":[{\"text\":\"Hi\"}]}}]," +
		"\"usageMetadata\":{\"promptTokenCount\":8,\"candidatesTokenCount\":3}}\n\n" +
		"data: {\"candidates\":[{\"content\":{\"role\":\"model\",\"parts\":[{\"text\":\" you\"}]},\"finishReason\":\"STOP\"}]," +
		"\"usageMetadata\":{\"promptTokenCount\":8,\"candidatesTokenCount\":12,\"thoughtsTokenCount\":40,\"totalTokenCount\":60}}\n\n"
	for name, program := range programs {
		t.Run(name, func(t *testing.T) {
			f := before(t, "gemini", events(nil, stream), rate("gemini/gemini-3/requests", 10), tokens("gemini/gemini-3/tokens", 100_000))
			prints := func(base string) string {
				return run(t, []string{"GOOGLE_GEMINI_BASE_URL=" + base, "GEMINI_API_KEY=made-up"}, program[0], program[1:]...)
			}
			sameAsDirect(t, prints(f.provider.URL), prints(f.url+"/gemini"))
			for _, sent := range f.provider.seen() {
				if sent.header.Get("X-Goog-Api-Key") != "made-up" || !strings.Contains(sent.uri, "/models/gemini-3:streamGenerateContent?alt=sse") {
					t.Errorf("the provider saw %+v", sent)
				}
			}
			f.cluster.consumed("gemini/gemini-3/requests", 1)
			f.cluster.consumed("gemini/gemini-3/tokens", 8)
		})
	}
}

// pages serves five pages, each with a link to the next one below a base.
func pages(base func(*http.Request) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		page := 1
		_, _ = fmt.Sscan(r.URL.Query().Get("page"), &page)
		if page < 5 {
			w.Header().Set("Link", fmt.Sprintf(`<%s%s?per_page=1&page=%d>; rel="next"`, base(r), r.URL.Path, page+1))
		}
		speak(200, fmt.Sprintf(`[{"id":%d}]`, page))(w, r)
	}
}

func ownOrigin(r *http.Request) string { return "http://" + r.Host }

func TestClients_A4_Octokit(t *testing.T) {
	script := installed(t, "octokit.mjs")
	f := before(t, "github", pages(ownOrigin), rate("github/core", 5000))
	node := func(base string) string { return run(t, []string{"GITHUB_API_URL=" + base}, "node", script) }
	direct := node(f.provider.URL)
	sameAsDirect(t, direct, node(f.url+"/github"))
	if strings.Count(direct, `"id"`) != 5 {
		t.Errorf("it prints %s", direct)
	}
	f.cluster.consumed("github/core", 5)
}

// TestClients_A4_GoGitHub: go-github with enterprise URLs appends /api/v3 to the gateway's address. The provider receives the paths
// without it, page by page, and the token unchanged.
func TestClients_A4_GoGitHub(t *testing.T) {
	program := installed(t, "github-go")
	f := before(t, "github", pages(ownOrigin), rate("github/core", 5000))
	direct := run(t, []string{"GITHUB_API_URL=" + f.provider.URL}, program)
	sent := len(f.provider.seen())
	sameAsDirect(t, direct, run(t, []string{"GITHUB_API_URL=" + f.url + "/github"}, program))
	if direct != "1\n2\n3\n4\n5\n" {
		t.Errorf("it prints %s", direct)
	}
	for i, through := range f.provider.seen()[sent:] {
		straight := f.provider.seen()[i]
		if "/api/v3"+through.uri != straight.uri || through.header.Get("Authorization") != "Bearer ghp_made_up" {
			t.Errorf("the provider saw %s with %v, and %s without a gateway", through.uri, through.header, straight.uri)
		}
	}
	f.cluster.consumed("github/core", 5)
}

func TestClients_A5_GH(t *testing.T) {
	gh := installed(t, "debian/usr/bin/gh")
	c := startCluster(t, rate("github/core", 5000))
	p := startProvider(t, pages(func(*http.Request) string { return "https://api.github.com" }))
	github := upstreamOf(p, "github")
	github.Hosts = []string{"api.github.com"}
	conf := configOf(c, map[string]config.Upstream{"github": github})
	conf.Listen = config.Listen{Unix: filepath.Join(t.TempDir(), "gateway.sock")}
	startGateway(t, c, p, conf, gateway.Options{}).listen()
	environment := []string{"GH_CONFIG_DIR=" + t.TempDir(), "GH_TOKEN=ghp_made_up", "GH_NO_UPDATE_NOTIFIER=1"}
	run(t, environment, gh, "config", "set", "http_unix_socket", conf.Listen.Unix)
	if out := run(t, environment, gh, "api", "user"); out != `[{"id":1}]` {
		t.Errorf("gh api user prints %s", out)
	}
	if out := run(t, environment, gh, "api", "--paginate", "user/repos?per_page=1"); strings.Count(out, `"id"`) != 5 {
		t.Errorf("gh api --paginate prints %s", out)
	}
	for _, sent := range p.seen() {
		if sent.header.Get("Authorization") != "token ghp_made_up" {
			t.Errorf("the provider saw %v", sent.header)
		}
	}
	c.consumed("github/core", 6)
}

func TestClients_A6_Python(t *testing.T) {
	script := installed(t, "calls.py")
	packages := installed(t, "debian/usr/lib/python3/dist-packages")
	c := startCluster(t, rate("github/core", 5000), rate("openai/gpt-5/requests", 100), tokens("openai/gpt-5/tokens", 100_000))
	p := startProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			speak(200, chatAnswer)(w, r)
			return
		}
		speak(200, `{"path":"`+r.URL.Path+`"}`)(w, r)
	})
	conf := configOf(c, map[string]config.Upstream{"openai": upstreamOf(p, "openai"), "github": upstreamOf(p, "github")})
	f := startGateway(t, c, p, conf, gateway.Options{})
	python := func(github, enterprise, openai string) string {
		return run(t, []string{
			"GITHUB_API_URL=" + github, "ENTERPRISE=" + enterprise, "OPENAI_BASE_URL=" + openai + "/v1", "PYTHONPATH=" + packages,
			"PYTHONDONTWRITEBYTECODE=1",
		}, "/usr/bin/python3", script) // Debian's, like the packages
	}
	sameAsDirect(t, python(p.URL, "", p.URL), python(f.url+"/github", "/api/v3", f.url+"/openai"))
	c.consumed("github/core", 1)
	c.consumed("openai/gpt-5/requests", 1)
	c.consumed("openai/gpt-5/tokens", 11)
}
