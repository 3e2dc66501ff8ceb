package identity

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/client/gateway/config"
)

// headerOf makes a header of name, value, name, value.
func headerOf(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

type oneToken struct{ right Right }

func (o oneToken) Find(secret string) (Right, bool) {
	if o.right.Verbs == nil {
		o.right.Verbs = []Verb{Use, Report, Read}
	}
	return o.right, secret == "qtd_red_x"
}

func TestResolve_OnTrust(t *testing.T) {
	r := New("node-7", config.Identity{
		Names: []string{"picard"}, Tools: map[string]config.Tool{"gh": {Class: config.Critical}}, Seats: config.Seats{By: "session", Count: 64},
	}, nil, NewSeats(64), NewSecret())
	for name, want := range map[string]struct {
		request        Request
		holder, source string
		class          config.Class
		status         int
	}{
		"header":            {Request{Header: headerOf(HolderHeader, "data")}, "data@node-7", "header", 0, 0},
		"exact name":        {Request{Header: headerOf(HolderHeader, "picard")}, "picard", "header", 0, 0},
		"own machine":       {Request{Header: headerOf(HolderHeader, "data@node-7")}, "data@node-7", "header", 0, 0},
		"another machine":   {Request{Header: headerOf(HolderHeader, "data@node-8")}, "", "", 0, 403},
		"not printable":     {Request{Header: headerOf(HolderHeader, "a\x01b")}, "", "", 0, 400},
		"too long":          {Request{Header: headerOf(HolderHeader, strings.Repeat("a", 129))}, "", "", 0, 400},
		"path":              {Request{PathHolder: "w%20o~background"}, "w o@node-7", "path", config.Background, 0},
		"header beats path": {Request{Header: headerOf(HolderHeader, "data"), PathHolder: "worf"}, "data@node-7", "header", 0, 0},
		"wrong class":       {Request{PathHolder: "worf~urgent"}, "", "", 0, 400},
		"a class each by itself": {
			Request{Header: headerOf(HolderHeader, "data"), PathHolder: "worf~background"}, "data@node-7", "header", config.Background, 0,
		},
		"class of the header": {
			Request{Header: headerOf(ClassHeader, "critical"), PathHolder: "worf~background"}, "worf@node-7", "path", config.Critical, 0,
		},
		"session": {
			Request{Header: headerOf("User-Agent", "claude-cli/2", "X-Claude-Code-Session-Id", "s1")},
			"claude-1@node-7",
			"session", 0, 0,
		},
		"purpose beats session": {
			Request{Header: headerOf("User-Agent", "claude-cli/2", "X-Claude-Code-Session-Id", "s1", HolderHeader, "data")},
			"data@node-7",
			"header", 0, 0,
		},
		"tool's class": {Request{Header: headerOf("User-Agent", "GitHub CLI 2.23.0"), Peer: "ana"}, "ana@node-7", "peer", config.Critical, 0},
		"nothing":      {Request{}, "unnamed@node-7", "machine", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := r.Resolve(want.request)
			var denied *DeniedError
			if errors.As(err, &denied) != (want.status != 0) || want.status != 0 && denied.Status != want.status {
				t.Fatalf("error %v, want status %d", err, want.status)
			}
			if err == nil && (got.Holder != want.holder || got.Source != want.source || got.Class != want.class) {
				t.Errorf("got %+v", got)
			}
		})
	}
	keyed, err := r.Resolve(Request{Header: headerOf("Authorization", "Bearer sk-a")})
	again, _ := r.Resolve(Request{Header: headerOf("X-Api-Key", "sk-a")})
	if err != nil || !regexp.MustCompile(`^key-[0-9a-f]{8}@node-7$`).MatchString(keyed.Holder) || keyed.Holder != again.Holder {
		t.Errorf("by key: %+v, %+v, %v", keyed, again, err)
	}
}

func TestResolve_ByToken(t *testing.T) {
	r := New("node-7", config.Identity{Seats: config.Seats{By: "session", Count: 64}}, oneToken{Right{
		ID: "red", Pattern: "red-*",
		MaxClass: config.Standard,
	}}, NewSeats(64), NewSecret())
	for name, want := range map[string]struct {
		header http.Header
		holder string
		class  config.Class
		status int
	}{
		"none":             {headerOf(), "", 0, 401},
		"wrong":            {headerOf(TokenHeader, "qtd_red_y"), "", 0, 401},
		"its own name":     {headerOf(TokenHeader, "qtd_red_x"), "red-red", config.Standard, 0},
		"as the key":       {headerOf("Authorization", "Bearer qtd_red_x"), "red-red", config.Standard, 0},
		"covered":          {headerOf(TokenHeader, "qtd_red_x", HolderHeader, "red-7"), "red-7", config.Standard, 0},
		"not covered":      {headerOf(TokenHeader, "qtd_red_x", HolderHeader, "blue"), "", 0, 403},
		"class is lowered": {headerOf(TokenHeader, "qtd_red_x", ClassHeader, "background"), "red-red", config.Background, 0},
		"and never raised": {headerOf(TokenHeader, "qtd_red_x", ClassHeader, "critical"), "red-red", config.Standard, 0},
		"with a real key":  {headerOf(TokenHeader, "qtd_red_x", "Authorization", "Bearer sk-a"), "red-red", config.Standard, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := r.Resolve(Request{Header: want.header})
			var denied *DeniedError
			if errors.As(err, &denied) != (want.status != 0) || want.status != 0 && denied.Status != want.status {
				t.Fatalf("error %v, want status %d", err, want.status)
			}
			if err == nil && (got.Holder != want.holder || got.Class != want.class) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestResolve_NamesOutliveAReload: a caller identified by its key keeps its name after a reload, and has another name in another
// process.
func TestResolve_NamesOutliveAReload(t *testing.T) {
	secret := NewSecret()
	named := func(secret Secret) string {
		got, err := New("node-7", config.Identity{Seats: config.Seats{By: "session", Count: 1}}, nil, NewSeats(1), secret).
			Resolve(Request{Header: headerOf("Authorization", "Bearer sk-a")})
		if err != nil {
			t.Fatal(err)
		}
		return got.Holder
	}
	if first := named(secret); first != named(secret) || first == named(NewSecret()) {
		t.Errorf("%s, then %s, with another secret %s", first, named(secret), named(NewSecret()))
	}
}

func TestResolve_ATokenAllowsItsVerbsAlone(t *testing.T) {
	all := []Verb{Use, Report, Read}
	for _, verbs := range [][]Verb{{}, {Use}, {Report}, {Read}, {Use, Read}, {"admin-quota", "admin-cluster", "debug"}} {
		right := Right{ID: "red", Pattern: "*", MaxClass: config.Standard, Verbs: verbs}
		r := New("node-7", config.Identity{}, oneToken{right}, NewSeats(1), NewSecret())
		for _, asked := range append(all, "") {
			request := Request{Header: headerOf(TokenHeader, "qtd_red_x"), Verb: asked}
			_, err := r.Resolve(request)
			if admitted := r.Admit(request); (admitted == nil) != (err == nil) {
				t.Errorf("%v, asked %q: %v, and admitted %v", verbs, asked, err, admitted)
			}
			need := asked
			if need == "" {
				need = Use
			}
			var denied *DeniedError
			allowed := slices.Contains(verbs, need)
			if allowed != (err == nil) ||
				!allowed && (!errors.As(err, &denied) || denied.Status != 403 || !strings.Contains(denied.Message, string(need))) {
				t.Errorf("%v, asked %q: %v", verbs, asked, err)
			}
		}
	}
}

// TestResolve_ATokenRaisesNoClass: a caller without a class has its holder's, whatever its token allows.
func TestResolve_ATokenRaisesNoClass(t *testing.T) {
	r := New("node-7", config.Identity{}, oneToken{Right{ID: "red", Pattern: "*", MaxClass: config.Critical}}, NewSeats(1), NewSecret())
	for class, want := range map[string]config.Class{"": config.ClassNone, "critical": config.Critical, "background": config.Background} {
		header := headerOf(TokenHeader, "qtd_red_x")
		if class != "" {
			header.Set(ClassHeader, class)
		}
		if got, err := r.Resolve(Request{Header: header}); err != nil || got.Class != want {
			t.Errorf("%q: %+v, %v", class, got, err)
		}
	}
}

func TestSeats_AreFewAndStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, 5).Draw(t, "count")
		s := NewSeats(count)
		now := time.Unix(0, 0)
		holds := map[string]int{}
		last := map[string]time.Time{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "minutes")) * time.Minute)
			session := fmt.Sprint("s", rapid.IntRange(0, 7).Draw(t, "session"))
			n := s.Take("claude", session, now)
			if n < 1 || n > count {
				t.Fatalf("seat %d of %d", n, count)
			}
			live := 0
			for other := range holds {
				if other != session && now.Sub(last[other]) < seatIdle {
					live++
				}
			}
			for other, seat := range holds {
				taken := other != session && seat == n
				if taken && now.Sub(last[other]) < seatIdle && live < count {
					t.Fatalf("%s was driven off its seat %d by %s while others were free", other, seat, session)
				}
				if taken {
					delete(holds, other)
				}
			}
			if before, seated := holds[session]; seated && before != n {
				t.Fatalf("%s moved from %d to %d", session, before, n)
			}
			holds[session], last[session] = n, now
		}
	})
}

// TestResolve_TokenNamesTheToolsSeatIfItCoversIt: else the token's own name.
func TestResolve_TokenNamesTheToolsSeatIfItCoversIt(t *testing.T) {
	for pattern, want := range map[string]string{"*@node-7": "claude-1@node-7", "red-*": "red-red", "claude-2*": "claude-2red"} {
		tokens := oneToken{Right{ID: "red", Pattern: pattern}}
		r := New("node-7", config.Identity{Seats: config.Seats{By: "session"}}, tokens, NewSeats(4), NewSecret())
		got, err := r.Resolve(Request{Header: headerOf(TokenHeader, "qtd_red_x", "User-Agent", "claude-cli/2", "X-Claude-Code-Session-Id", "a")})
		if err != nil || got.Holder != want || got.Token != "red" {
			t.Errorf("%s: got %+v, %v; want %s", pattern, got, err, want)
		}
	}
}

// TestTokenIn_FindsItInEachPlaceOfAKey: a tool that can set nothing but its key presents the gateway's token there.
func TestTokenIn_FindsItInEachPlaceOfAKey(t *testing.T) {
	const token = "qtd_red_x"
	for _, c := range []struct{ name, value, query string }{
		{TokenHeader, token, ""},
		{"Authorization", "Bearer " + token, ""},
		{"Authorization", "token " + token, ""},
		{"Authorization", token, ""},
		{"X-Api-Key", token, ""},
		{"Api-Key", token, ""},
		{"X-Goog-Api-Key", token, ""},
		{"X-A", "x", "a=1&key=" + token},
	} {
		header := headerOf(c.name, c.value)
		if got := TokenIn(header, c.query); got != token {
			t.Errorf("%s: %q, %q: found %q", c.name, c.value, c.query, got)
		}
		if key := KeyOf(header, c.query); key != "" {
			t.Errorf("%s: %q, %q: %q is taken for a key of the provider", c.name, c.value, c.query, key)
		}
		StripTokens(header)
		if left := fmt.Sprint(header) + StripQueryTokens(c.query); strings.Contains(left, token) {
			t.Errorf("%s: %q, %q: left is %s", c.name, c.value, c.query, left)
		}
	}
}

// TestResolve_SeatsAreOfSessionsOrAgents: as identity.seats.by says. A call that an SDK sends again keeps its seat.
func TestResolve_SeatsAreOfSessionsOrAgents(t *testing.T) {
	calls := []http.Header{
		headerOf("User-Agent", "claude-cli/2", "X-Claude-Code-Session-Id", "a", "X-Claude-Code-Agent-Id", "main"),
		headerOf("User-Agent", "claude-cli/2", "X-Claude-Code-Session-Id", "a", "X-Claude-Code-Agent-Id", "sub"),
		headerOf("User-Agent", "claude-cli/2", "X-Claude-Code-Session-Id", "a", "X-Claude-Code-Agent-Id", "main", "X-Stainless-Retry-Count", "1"),
		headerOf("User-Agent", "claude-cli/2", "X-Claude-Code-Session-Id", "b"),
		headerOf("User-Agent", "codex_cli_rs/0.144.6", "session-id", "c"),
		headerOf("User-Agent", "codex_cli_rs/0.144.6", "session_id", "c"),
		headerOf("User-Agent", "python-httpx/1.0", "session-id", "c"), // no tool
	}
	for by, want := range map[string][]string{
		"session": {"claude-1", "claude-1", "claude-1", "claude-2", "codex-1", "codex-1", "unnamed"},
		"agent":   {"claude-1", "claude-2", "claude-1", "claude-3", "codex-1", "codex-1", "unnamed"},
		"off":     {"unnamed", "unnamed", "unnamed", "unnamed", "unnamed", "unnamed", "unnamed"},
	} {
		r := New("node-7", config.Identity{Seats: config.Seats{By: by}}, nil, NewSeats(64), NewSecret())
		for i, header := range calls {
			got, err := r.Resolve(Request{Header: header, At: time.Unix(1_800_000_000, 0)})
			if err != nil || got.Holder != want[i]+"@node-7" || got.Retry != (i == 2) {
				t.Errorf("by %s, call %d: %+v, %v; want %s", by, i, got, err, want[i])
			}
		}
	}
}

// TestSeats_TheLowestFreeOneAfterHalfAnHour: so that names are few.
func TestSeats_TheLowestFreeOneAfterHalfAnHour(t *testing.T) {
	seats, began := NewSeats(64), time.Unix(1_800_000_000, 0)
	for i, session := range []string{"a", "b", "c"} {
		if got := seats.Take("claude", session, began); got != i+1 {
			t.Fatalf("%s has seat %d", session, got)
		}
	}
	later := began.Add(30*time.Minute - time.Second)
	if got := seats.Take("claude", "a", later); got != 1 {
		t.Errorf("a, which was silent for less than half an hour, has seat %d", got)
	}
	if got := seats.Take("claude", "d", later); got != 4 {
		t.Errorf("d has seat %d, although none is free", got)
	}
	for i, want := range []int{2, 3, 5} {
		if got := seats.Take("claude", fmt.Sprint("e", i), later.Add(time.Second)); got != want {
			t.Errorf("new session %d has seat %d, want %d", i, got, want)
		}
	}
}

func TestPatience_IsBelowClientTimeouts(t *testing.T) {
	for agent, want := range map[string]time.Duration{
		"claude-cli/2.1 (external)": 4 * time.Minute, "codex_cli_rs/0.1": 4 * time.Minute, "GeminiCLI/0.3": 40 * time.Second, "curl/7.88.1": 0,
		"octokit-rest.js/22": 2 * time.Minute, "": 0, "copilot/1.0.4 (linux)": 2 * time.Minute, "Aider/0.86": 2 * time.Minute,
		"node": 2 * time.Minute, "undici": 2 * time.Minute, "GitHub CLI 2.23.0": 0, "python-requests/2.28.1": 0, "python-httpx/0.28.1": 0,
		"Go-http-client/1.1": 0,
	} {
		if got := Patience(headerOf("User-Agent", agent)); got != want {
			t.Errorf("%s: %v, want %v", agent, got, want)
		}
	}
	for seconds, want := range map[string]time.Duration{"600": 150 * time.Second, "NaN": 0, "-1": 0, "1e300": 0, "x": 0} {
		if got := Patience(headerOf("X-Stainless-Read-Timeout", seconds)); got != want {
			t.Errorf("%s: %v, want %v", seconds, got, want)
		}
	}
	if got := Patience(headerOf("X-Claude-Code-Session-Id", "a", "X-Stainless-Timeout", "60")); got != 4*time.Minute {
		t.Errorf("Claude Code by its header: %v", got)
	}
	const js = 2 * time.Minute
	for seconds, want := range map[string]time.Duration{"600": js, "60": 15 * time.Second, "": js, "x": js} {
		if got := Patience(headerOf("X-Stainless-Timeout", seconds, "X-Stainless-Lang", "js")); got != want {
			t.Errorf("js with a timeout of %q: %v, want %v", seconds, got, want)
		}
	}
}

func TestStrip_LeavesNothingOfOurs(t *testing.T) {
	h := headerOf(TokenHeader, "qtd_a_b", "X-Quotad-Anything", "x", "Authorization", "Bearer qtd_a_b", "X-Api-Key", "sk-kept")
	StripTokens(h)
	if len(h) != 1 || h.Get("X-Api-Key") != "sk-kept" {
		t.Errorf("left: %v", h)
	}
	h = http.Header{"Authorization": {"Bearer sk-kept", "Bearer qtd_a_b"}}
	StripTokens(h)
	if got := h["Authorization"]; len(got) != 1 || got[0] != "Bearer sk-kept" {
		t.Errorf("left: %v", got)
	}
	for query, want := range map[string]string{
		"a=1&key=x&b=%2F": "a=1&b=%2F", "key=x": "", "%6bey=x&a": "a", "a=key=b": "a=key=b", "": "", "monkey=1": "monkey=1",
		"access_token=x&a=1": "a=1", "a=1&access%5Ftoken=x": "a=1", "oauth_token=x": "", "api-key=x&b": "b",
		"my_access_token=1": "my_access_token=1",
	} {
		if got := StripQueryKeys(query); got != want {
			t.Errorf("%q gives %q, want %q", query, got, want)
		}
	}
	for query, want := range map[string]string{
		"key=sk&access_token=qtd_a_b&x=1": "key=sk&x=1", "key=sk&key=qtd_a_b": "key=sk", "key=%71td_a_b": "", "a=qtd_b": "a=qtd_b", "": "",
		"access_token=x": "access_token=x",
	} {
		if got := StripQueryTokens(query); got != want {
			t.Errorf("%q without tokens gives %q, want %q", query, got, want)
		}
	}
}

// TestKeys_InTheQueryAreCredentials: each place in which a provider accepts a key identifies the caller, or holds the gateway's token.
func TestKeys_InTheQueryAreCredentials(t *testing.T) {
	for query, want := range map[string][2]string{
		"access_token=ya29.x": {"ya29.x", ""}, "a=1&access%5ftoken=ya29%2Ex": {"ya29.x", ""}, "oauth_token=x": {"x", ""}, "api-key=x": {"x", ""},
		"key=AIza&access_token=qtd_a_b": {"AIza", "qtd_a_b"}, "key=qtd_a_b&access_token=x": {"x", "qtd_a_b"}, "key=": {"", ""}, "x=1": {"", ""},
	} {
		if key, token := KeyOf(http.Header{}, query), TokenIn(http.Header{}, query); key != want[0] || token != want[1] {
			t.Errorf("%q: the key %q and the token %q, want %q", query, key, token, want)
		}
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("picard", "worf~background", "claude-cli/1", "s", "Bearer sk", "key=1")
	f.Add("", "%zz", "", "", "", "%")
	seats := NewSeats(4)
	r := New("node-7", config.Identity{Seats: config.Seats{By: "agent", Count: 4}}, nil, seats, NewSecret())
	f.Fuzz(func(t *testing.T, holder, path, agent, session, authorization, query string) {
		h := http.Header{}
		for name, value := range map[string]string{
			HolderHeader: holder, "User-Agent": agent, "Session-Id": session, "Authorization": authorization, "X-Stainless-Timeout": session,
		} {
			h[name] = []string{value}
		}
		caller, err := r.Resolve(Request{Header: h, PathHolder: path, RawQuery: query})
		if err == nil && !strings.HasSuffix(caller.Holder, "node-7") {
			t.Errorf("%+v is taken for %q", h, caller.Holder)
		}
		if wait := Patience(h); wait < 0 || wait > 1e6*time.Second {
			t.Errorf("patience %v", wait)
		}
		StripTokens(h)
		for name := range h {
			if strings.HasPrefix(name, "X-Quotad-") {
				t.Errorf("%s is left", name)
			}
		}
	})
}

// TestSeats_ListIsInOrder: of tools and numbers, so that a page that is read again shows each seat where it was.
func TestSeats_ListIsInOrder(t *testing.T) {
	seats, now := NewSeats(3), time.Now()
	var want []string
	for _, tool := range []string{"aider", "claude", "codex", "copilot", "gemini", "gh"} {
		for i, session := range []string{"b", "a"} {
			seats.Take(tool, session, now)
			want = append(want, fmt.Sprint(tool, i+1, session))
		}
	}
	var got []string
	for _, seat := range seats.List(now) {
		got = append(got, fmt.Sprint(seat.Tool, seat.Number, seat.Session))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the seats are %q, want %q", got, want)
	}
}

// TestSeats_Resize: sessions of removed seats take other seats, and all others keep theirs.
func TestSeats_Resize(t *testing.T) {
	seats, now := NewSeats(3), time.Now()
	for i, session := range []string{"a", "b", "c"} {
		if got := seats.Take("claude", session, now); got != i+1 {
			t.Fatalf("%s has seat %d", session, got)
		}
	}
	seats.Resize(2)
	now = now.Add(time.Second)
	for session, want := range map[string]int{"a": 1, "b": 2} {
		if got := seats.Take("claude", session, now); got != want {
			t.Errorf("%s has seat %d, want %d", session, got, want)
		}
	}
	if got := seats.Take("claude", "c", now.Add(time.Second)); got < 1 || got > 2 || len(seats.List(now)) != 2 {
		t.Errorf("c has seat %d of 2: %v", got, seats.List(now))
	}
	seats.Resize(4)
	if got := seats.Take("claude", "d", now); got != 3 {
		t.Errorf("d has seat %d", got)
	}
}
