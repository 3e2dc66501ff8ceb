// Package identity determines the caller of a call: its holder and class, by a token, by an explicit name, by the session of its tool,
// by its key, or by its process. It also knows how long clients wait for an answer.
package identity

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/quotad/quotad/client/gateway/config"
)

// The headers by which callers name themselves. None of them is sent to a provider.
const (
	TokenHeader  = "X-Quotad-Token"
	HolderHeader = "X-Quotad-Holder"
	ClassHeader  = "X-Quotad-Class"
	WaitHeader   = "X-Quotad-Wait"
)

// Verb is a permission of a token. The names are those of the cluster's token files.
type Verb string

// The verbs that this gateway checks.
const (
	// Use is for calls, takes, slots and settlements.
	Use Verb = "use"
	// Report is for reporting a provider's answers.
	Report Verb = "report"
	// Read is for reading the gateway's status.
	Read Verb = "read"
)

// Right is the set of permissions of a token.
type Right struct {
	// ID is the token's public name.
	ID string
	// Pattern matches the holders that it may act for.
	Pattern string
	// MaxClass is the highest class that it may request.
	MaxClass config.Class
	// Verbs are its permissions; none: nothing is allowed.
	Verbs []Verb
}

// May reports whether the token allows a verb.
func (r Right) May(verb Verb) bool { return slices.Contains(r.Verbs, verb) }

// Tokens finds the permissions of a token. It compares secrets by their hashes, in constant time.
type Tokens interface {
	// Find returns the permissions of a secret; false: it is unknown, or no longer valid.
	Find(secret string) (Right, bool)
}

// Caller identifies the caller of a call.
type Caller struct {
	// Holder is the name in the cluster.
	Holder string
	// Class lowers the class of the call; none: the holder's own.
	Class config.Class
	// Source is what named the holder: token, header, path, session, key, peer or machine.
	Source string
	// Tool, Session and Agent are the tool's own statements; they grant nothing.
	Tool, Session, Agent string
	// Token is the id of the presented token; empty: none.
	Token string
	// Retry: the client declares the call a retry.
	Retry bool
}

// Request is the information about a call before its caller is known.
type Request struct {
	Header http.Header
	// RawQuery may have a token as its key.
	RawQuery string
	// PathHolder is <holder>[~class] of /as/..., escaped; empty: none.
	PathHolder string
	// Peer names the process at the other end of a unix socket; empty: unknown.
	Peer string
	// At is when the call arrived.
	At time.Time
	// Verb is the permission that its token needs; empty: Use.
	Verb Verb
}

// DeniedError reports that the caller may not use the name that it claims, or that it is unknown.
type DeniedError struct {
	// Status is 400, 401 or 403.
	Status  int
	Message string
}

// Error implements error.
func (e *DeniedError) Error() string { return e.Message }

// Resolver names callers.
type Resolver struct {
	machine string
	names   []string
	tools   map[string]config.Tool
	by      string
	tokens  Tokens
	seats   *Seats
	secret  Secret
}

// Secret keys the digests of keys, so that they cannot be looked up.
type Secret []byte

// NewSecret returns a random secret.
func NewSecret() Secret {
	secret := make(Secret, 32)
	_, _ = rand.Read(secret) // it never fails
	return secret
}

// New returns a resolver. Without tokens, names are trusted. Seats and secret outlive a reload of the configuration, so that callers
// keep their names.
func New(machine string, identity config.Identity, tokens Tokens, seats *Seats, secret Secret) *Resolver {
	return &Resolver{
		machine: machine, names: identity.Names, tools: identity.Tools, by: identity.Seats.By, tokens: tokens, seats: seats, secret: secret,
	}
}

// Resolve identifies the caller. Explicit names precede what a tool sends by default. The error is a *DeniedError.
func (r *Resolver) Resolve(request Request) (Caller, error) {
	caller := Caller{Session: sessionOf(request.Header), Agent: request.Header.Get("X-Claude-Code-Agent-Id"), Tool: ToolOf(request.Header)}
	caller.Retry = retryCount(request.Header) > 0
	right, err := r.rightOf(request)
	if err != nil {
		return caller, err
	}
	if right != nil {
		caller.Token = right.ID
	}
	if err := r.name(&caller, request, right); err != nil {
		return caller, err
	}
	class, err := r.classOf(caller, request)
	if err != nil {
		return caller, err
	}
	caller.Class = class
	// A caller without a class has its holder's. A token lowers that class, and raises nothing.
	if right != nil && (class != config.ClassNone || right.MaxClass > config.Critical) {
		caller.Class = max(class, right.MaxClass)
	}
	return caller, nil
}

// Admit checks the token of a call before anything else of it is read. The error is a *DeniedError.
func (r *Resolver) Admit(request Request) error {
	_, err := r.rightOf(request)
	return err
}

// rightOf returns the permissions of the caller's token; nil: no tokens are required.
func (r *Resolver) rightOf(request Request) (*Right, error) {
	if r.tokens == nil {
		return nil, nil //nolint:nilnil // names are taken on trust
	}
	right, ok := r.tokens.Find(TokenIn(request.Header, request.RawQuery))
	if !ok {
		return nil, &DeniedError{http.StatusUnauthorized, "quotad: this gateway needs a token (X-Quotad-Token, or qtd_... as the API key); " +
			"the operator makes one with: quotad token new"}
	}
	if verb := cmp.Or(request.Verb, Use); !right.May(verb) {
		return nil, &DeniedError{http.StatusForbidden, fmt.Sprintf("quotad: the token %s does not allow the verb %s; "+
			"the operator makes one that does with: quotad token new --verbs %s", right.ID, verb, verb)}
	}
	return &right, nil
}

// name sets the caller's holder.
func (r *Resolver) name(caller *Caller, request Request, right *Right) error {
	claimed, source, err := claim(request)
	if err != nil {
		return err
	}
	if claimed != "" {
		caller.Holder, caller.Source = claimed, source
		if !strings.Contains(claimed, "@") && !slices.Contains(r.names, claimed) && right == nil {
			caller.Holder = claimed + "@" + r.machine
		}
		switch {
		case right != nil && !config.Match(right.Pattern, caller.Holder):
			return &DeniedError{http.StatusForbidden, fmt.Sprintf("quotad: the token %s does not cover the holder %s; it covers %s",
				right.ID, Quote(caller.Holder), right.Pattern)}
		case right == nil && strings.Contains(claimed, "@") && !strings.HasSuffix(claimed, "@"+r.machine) && !slices.Contains(r.names, claimed):
			return &DeniedError{http.StatusForbidden, fmt.Sprintf("quotad: callers on this machine may use holders *@%s, not %s; "+
				"allow other names in identity.names", r.machine, Quote(caller.Holder))}
		}
		return nil
	}
	seated := r.seatOf(caller, request.At)
	if right != nil {
		// Use the tool's own seat if the token's pattern covers it, else the token's name.
		caller.Holder, caller.Source = right.ID, "token"
		for _, name := range []string{seated, right.ID, strings.ReplaceAll(right.Pattern, "*", right.ID)} {
			if name != "" && config.Match(right.Pattern, name) {
				caller.Holder = name
				break
			}
		}
		return nil
	}
	switch key := KeyOf(request.Header, request.RawQuery); {
	case seated != "":
		caller.Holder, caller.Source = seated, "session"
	case key != "":
		caller.Holder, caller.Source = "key-"+r.Digest(key)+"@"+r.machine, "key"
	case request.Peer != "":
		caller.Holder, caller.Source = request.Peer+"@"+r.machine, "peer"
	default:
		caller.Holder, caller.Source = "unnamed@"+r.machine, "machine"
	}
	return nil
}

// claim returns the holder that the caller claims, in a header or in its path.
func claim(request Request) (holder, source string, err error) {
	holder, source = request.Header.Get(HolderHeader), "header"
	if holder == "" && request.PathHolder != "" {
		source = "path"
		name, _, _ := strings.Cut(request.PathHolder, "~")
		if holder, err = url.PathUnescape(name); err != nil {
			return "", "", &DeniedError{http.StatusBadRequest, "quotad: the holder in the path is not percent-encoded: " + Quote(name)}
		}
	}
	if holder != "" && !validHolder(holder) {
		return "", "", &DeniedError{http.StatusBadRequest, "quotad: a holder must have 1 to 128 bytes of printable UTF-8, not " + Quote(holder)}
	}
	return holder, source, nil
}

func validHolder(name string) bool {
	return len(name) <= 128 && utf8.ValidString(name) && strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// seatOf returns the holder of the tool's session; empty: it has none.
func (r *Resolver) seatOf(caller *Caller, now time.Time) string {
	session := caller.Session
	if r.by == "agent" && caller.Agent != "" {
		session += "/" + caller.Agent
	}
	if session == "" || r.by == "off" || caller.Tool == "" {
		return ""
	}
	return caller.Tool + "-" + strconv.Itoa(r.seats.Take(caller.Tool, session, now)) + "@" + r.machine
}

// classOf returns the class that the caller requests, or else that of its tool in the configuration.
func (r *Resolver) classOf(caller Caller, request Request) (config.Class, error) {
	text := request.Header.Get(ClassHeader)
	if text == "" {
		_, text, _ = strings.Cut(request.PathHolder, "~")
	}
	if text == "" {
		return r.tools[caller.Tool].Class, nil
	}
	class, ok := config.ClassNamed(text)
	if !ok {
		return 0, &DeniedError{http.StatusBadRequest, fmt.Sprintf("quotad: %s is not a class: critical, standard or background", Quote(text))}
	}
	return class, nil
}

// Digest returns 8 hexadecimal digits that distinguish keys within the life of a process.
func (r *Resolver) Digest(key string) string {
	mac := hmac.New(sha256.New, r.secret)
	mac.Write([]byte(key))
	return hex.EncodeToString(mac.Sum(nil)[:4])
}

// Quote formats a caller's text for messages and logs: quoted, and truncated to 128 bytes.
func Quote(text string) string {
	if len(text) > 128 {
		text = text[:128]
	}
	return strconv.QuoteToASCII(text)
}
