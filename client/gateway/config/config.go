// Package config is what a gateway is told: addresses, callers, upstreams, models, waits and limits. It knows no file format;
// Config.Check returns what is wrong with a configuration, and Config.Complete fills in what is absent.
package config

import (
	"cmp"
	"maps"
	"time"

	"github.com/quotad/quotad/client/gateway/price"
)

// Class is a priority: 1 critical, 2 standard, 3 background; 0 is not given. The numbers are those of the API.
type Class int

// The classes, highest first.
const (
	ClassNone  Class = 0
	Critical   Class = 1
	Standard   Class = 2
	Background Class = 3
)

// Classes are the names of the classes, highest first.
var Classes = []string{"critical", "standard", "background"}

// ClassNamed returns the class of a name.
func ClassNamed(name string) (Class, bool) {
	for i, known := range Classes {
		if known == name {
			return Class(i + 1), true
		}
	}
	return ClassNone, false
}

// String returns the class's name; empty: none is given.
func (c Class) String() string {
	if c < Critical || c > Background {
		return ""
	}
	return Classes[c-1]
}

// Config configures a gateway.
type Config struct {
	// Listen is where it listens.
	Listen Listen
	// Hosts are further names in Host headers that are taken for this gateway, besides loopback addresses.
	Hosts []string
	// Origins are the origins of pages that may call it; others are refused.
	Origins []string
	// Tokens is a file of tokens that callers must show; empty: names are taken on trust.
	Tokens string
	// Trust allows injected keys on a TCP port without tokens: everyone on this machine may use them.
	Trust bool
	// Cluster is how to reach the nodes.
	Cluster Cluster
	// Machine is this machine's name in holders; empty: the host's name.
	Machine string
	// Identity says how callers are named.
	Identity Identity
	// Upstreams are the providers by name, which is the first segment of a path.
	Upstreams map[string]Upstream
	// State is a file that keeps what was learnt of calls over a restart; empty: none does.
	State string
	// Root is the upstream that is also served at /; empty: none.
	Root string
	// Models map models to quotas, first match first.
	Models []Model
	// Prices are what calls cost, first match first.
	Prices []price.Line
	// Wait is the longest wait in the queue by class.
	Wait map[Class]time.Duration
	// Lease is the length of a call's lease, which the gateway renews while the call is in flight. It is how long the slots of a call stay
	// taken after the gateway was killed, and how long a call that holds slots lasts without the cluster.
	Lease time.Duration
	// Limits bound what the gateway keeps and does at once.
	Limits Limits
}

// Listen is where a gateway listens.
type Listen struct {
	// TCP are addresses host:port; none and no socket: 127.0.0.1:7452 and [::1]:7452.
	TCP []string
	// Unix is the path of a socket; empty: none.
	Unix string
	// Cert and Key are PEM files of the server's certificate; empty: plain HTTP.
	Cert, Key string
	// Insecure allows an address that is not loopback without TLS.
	Insecure bool
}

// Reloaded returns what is open after a reload that names next: the same addresses. Only the files of a certificate may change.
func (l Listen) Reloaded(next Listen) Listen {
	if l.Cert != "" && next.Cert != "" {
		l.Cert, l.Key = next.Cert, next.Key
	}
	return l
}

// Cluster is how to reach quotad's nodes.
type Cluster struct {
	// Nodes are host:port or URLs; one is enough.
	Nodes []string
	// Token is the gateway's own token; nil: none.
	Token *Source
	// CA is a PEM file of the authorities that sign the nodes' certificates; it turns TLS on.
	CA string
}

// Source is where a secret comes from: exactly one of its fields is set.
type Source struct {
	// Env is an environment variable.
	Env string
	// File is a path.
	File string
	// Credential is a name below $CREDENTIALS_DIRECTORY, as systemd's LoadCredential= provides it.
	Credential string
}

// Identity says how callers are named.
type Identity struct {
	// Names are holders that may be claimed without the machine's name.
	Names []string
	// Tools are the classes of known tools, by name (claude, codex, gh).
	Tools map[string]Tool
	// Seats number the sessions of a tool.
	Seats Seats
}

// Tool is what is said of a tool.
type Tool struct{ Class Class }

// Seats number sessions, so that fresh ids do not flood the cluster with holders.
type Seats struct {
	// By is what a seat belongs to: session, agent or off.
	By string
	// Count is how many seats a tool has.
	Count int
}

// Upstream is one provider.
type Upstream struct {
	// Dialect is how it speaks: anthropic, azure, bedrock, codex, gemini, generic, github or openai.
	Dialect string
	// Base is its URL without a trailing slash.
	Base string
	// Plain allows a base with http.
	Plain bool
	// Quotas is the prefix of its quotas; empty: its name.
	Quotas string
	// Auth is pass or inject.
	Auth string
	// Keys are the credentials that are injected, first match first.
	Keys []Key
	// Pool are keys by name of which each call takes one: that of the member which the cluster grants, where it has a quota of kind pool, and
	// else the one with the most room.
	Pool []string
	// Parts are the parts that every model must have.
	Parts []string
	// Also are further quotas, by holder.
	Also []Also
	// Secondary draws on GitHub's secondary limits as well.
	Secondary bool
	// Batch takes calls out of batches that are consumed ahead for all calls of a class on this machine. Their holder in the cluster is
	// <class>@<machine>.
	Batch bool
	// Unknown is what happens to a model without a quota: refuse or observe.
	Unknown string
	// Unpriced is what happens to a call that draws on a quota of money and has no price: refuse or free.
	Unpriced string
	// Paths is what happens to paths that generate nothing: pass or refuse.
	Paths string
	// FailOpen bounds calls that pass while the cluster is away; nil: none do.
	FailOpen *FailOpen
	// OnDisconnect is what happens upstream when a client leaves in mid-stream: cancel or drain.
	OnDisconnect string
	// StreamUsage asks for usage in streams that do not say it: auto, on or off.
	StreamUsage string
	// Overloaded is how often a call is sent again that the provider was too busy for.
	Overloaded int
	// Rules say what calls of a generic upstream draw on.
	Rules []Rule
	// Hosts are the names in Host headers that lead here with their whole path; see BaseOf.
	Hosts []string
	// FirstByte is the longest wait for the provider's status line.
	FirstByte time.Duration
}

// Key is a credential to inject.
type Key struct {
	// Name is shown in logs and on the status page.
	Name string
	// From is where its value comes from.
	From Source
	// For says who uses it; empty: everybody.
	For Selector
	// Quotas is the prefix of its quotas; empty: the upstream's.
	Quotas string
}

// Selector chooses calls; an empty field chooses all.
type Selector struct {
	Class Class
	// Holder is a pattern, in which * stands for any run of characters.
	Holder string
}

// Selects reports whether it chooses a call. One that names no class is standard, as its wait is: which class the holder has in the
// cluster is not known here.
func (s Selector) Selects(class Class, holder string) bool {
	return (s.Class == ClassNone || s.Class == cmp.Or(class, Standard)) && (s.Holder == "" || Match(s.Holder, holder))
}

// Also is a set of further quotas for calls of some holders.
type Also struct {
	// Holder is a pattern; empty: all.
	Holder string
	// Use maps quotas to what they count: requests, tokens, input-tokens, output-tokens, cost.
	Use map[string]string
}

// FailOpen bounds calls while the cluster is away.
type FailOpen struct {
	// Count calls pass per Per.
	Count int
	Per   time.Duration
	// For is how long after the cluster was last heard of.
	For time.Duration
}

// Rule says what calls of a generic upstream draw on.
type Rule struct {
	// Method is an HTTP method; empty: any.
	Method string
	// Path is a pattern of the path, in which * stands for any run of characters.
	Path string
	// Use maps quotas to amounts.
	Use map[string]int64
}

// Model maps models to quotas.
type Model struct {
	// Upstream is the upstream it holds for; empty: all.
	Upstream string
	// Match is a pattern of the model.
	Match string
	// As is the model's name in quotas; empty: as it is.
	As string
	// Fallback are models of the same provider that answer instead, for the calls that For selects, while the cluster refuses the model
	// or foresees that it will soon be used up.
	Fallback []string
	For      Selector
}

// Limits bound what the gateway keeps and does at once.
type Limits struct {
	// Body is the largest JSON body, in bytes.
	Body int64
	// Memory is all buffered bodies together, in bytes.
	Memory int64
	// Drain is how long calls may go on after SIGTERM.
	Drain time.Duration
	// Calls is how many may be under way.
	Calls int
}

// The defaults.
const (
	DefaultBody   = 32 << 20
	DefaultMemory = 256 << 20
	DefaultSeats  = 64
	DefaultLease  = time.Minute
	DefaultPort   = "7452"
)

// builtin are the upstreams whose bases and hosts are known.
var builtin = map[string]Upstream{
	"openai":    {Dialect: "openai", Base: "https://api.openai.com", Hosts: []string{"api.openai.com"}},
	"anthropic": {Dialect: "anthropic", Base: "https://api.anthropic.com", Hosts: []string{"api.anthropic.com"}},
	"github":    {Dialect: "github", Base: "https://api.github.com", Hosts: []string{"api.github.com", "uploads.github.com"}},
	"gemini":    {Dialect: "gemini", Base: "https://generativelanguage.googleapis.com"},
	"azure":     {Dialect: "azure"},
	"bedrock":   {Dialect: "bedrock"},
	"chatgpt":   {Dialect: "codex", Base: "https://chatgpt.com/backend-api"},
}

// apart are the hosts of a base that are no other names of it, but serve another part of its API under the same limits, each at a base of
// its own.
var apart = map[string]map[string]string{
	"https://api.github.com": {"uploads.github.com": "https://uploads.github.com"},
}

// BaseOf returns the base of calls that were sent to one of the upstream's hosts.
func (u Upstream) BaseOf(host string) string {
	return cmp.Or(apart[u.Base][host], u.Base)
}

// Complete returns the configuration with its defaults filled in. It changes nothing in c.
func (c Config) Complete() Config {
	if len(c.Listen.TCP) == 0 && c.Listen.Unix == "" {
		c.Listen.TCP = []string{"127.0.0.1:" + DefaultPort, "[::1]:" + DefaultPort}
	}
	if c.Identity.Seats.By == "" {
		c.Identity.Seats.By = "session"
	}
	if c.Identity.Seats.Count == 0 {
		c.Identity.Seats.Count = DefaultSeats
	}
	wait := make(map[Class]time.Duration)
	for i, bound := range []time.Duration{30 * time.Second, 2 * time.Minute, 4 * time.Minute} {
		wait[Class(i+1)] = bound
	}
	maps.Copy(wait, c.Wait)
	c.Wait = wait
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	c.Limits = c.Limits.complete()
	upstreams := make(map[string]Upstream, len(c.Upstreams))
	for name, upstream := range c.Upstreams {
		upstreams[name] = upstream.complete(name)
	}
	c.Upstreams = upstreams
	return c
}

func (l Limits) complete() Limits {
	if l.Body == 0 {
		l.Body = DefaultBody
	}
	if l.Memory == 0 {
		l.Memory = DefaultMemory
	}
	if l.Drain == 0 {
		l.Drain = time.Minute
	}
	if l.Calls == 0 {
		l.Calls = 10_000
	}
	return l
}

func (u Upstream) complete(name string) Upstream {
	known := builtin[name]
	text := func(value *string, otherwise string) {
		if *value == "" {
			*value = otherwise
		}
	}
	if u.Base == "" {
		u.Base = known.Base
		if len(u.Hosts) == 0 {
			u.Hosts = known.Hosts
		}
	}
	text(&u.Dialect, known.Dialect)
	text(&u.Dialect, "generic")
	text(&u.Quotas, name)
	text(&u.Auth, "pass")
	text(&u.Unknown, "refuse")
	text(&u.Unpriced, "refuse")
	text(&u.Paths, "pass")
	text(&u.StreamUsage, "auto")
	if u.OnDisconnect == "" {
		u.OnDisconnect = "cancel"
		if u.Dialect == "bedrock" {
			u.OnDisconnect = "drain"
		}
	}
	if u.FirstByte == 0 {
		u.FirstByte = 10 * time.Minute
	}
	return u
}
