package identity

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// client is a kind of client: how to recognise it, and how long it waits for a status line.
type client struct {
	// name is the tool's name; empty: it is a library.
	name string
	// agents are prefixes of its User-Agent, in lower case; header is one that only it sends.
	agents []string
	header string
	// most bounds its wait; 0: unknown.
	most time.Duration
}

// clients are those with known bounds, the more specific ones first. Figures are a half or less of the client's own bound, since the
// call itself takes time as well. Sources, 2026-08 to 2026-11: code.claude.com/docs env-vars and llm-gateway-protocol; openai/codex
// model-provider-info; github/copilot-cli issue 3679; google-gemini/gemini-cli utils/fetch.ts; Aider-AI/aider models.py; nodejs/undici
// headersTimeout.
var clients = []client{
	{name: "claude", agents: []string{"claude-cli/", "claude-code/"}, header: "X-Claude-Code-Session-Id", most: 4 * time.Minute},
	{name: "codex", agents: []string{"codex_cli_rs/", "codex_exec/", "codex-tui/", "codex_vscode/", "codex"}, most: 4 * time.Minute},
	{name: "copilot", agents: []string{"copilot", "githubcopilot"}, most: 2 * time.Minute},
	{name: "gemini", agents: []string{"geminicli", "gemini-cli"}, most: 40 * time.Second},
	{name: "aider", agents: []string{"aider"}, most: 2 * time.Minute},
	{name: "gh", agents: []string{"github cli"}},
	{agents: []string{"octokit", "node", "undici"}, most: mostOfNode},
	{name: "curl", agents: []string{"curl/"}},
}

// lookup returns the kind of a client.
func lookup(header http.Header) client {
	agent := strings.ToLower(header.Get("User-Agent"))
	for _, known := range clients {
		if known.header != "" && header.Get(known.header) != "" {
			return known
		}
		for _, start := range known.agents {
			if strings.HasPrefix(agent, start) {
				return known
			}
		}
	}
	return client{}
}

// ToolOf returns the name of a known tool; empty: another client.
func ToolOf(header http.Header) string { return lookup(header).name }

// mostOfNode bounds the wait of clients on Node.js, whose fetch waits at most five minutes for a status line, whatever timeout they set.
const mostOfNode = 2 * time.Minute

// Patience returns the longest time that a client waits for its status line; 0: unknown. SDKs made by Stainless send their own timeout,
// in seconds.
func Patience(header http.Header) time.Duration {
	if known := lookup(header); known.most > 0 {
		return known.most
	}
	node := strings.EqualFold(header.Get("X-Stainless-Lang"), "js")
	for _, name := range []string{"X-Stainless-Read-Timeout", "X-Stainless-Timeout"} {
		seconds, err := strconv.ParseFloat(header.Get(name), 64)
		if err != nil || !(seconds > 0 && seconds < 1e6) {
			continue
		}
		quarter := time.Duration(seconds * float64(time.Second) / 4)
		if node {
			return min(quarter, mostOfNode)
		}
		return quarter
	}
	if node {
		return mostOfNode
	}
	return 0
}
