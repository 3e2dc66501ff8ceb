package signals

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Codex is the dialect of OpenAI's models on a ChatGPT plan, as the Codex tools use it: shares of two windows, for each family of limits.
var Codex = Dialect{name: "codex", observe: observeCodex}

// codexWindow matches a header's name: the family of limits, and the window.
var codexWindow = regexp.MustCompile(
	`^X-(Codex(?:-[A-Za-z0-9]{1,32}){0,4}?)-(Primary|Secondary)-(?:Used-Percent|Window-Minutes|Reset-At|Reset-After-Seconds)$`,
)

func observeCodex(r *response) []Signal {
	windows := codexWindows(r)
	said, _ := openaiSaid(r)
	if r.status == http.StatusTooManyRequests {
		switch said.Type {
		case "usage_limit_reached":
			return append(windows, codexUsedUp(r, windows))
		case "usage_not_included":
			return append(windows, Signal{Class: Billing, Scope: ScopePlan, NoRetry: true, Rule: "codex/not_included"})
		}
	}
	return append(windows, observeOpenAI(r)...)
}

// codexWindows reads the windows, in the order of their names.
func codexWindows(r *response) []Signal {
	prefixes := map[string]string{}
	for name := range r.header {
		if found := codexWindow.FindStringSubmatch(name); found != nil {
			family := strings.ToLower(strings.ReplaceAll(found[1], "-", "_"))
			prefixes[family+"/"+strings.ToLower(found[2])] = "X-" + found[1] + "-" + found[2] + "-"
		}
	}
	var out []Signal
	for name, prefix := range prefixes {
		s := Signal{
			Class: OK, Scope: ScopePlan, Resource: name, Rule: "codex/plan",
			UsedShare: r.share(prefix+"Used-Percent", tenThousandth),
			ResetIn:   r.longest(prefix+"Reset-At", r.sinceEpoch),
		}
		if !s.ResetIn.Known {
			s.ResetIn = r.longest(prefix+"Reset-After-Seconds", lengths(seconds))
		}
		if minutes := r.count(prefix + "Window-Minutes"); minutes.Known && minutes.N <= int64(maxSpan/time.Minute) {
			s.Window = Span{D: time.Duration(minutes.N) * time.Minute, Known: true}
		}
		out = append(out, inWindow(s))
	}
	slices.SortFunc(out, func(a, b Signal) int { return strings.Compare(a.Resource, b.Resource) })
	return out
}

// codexUsedUp returns the verdict that a window is used up.
func codexUsedUp(r *response, windows []Signal) Signal {
	s := Signal{Class: Exhausted, Scope: ScopePlan, NoRetry: r.noRetry(), Rule: "codex/usage_limit"}
	active := strings.ToLower(strings.ReplaceAll(word(r.header.Get("X-Codex-Active-Limit")), "-", "_"))
	if active == "" {
		active = "codex"
	}
	for _, w := range windows {
		if strings.HasPrefix(w.Resource, active+"/") && w.UsedShare.N >= int64(millionth) {
			s.Resource, s.Window, s.UsedShare, s.ResetIn, s.ResetResolution = w.Resource, w.Window, w.UsedShare, w.ResetIn, w.ResetResolution
		}
	}
	asked := r.retryAfter()
	var said struct {
		Error struct {
			ResetsAt        int64 `json:"resets_at"`
			ResetsInSeconds int64 `json:"resets_in_seconds"`
		} `json:"error"`
	}
	if readJSON(r.body, &said) {
		if at, ok := r.until(said.Error.ResetsAt, time.Second); ok && at.Known && said.Error.ResetsAt > 0 {
			asked = waitFor(at.D)
		} else if n := said.Error.ResetsInSeconds; n > 0 && n <= int64(maxSpan/time.Second) {
			asked = waitFor(time.Duration(n) * time.Second)
		}
	}
	if !asked.known && s.ResetIn.Known {
		asked = waitFor(s.ResetIn.D)
	}
	return asked.on(s)
}
