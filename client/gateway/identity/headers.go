package identity

import (
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// tokenPrefix begins tokens of quotad.
const tokenPrefix = "qtd_"

// keyHeaders and keyParameters are where clients send keys. Google's APIs also accept a login token in the query, Azure's a key.
var (
	keyHeaders    = []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key"}
	keyParameters = []string{"key", "access_token", "oauth_token", "api-key"}
)

// KeyOf returns the caller's credential for its provider; empty: none.
func KeyOf(header http.Header, rawQuery string) string {
	for _, name := range keyHeaders {
		if value := bare(header.Get(name)); value != "" && !strings.HasPrefix(value, tokenPrefix) {
			return value
		}
	}
	for key := range queryKeys(rawQuery) {
		if key != "" && !strings.HasPrefix(key, tokenPrefix) {
			return key
		}
	}
	return ""
}

// TokenIn returns the caller's token of this gateway; empty: none.
func TokenIn(header http.Header, rawQuery string) string {
	if token := header.Get(TokenHeader); token != "" {
		return token
	}
	for _, name := range keyHeaders {
		if value := bare(header.Get(name)); strings.HasPrefix(value, tokenPrefix) {
			return value
		}
	}
	for key := range queryKeys(rawQuery) {
		if strings.HasPrefix(key, tokenPrefix) {
			return key
		}
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

// queryKeys returns the keys in a query.
func queryKeys(rawQuery string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for part := range strings.SplitSeq(rawQuery, "&") {
			if value, ok := keyIn(part); ok && !yield(value) {
				return
			}
		}
	}
}

// keyIn returns the value of a query parameter; ok is false if it is not a key's parameter. The name may be escaped.
func keyIn(parameter string) (value string, ok bool) {
	name, value, _ := strings.Cut(parameter, "=")
	if plain, err := url.QueryUnescape(name); err == nil {
		name = plain
	}
	if !slices.Contains(keyParameters, name) {
		return "", false
	}
	plain, _ := url.QueryUnescape(value) // a value with invalid escapes is no key that a provider accepts
	return plain, true
}

// StripQueryKeys removes every key from a query; the rest is unchanged.
func StripQueryKeys(rawQuery string) string {
	return stripQuery(rawQuery, func(string) bool { return true })
}

// StripQueryTokens removes this gateway's tokens from a query; the rest is unchanged.
func StripQueryTokens(rawQuery string) string {
	return stripQuery(rawQuery, func(key string) bool { return strings.HasPrefix(key, tokenPrefix) })
}

func stripQuery(rawQuery string, drops func(key string) bool) string {
	var kept []string
	for part := range strings.SplitSeq(rawQuery, "&") {
		if value, ok := keyIn(part); !ok || !drops(value) {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, "&")
}

// StripTokens removes this gateway's tokens and all X-Quotad headers, which are never sent to a provider.
func StripTokens(header http.Header) {
	for name := range header {
		if strings.HasPrefix(name, "X-Quotad-") {
			delete(header, name)
		}
	}
	for _, name := range keyHeaders {
		kept := slices.DeleteFunc(header[name], func(value string) bool { return strings.HasPrefix(bare(value), tokenPrefix) })
		if header[name] = kept; len(kept) == 0 {
			delete(header, name)
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

// sessionOf returns the id of a tool's session; empty: none.
func sessionOf(header http.Header) string {
	// Codex writes its header with a dash or, formerly, an underscore.
	for _, name := range []string{"X-Claude-Code-Session-Id", "Session-Id", "Session_id"} {
		if id := header.Get(name); id != "" && len(id) <= 256 {
			return id
		}
	}
	return ""
}

// retryCount returns how often an SDK has already sent this call, according to its header.
func retryCount(header http.Header) int {
	n, err := strconv.Atoi(header.Get("X-Stainless-Retry-Count"))
	if err != nil {
		return 0
	}
	return n
}
