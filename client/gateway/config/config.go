// Package config is the configuration of a gateway: addresses, callers, upstreams, models, waits and limits. It is independent of file
// formats. Config.Check returns the problems of a configuration, and Config.Complete fills in defaults.
package config

import (
	"cmp"
	"maps"
	"time"

	"github.com/quotad/quotad/client/gateway/price"
)

// Class is a priority: 1 critical, 2 standard, 3 background; 0: not given. The numbers are those of the API.
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

// ClassNamed returns the class of that name.
func ClassNamed(name string) (Class, bool) {
	for i, known := range Classes {
		if known == name {
			return Class(i + 1), true
		}
	}
	return ClassNone, false
}

// String returns the class's name; empty: not given.
func (c Class) String() string {
	if c < Critical || c > Background {
		return ""
	}
	return Classes[c-1]
}

// Config configures a gateway.
type Config struct {
	// Listen has the addresses to listen on.
	Listen Listen
	// Hosts are further Host headers that mean this gateway, in addition to loopback addresses.
	Hosts []string
	// Origins are the origins of web pages that may call it; others are refused.
	Origins []string
	// Tokens is a file of tokens that callers must present; empty: names are trusted.
	Tokens string
	// Trust allows injected keys on a TCP port without tokens: everyone on this machine may use them.
	Trust bool
	// Cluster has the nodes and the access to them.
	Cluster Cluster
	// Machine is this machine's name in holders; empty: the host's name.
	Machine string
	// Identity controls how callers are named.
	Identity Identity
	// Upstreams are the providers by name, which is the first segment of a path.
	Upstreams map[string]Upstream
	// State is a file that keeps the learnt estimates over a restart; empty: none.
	State string
	// Root is the upstream that is also served at /; empty: none.
	Root string
	// Models map models to quotas, first match first.
	Models []Model
	// Prices are the prices of calls, first match first.
	Prices []price.Line
	// Wait is the longest wait in the queue by class.
	Wait map[Class]time.Duration
	// Lease is the ttl of a call's lease, which the gateway renews while the call is in flight. It is how long a call's slots stay
	// taken after the gateway was killed, and how long a call with slots lasts without the cluster.
	Lease time.Duration
	// Limits bound the gateway's memory and concurrency.
	Limits Limits
}

// Listen has the addresses to listen on.
type Listen struct {
	// TCP are addresses host:port; without any and without a socket: 127.0.0.1:7452 and [::1]:7452.
	TCP []string
	// Unix is the path of a socket; empty: none.
	Unix string
	// Cert and Key are PEM files of the server's certificate; empty: plain HTTP.
	Cert, Key string
	// Insecure allows a non-loopback address without TLS.
	Insecure bool
}

// Reloaded returns the listeners after a reload to next: the same addresses. Only the certificate's files may change.
func (l Listen) Reloaded(next Listen) Listen {
	if l.Cert != "" && next.Cert != "" {
		l.Cert, l.Key = next.Cert, next.Key
	}
	return l
}

// Cluster has quotad's nodes and the access to them.
type Cluster struct {
	// Nodes are host:port or URLs; one is enough.
	Nodes []string
	// Token is the gateway's own token; nil: none.
	Token *Source
	// CA is a PEM file of the authorities that sign the nodes' certificates; it enables TLS.
	CA string
}

// Source is the origin of a secret: exactly one of its fields is set.
type Source struct {
	// Env is an environment variable.
	Env string
	// File is a path.
	File string
	// Credential is a name below $CREDENTIALS_DIRECTORY, as systemd's LoadCredential= provides it.
	Credential string
}

// Identity controls how callers are named.
type Identity struct {
	// Names are holders that may be claimed without the machine's name.
	Names []string
	// Tools are the classes of known tools, by name (claude, codex, gh).
	Tools map[string]Tool
	// Seats number the sessions of a tool.
	Seats Seats
}

// Tool is the configuration of a tool.
type Tool struct{ Class Class }

// Seats number sessions, so that new session ids do not flood the cluster with holders.
type Seats struct {
	// By is the owner of a seat: session, agent or off.
	By string
	// Count is the number of seats of each tool.
	Count int
}

// Upstream is one provider.
type Upstream struct {
	// Dialect is its dialect: anthropic, azure, bedrock, codex, gemini, generic, github or openai.
	Dialect string
	// Base is its URL without a trailing slash.
	Base string
	// Plain allows a base with http.
	Plain bool
	// Quotas is the prefix of its quotas; empty: its name.
	Quotas string
	// Auth is pass or inject.
	Auth string
	// Keys are the credentials to inject, first match first.
	Keys []Key
	// Pool names keys of which each call uses one: the granted member's, if the cluster has a quota of kind pool, and else the one with
	// the most room.
	Pool []string
	// Parts are the parts that every model must have.
	Parts []string
	// Also are additional quotas, by holder.
	Also []Also
	// Secondary draws on GitHub's secondary limits as well.
	Secondary bool
	// Batch serves calls from batches that are consumed ahead for all calls of a class on this machine. Their holder in the cluster is
	// <class>@<machine>.
	Batch bool
	// Unknown is the treatment of a model without a quota: refuse or observe.
	Unknown string
	// Unpriced is the treatment of a call that draws on a quota of money but has no price: refuse or free.
	Unpriced string
	// Paths is the treatment of paths that generate nothing: pass or refuse.
	Paths string
	// FailOpen bounds calls that pass while the cluster is away; nil: none do.
	FailOpen *FailOpen
	// OnDisconnect is the treatment of the provider's stream when a client leaves midway: cancel or drain.
	OnDisconnect string
	// StreamUsage requests usage in streams that do not state it: auto, on or off.
	StreamUsage string
	// Overloaded is how often to retry a call after the provider reported an overload.
	Overloaded int
	// Rules are the draws of a generic upstream's calls.
	Rules []Rule
	// Hosts are the Host headers that lead here with their whole path; see BaseOf.
	Hosts []string
	// FirstByte is the longest wait for the provider's status line.
	FirstByte time.Duration
}

// Key is a credential to inject.
type Key struct {
	// Name is shown in logs and on the status page.
	Name string
	// From is the source of its value.
	From Source
	// For selects the calls that may use it; empty: all.
	For Selector
	// Quotas is the prefix of its quotas; empty: the upstream's.
	Quotas string
}

// Selector selects calls; an empty field selects all.
type Selector struct {
	Class Class
	// Holder is a pattern, in which * stands for any run of characters.
	Holder string
}

// Selects reports whether it selects a call. A call without a class counts as standard, as for its wait: the gateway does not know the
// holder's class in the cluster.
func (s Selector) Selects(class Class, holder string) bool {
	return (s.Class == ClassNone || s.Class == cmp.Or(class, Standard)) && (s.Holder == "" || Match(s.Holder, holder))
}

// Also is a set of additional quotas for calls of some holders.
type Also struct {
	// Holder is a pattern; empty: all.
	Holder string
	// Use maps quotas to the parts that they count: requests, tokens, input-tokens, output-tokens, cost.
	Use map[string]string
}

// FailOpen bounds calls while the cluster is away.
type FailOpen struct {
	// Count calls pass per Per.
	Count int
	Per   time.Duration
	// For is how long calls pass after the cluster was first found away.
	For time.Duration
}

// Rule is the draws of a generic upstream's calls.
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
	// Upstream is the upstream that it applies to; empty: all.
	Upstream string
	// Match is a pattern of the model.
	Match string
	// As is the model's name in quotas; empty: unchanged.
	As string
	// Fallback are models of the same provider that answer instead, for calls that For selects. They are used while the cluster refuses
	// the model, or predicts that its quota will soon be exhausted.
	Fallback []string
	For      Selector
}

// Limits bound the gateway's memory and concurrency.
type Limits struct {
	// Body is the largest JSON body, in bytes.
	Body int64
	// Memory bounds all buffered bodies together, in bytes.
	Memory int64
	// Drain is how long calls may continue after SIGTERM.
	Drain time.Duration
	// Calls bounds the calls in flight.
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

// builtin are the upstreams with known bases and hosts.
var builtin = map[string]Upstream{
	"openai":    {Dialect: "openai", Base: "https://api.openai.com", Hosts: []string{"api.openai.com"}},
	"anthropic": {Dialect: "anthropic", Base: "https://api.anthropic.com", Hosts: []string{"api.anthropic.com"}},
	"github":    {Dialect: "github", Base: "https://api.github.com", Hosts: []string{"api.github.com", "uploads.github.com"}},
	"gemini":    {Dialect: "gemini", Base: "https://generativelanguage.googleapis.com"},
	"azure":     {Dialect: "azure"},
	"bedrock":   {Dialect: "bedrock"},
	"chatgpt":   {Dialect: "codex", Base: "https://chatgpt.com/backend-api"},
}

// apart are hosts that serve another part of a base's API under the same limits, each at a separate base, instead of being another name
// of it.
var apart = map[string]map[string]string{
	"https://api.github.com": {"uploads.github.com": "https://uploads.github.com"},
}

// BaseOf returns the base of calls sent to one of the upstream's hosts.
func (u Upstream) BaseOf(host string) string {
	return cmp.Or(apart[u.Base][host], u.Base)
}

// Complete returns the configuration with defaults filled in. It does not change c.
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
