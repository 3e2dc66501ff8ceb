package rpc

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Verb is something that a token allows.
type Verb string

// The verbs.
const (
	VerbUse          Verb = "use"           // reserve, consume, settle, release, renew, withdraw, sessions, attempts of tasks
	VerbReport       Verb = "report"        // report a provider's answers
	VerbRead         Verb = "read"          // read quotas, leases, tasks and events
	VerbAdminQuota   Verb = "admin-quota"   // apply and delete quotas, revoke leases, retry and forget tasks
	VerbAdminCluster Verb = "admin-cluster" // members, backup, restore
	VerbDebug        Verb = "debug"         // hashes, log dumps, faults
)

var verbs = []Verb{VerbUse, VerbReport, VerbRead, VerbAdminQuota, VerbAdminCluster, VerbDebug}

// verbOfEach stands for a Batch: each of its commands needs its own verb.
const verbOfEach Verb = ""

// tokenPrefix lets secret scanners find quotad's tokens.
const tokenPrefix = "qtd_"

// Token is one entry of a token file. It has only the SHA-256 of the secret, never the secret itself.
type Token struct {
	// ID is the token's public name.
	ID string `yaml:"id"`
	// SHA256 is the hexadecimal hash of the whole token.
	SHA256 string `yaml:"sha256"`
	// Holder is the pattern of holders that it may act for; * stands for any run of characters.
	Holder string `yaml:"holder"`
	// MaxClass is the highest class that it may ask for: critical, standard (default) or background.
	MaxClass string `yaml:"max_class"`
	// Verbs name the calls that it allows.
	Verbs []Verb `yaml:"verbs"`
	// NotAfter is when it expires; zero: never.
	NotAfter time.Time `yaml:"not_after"`

	hash    []byte
	ceiling int32
}

// Tokens are the known tokens, which Reload may replace while they are in use.
type Tokens struct {
	path string
	now  func() time.Time
	byID atomic.Pointer[map[string]*Token]
}

// LoadTokens reads a token file.
func LoadTokens(path string) (*Tokens, error) {
	t := &Tokens{path: path, now: time.Now}
	return t, t.Reload()
}

// Reload reads the file again. If that fails, the old tokens stay.
func (t *Tokens) Reload() error {
	data, err := os.ReadFile(t.path)
	if err != nil {
		return err
	}
	var file struct {
		Tokens []*Token `yaml:"tokens"`
	}
	if err := yaml.Load(data, &file, yaml.WithKnownFields()); err != nil {
		return fmt.Errorf("token file %s: %w", t.path, err)
	}
	byID := make(map[string]*Token, len(file.Tokens))
	for i, token := range file.Tokens {
		if token == nil {
			return fmt.Errorf("token file %s: token %d is empty", t.path, i+1)
		}
		if err := token.check(); err != nil {
			return fmt.Errorf("token file %s: token %d: %w", t.path, i+1, err)
		}
		if byID[token.ID] != nil {
			return fmt.Errorf("token file %s: duplicate id %q", t.path, token.ID)
		}
		byID[token.ID] = token
	}
	t.byID.Store(&byID)
	return nil
}

// List returns the entries by id, without anything secret in them.
func (t *Tokens) List() []Token {
	byID := *t.byID.Load()
	list := make([]Token, 0, len(byID))
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		list = append(list, *byID[id])
	}
	return list
}

// Len returns how many tokens there are.
func (t *Tokens) Len() int { return len(*t.byID.Load()) }

func (t *Token) check() error {
	hash, err := hex.DecodeString(t.SHA256)
	if err != nil || len(hash) != sha256.Size {
		return errors.New("sha256 must be 64 hexadecimal digits")
	}
	t.hash = hash
	if t.ID == "" || strings.ContainsAny(t.ID, "_ ") {
		return errors.New("id must be a name without blanks or underscores")
	}
	if t.Holder == "" {
		return errors.New("holder must be a pattern; * allows all")
	}
	switch t.MaxClass {
	case "critical":
		t.ceiling = 0
	case "", "standard":
		t.ceiling = 1
	case "background":
		t.ceiling = 2
	default:
		return fmt.Errorf("max_class %q is not critical, standard or background", t.MaxClass)
	}
	if len(t.Verbs) == 0 {
		return errors.New("verbs must have at least one entry")
	}
	for _, v := range t.Verbs {
		if !slices.Contains(verbs, v) {
			return fmt.Errorf("verb %q is not one of %v", v, verbs)
		}
	}
	return nil
}

// NewToken mints a token: the secret to hand out, and the entry for the token file.
func NewToken(id, holder, maxClass string, allowed []Verb) (secret string, entry Token, err error) {
	random := make([]byte, 32)
	if _, err := rand.Read(random); err != nil {
		return "", Token{}, err
	}
	secret = tokenPrefix + id + "_" + base64.RawURLEncoding.EncodeToString(random)
	hash := sha256.Sum256([]byte(secret))
	entry = Token{ID: id, SHA256: hex.EncodeToString(hash[:]), Holder: holder, MaxClass: maxClass, Verbs: allowed}
	return secret, entry, entry.check()
}

// caller is what is known of a caller.
type caller struct {
	// id is the token's; empty where there are no tokens.
	id string
	// pattern of holders that it may act for; empty: any.
	pattern string
	// ceiling is the highest class; -1: any.
	ceiling int32
	verbs   []Verb
	// account names the account that pays for this caller's requests; empty: none.
	account string
}

// anybody is the caller where there is no token file: names are taken on trust.
var anybody = &caller{ceiling: -1, verbs: verbs}

// identify finds a caller by its Authorization header.
func (t *Tokens) identify(authorization string) (*caller, error) {
	if t == nil {
		return anybody, nil
	}
	secret, bearer := strings.CutPrefix(authorization, "Bearer ")
	token, known := t.Find(secret)
	if !bearer || !known {
		return nil, newError("a valid token is required", &quotav1.ErrorInfo{
			Reason: quotav1.Reason_REASON_NO_TOKEN, Hint: "send it as Authorization: Bearer TOKEN; an operator creates one with quotad token new",
			NotAccepted: true,
		})
	}
	return &caller{
		id: token.ID, pattern: token.Holder, ceiling: token.ceiling, verbs: token.Verbs, account: tokenAccount + token.ID,
	}, nil
}

// Find returns the entry of a secret that is valid now. Secrets are compared by their hashes, in constant time.
func (t *Tokens) Find(secret string) (*Token, bool) {
	rest, ours := strings.CutPrefix(secret, tokenPrefix)
	id, _, whole := strings.Cut(rest, "_")
	token := (*t.byID.Load())[id]
	hash := sha256.Sum256([]byte(secret))
	if !ours || !whole || token == nil || subtle.ConstantTimeCompare(hash[:], token.hash) != 1 ||
		!token.NotAfter.IsZero() && t.now().After(token.NotAfter) {
		return nil, false
	}
	return token, true
}

// may checks that a caller has a verb.
func (c *caller) may(verb Verb) error {
	if verb == verbOfEach || slices.Contains(c.verbs, verb) {
		return nil
	}
	return newError(fmt.Sprintf("this needs the verb %s, which your token does not have", verb), &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_NOT_ALLOWED, Hint: "ask the operator for a token with this verb", NotAccepted: true,
	})
}

// mayActFor checks that a caller may act for a holder.
func (c *caller) mayActFor(holder string) error {
	if c.covers(holder) {
		return nil
	}
	return newError(fmt.Sprintf("your token does not cover the holder %q", holder), &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_NOT_ALLOWED, Field: "holder", Hint: "it covers holders that match " + c.pattern, NotAccepted: true,
	})
}

// covers tells whether the caller may act for a holder, and see what belongs to it.
func (c *caller) covers(holder string) bool { return c.pattern == "" || fsm.Match(c.pattern, holder) }

// classFor returns the class to request: never above the caller's ceiling. ok is false if the holder's own class applies.
func (c *caller) classFor(asked quotav1.Class) (class int32, ok bool) {
	if asked == quotav1.Class_CLASS_UNSPECIFIED {
		return c.ceiling, c.ceiling > 0
	}
	return max(int32(asked)-1, c.ceiling), true
}

// noteClass says in a refusal's advice that the caller's token lowered the class that was asked for. Otherwise nobody notices.
func (c *caller) noteClass(asked quotav1.Class, refusal *quotav1.Refusal) {
	if refusal == nil || asked == quotav1.Class_CLASS_UNSPECIFIED || int32(asked)-1 >= c.ceiling {
		return
	}
	word := func(class quotav1.Class) string {
		return strings.ToLower(strings.TrimPrefix(class.String(), "CLASS_"))
	}
	note := fmt.Sprintf("your token lowers the class %s to %s", word(asked), word(quotav1.Class(c.ceiling+1)))
	if refusal.Advice != "" {
		note = refusal.Advice + "; " + note
	}
	refusal.Advice = note
}
