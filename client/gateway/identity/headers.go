package identity

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// tokenPrefix is what tokens of quotad begin with.
const tokenPrefix = "qtd_"

// keyHeaders are where clients put their keys.
var keyHeaders = []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key"}

// KeyOf returns the caller's credential for its provider; empty: there is none.
func KeyOf(header http.Header, rawQuery string) string {
	for _, name := range keyHeaders {
		if value := bare(header.Get(name)); value != "" && !strings.HasPrefix(value, tokenPrefix) {
			return value
		}
	}
	if key := queryKey(rawQuery); !strings.HasPrefix(key, tokenPrefix) {
		return key
	}
	return ""
}

// TokenIn returns the caller's token of this gateway; empty: there is none.
func TokenIn(header http.Header, rawQuery string) string {
	if token := header.Get(TokenHeader); token != "" {
		return token
	}
	for _, name := range keyHeaders {
		if value := bare(header.Get(name)); strings.HasPrefix(value, tokenPrefix) {
			return value
		}
	}
	if key := queryKey(rawQuery); strings.HasPrefix(key, tokenPrefix) {
		return key
	}
	return ""
}

// bare returns a credential without its scheme.
func bare(value string) string {
	scheme, rest, found := strings.Cut(value, " ")
	if found && (strings.EqualFold(scheme, "bearer") || strings.EqualFold(scheme, "token")) {
		return strings.TrimSpace(rest)
	}
	return value
}

func queryKey(rawQuery string) string {
	for part := range strings.SplitSeq(rawQuery, "&") {
		name, value, _ := strings.Cut(part, "=")
		if isKey(name) {
			plain, _ := url.QueryUnescape(value) // what is not escaped properly is no key that a provider knows
			return plain
		}
	}
	return ""
}

// isKey reports whether the name of a query's parameter is key, also where it is escaped.
func isKey(name string) bool {
	plain, err := url.QueryUnescape(name)
	return name == "key" || err == nil && plain == "key"
}

// StripQueryKey removes ?key= from a query and leaves the rest as it is.
func StripQueryKey(rawQuery string) string {
	var kept []string
	for part := range strings.SplitSeq(rawQuery, "&") {
		if name, _, _ := strings.Cut(part, "="); !isKey(name) {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, "&")
}

// StripTokens removes this gateway's tokens and all X-Quotad headers, which never leave for a provider.
func StripTokens(header http.Header) {
	for name := range header {
		if strings.HasPrefix(name, "X-Quotad-") {
			delete(header, name)
		}
	}
	for _, name := range keyHeaders {
		if strings.HasPrefix(bare(header.Get(name)), tokenPrefix) {
			header.Del(name)
		}
	}
}

// StripCredentials removes every credential of the caller.
func StripCredentials(header http.Header) {
	for _, name := range keyHeaders {
		header.Del(name)
	}
	header.Del("Cookie")
}

// sessionOf returns the id of a tool's session; empty: it names none.
func sessionOf(header http.Header) string {
	// Codex writes its header with a dash or, formerly, an underscore.
	for _, name := range []string{"X-Claude-Code-Session-Id", "Session-Id", "Session_id"} {
		if id := header.Get(name); id != "" && len(id) <= 256 {
			return id
		}
	}
	return ""
}

// retryCount returns how often an SDK says that it has sent this call before.
func retryCount(header http.Header) int {
	n, err := strconv.Atoi(header.Get("X-Stainless-Retry-Count"))
	if err != nil {
		return 0
	}
	return n
}
