package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// reserved are names not allowed for upstreams: the gateway's own paths.
var reserved = []string{"as", "take", "slots", "report", "livez", "readyz", "metrics", "status", "debug"}

// Dialects are the known dialects.
var Dialects = []string{"anthropic", "azure", "bedrock", "codex", "gemini", "generic", "github", "openai"}

// Parts are the parts that a model's quotas may count.
var Parts = []string{"requests", "requests-per-day", "tokens", "input-tokens", "output-tokens", "cost", "streams"}

// Problem is one error in a configuration. Field is its place, as in upstreams.openai.base.
type Problem struct{ Field, Message string }

// Error implements error.
func (p Problem) Error() string { return p.Field + ": " + p.Message }

// checker collects problems.
type checker struct{ problems []Problem }

func (c *checker) fail(field, format string, values ...any) {
	c.problems = append(c.problems, Problem{field, fmt.Sprintf(format, values...)})
}

func (c *checker) oneOf(field, value string, known ...string) {
	if !slices.Contains(known, value) {
		c.fail(field, "%q is not one of %s", value, strings.Join(known, ", "))
	}
}

// Check returns the problems of a completed configuration; none: it can be served.
func (c Config) Check() []Problem {
	var check checker
	check.listen(c)
	if len(c.Cluster.Nodes) == 0 {
		check.fail("cluster.nodes", "name at least one node, such as 10.0.0.5:7450")
	}
	for _, node := range c.Cluster.Nodes {
		check.node(node)
	}
	if c.Cluster.Token != nil {
		check.source("cluster.token", *c.Cluster.Token)
	}
	if len(c.Upstreams) == 0 {
		check.fail("upstreams", "name at least one, such as openai: {}")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Upstreams)) {
		check.upstream(name, c.Upstreams[name], c)
	}
	if _, ok := c.Upstreams[c.Root]; c.Root != "" && !ok {
		check.fail("root", "unknown upstream %q", c.Root)
	}
	for i, model := range c.Models {
		check.model(fmt.Sprintf("models[%d]", i), model, c)
	}
	check.oneOf("identity.seats.by", c.Identity.Seats.By, "session", "agent", "off")
	if n := c.Identity.Seats.Count; n < 1 || n > 1024 {
		check.fail("identity.seats.count", "%d must be 1 to 1024", n)
	}
	for _, name := range c.Identity.Names {
		if name == "" || len(name) > 128 {
			check.fail("identity.names", "a holder's name must have 1 to 128 bytes")
		}
	}
	for class, wait := range c.Wait {
		if wait < 0 || wait > 10*time.Minute {
			check.fail("wait."+class.String(), "%v must be 0s to 10m, the cluster's longest wait", wait)
		}
	}
	if c.Lease < 5*time.Second || c.Lease > time.Hour {
		check.fail("lease", "%v must be 5s to 1h", c.Lease)
	}
	check.limits(c.Limits)
	check.hosts(c)
	return check.problems
}

func (c *checker) listen(conf Config) {
	secure := conf.Listen.Cert != ""
	if secure != (conf.Listen.Key != "") {
		c.fail("listen.tls", "cert and key belong together")
	}
	for _, address := range conf.Listen.TCP {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			c.fail("listen.tcp", "%q is not host:port", address)
			continue
		}
		if IsLoopback(host) {
			continue
		}
		if !secure && !conf.Listen.Insecure {
			c.fail("listen.tcp", "%s is not a loopback address: set listen.tls, or insecure: true on a network that you trust", address)
		}
		if conf.Tokens == "" {
			c.fail("tokens", "%s is not a loopback address: callers need tokens (quotad token new)", address)
		}
	}
}

// node checks the address of a node by the rules of the cluster's client.
func (c *checker) node(address string) {
	if strings.Contains(address, "://") {
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			c.fail("cluster.nodes", "%q is not an http or https URL; a name needs no scheme, as in quotad.svc:7450", address)
		}
		return
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		c.fail("cluster.nodes", "%q is not host:port, such as 10.0.0.5:7450", address)
	}
}

// IsLoopback reports whether the host of an address is this machine's loopback.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func (c *checker) source(field string, s Source) {
	set := 0
	for _, value := range []string{s.Env, s.File, s.Credential} {
		if value != "" {
			set++
		}
	}
	if set != 1 {
		c.fail(field, "set exactly one of env, file and credential")
	}
	if strings.ContainsAny(s.Credential, "/") {
		c.fail(field+".credential", "%q is a path; use the name from LoadCredential=", s.Credential)
	}
}

// nameOf reports whether a name can be one segment of a path and the prefix of quotas.
func nameOf(name string) bool {
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' {
			return false
		}
	}
	return name != "" && len(name) <= 64
}

func (c *checker) upstream(name string, u Upstream, conf Config) {
	field := "upstreams." + name
	if !nameOf(name) {
		c.fail(field, "a name must have 1 to 64 characters of a to z, 0 to 9, - and _")
	}
	if slices.Contains(reserved, name) {
		c.fail(field, "the gateway itself has a path of that name")
	}
	c.oneOf(field+".dialect", u.Dialect, Dialects...)
	c.base(field, name, u)
	c.oneOf(field+".auth", u.Auth, "pass", "inject")
	c.oneOf(field+".unknown", u.Unknown, "refuse", "observe")
	c.oneOf(field+".unpriced", u.Unpriced, "refuse", "free")
	c.oneOf(field+".paths", u.Paths, "pass", "refuse")
	c.oneOf(field+".on_disconnect", u.OnDisconnect, "cancel", "drain")
	c.oneOf(field+".stream_usage", u.StreamUsage, "auto", "on", "off")
	for _, part := range u.Parts {
		c.oneOf(field+".parts", part, Parts...)
	}
	c.also(field+".also", u)
	if len(u.Rules) > 0 && u.Dialect != "generic" {
		c.fail(field+".rules", "the dialect %s has built-in rules; rules are only for generic", u.Dialect)
	}
	if u.Secondary && u.Dialect != "github" {
		c.fail(field+".secondary", "only github has secondary limits")
	}
	if u.Batch {
		c.batch(field, u)
	}
	if u.FailOpen != nil && (u.FailOpen.Count < 1 || u.FailOpen.Per <= 0 || u.FailOpen.For <= 0) {
		c.fail(field+".fail_open", "set both rate and for, such as {rate: 2/s, for: 10m}")
	}
	if u.Overloaded < 0 || u.Overloaded > 5 {
		c.fail(field+".overloaded.retries", "%d must be 0 to 5", u.Overloaded)
	}
	c.keys(field, u, conf)
}

// also checks that an upstream's additional quotas count something.
func (c *checker) also(field string, u Upstream) {
	const but = "only calls of models draw on it; those of the dialect "
	switch {
	case len(u.Also) == 0:
	case u.Dialect == "github":
		c.fail(field, but+"github draw on GitHub's limits: to count them elsewhere as well, give the quotas below %s/ a parent", u.Quotas)
	case u.Dialect == "generic":
		c.fail(field, but+"generic draw on what rules say: name the quota in a rule's use")
	}
	for _, also := range u.Also {
		for _, part := range also.Use {
			c.oneOf(field+".use", part, "requests", "tokens", "input-tokens", "output-tokens", "cost")
		}
	}
}

// batch checks that each call of an upstream draws on one quota, by an amount that its answer does not change.
func (c *checker) batch(field string, u Upstream) {
	switch {
	case u.Dialect != "github" && u.Dialect != "generic":
		c.fail(field+".batch", "calls of the dialect %s are settled by the usage of their answers: batch is for github and generic", u.Dialect)
	case u.Secondary:
		c.fail(field+".batch", "with secondary: true each call holds a slot of %s/concurrent, for which it asks the cluster anyway: "+
			"set one of the two", u.Quotas)
	case u.Dialect == "generic" && len(u.Rules) == 0:
		c.fail(field+".batch", "calls draw on nothing: add rules")
	}
	for i, rule := range u.Rules {
		at := fmt.Sprintf("%s.rules[%d].use", field, i)
		if len(rule.Use) > 1 {
			c.fail(at, "calls draw on %d quotas at once; with batch: true a rule has one", len(rule.Use))
		}
		for name, amount := range rule.Use {
			if part := PartOf(name); SettledByAnswer(part) {
				c.fail(at, "%s is settled by the usage of answers; with batch: true a rule counts calls", name)
			}
			if amount > MostBatched {
				c.fail(at, "%d of %s must be at most %d with batch: true", amount, name, int64(MostBatched))
			}
		}
	}
}

// MostBatched is the largest amount of a call that a batch serves.
const MostBatched = 1 << 31

// PartOf returns the part that a quota counts: the last segment of its name.
func PartOf(quota string) string { return quota[strings.LastIndexByte(quota, '/')+1:] }

// SettledByAnswer reports whether answers state the use of a part.
func SettledByAnswer(part string) bool {
	return part == "tokens" || part == "input-tokens" || part == "output-tokens" || part == "cost"
}

func (c *checker) base(field, name string, u Upstream) {
	if u.Base == "" {
		example := map[string]string{
			"azure": "https://NAME.openai.azure.com", "bedrock": "https://bedrock-runtime.REGION.amazonaws.com",
		}[name]
		c.fail(field+".base", "set the URL, such as %s", cmp.Or(example, "https://HOST"))
		return
	}
	base, err := url.Parse(u.Base)
	switch {
	case err != nil || base.Host == "" || base.RawQuery != "" || base.Fragment != "" || base.User != nil:
		c.fail(field+".base", "%q is not a URL with a scheme and a host", u.Base)
	case base.Scheme == "http" && !u.Plain:
		c.fail(field+".base", "%q sends keys in clear text: use https, or plain: true", u.Base)
	case base.Scheme != "http" && base.Scheme != "https":
		c.fail(field+".base", "%q is not http or https", u.Base)
	}
}

func (c *checker) keys(field string, u Upstream, conf Config) {
	names := map[string]bool{}
	for i, key := range u.Keys {
		at := fmt.Sprintf("%s.keys[%d]", field, i)
		if !nameOf(key.Name) {
			c.fail(at+".name", "a key's name must have characters of a to z, 0 to 9, - and _")
		}
		if names[key.Name] {
			c.fail(at+".name", "duplicate %q", key.Name)
		}
		names[key.Name] = true
		c.source(at+".from", key.From)
	}
	for i, name := range u.Pool {
		if !names[name] {
			c.fail(field+".pool", "unknown key %q", name)
		}
		if slices.Contains(u.Pool[:i], name) {
			c.fail(field+".pool", "duplicate %q", name)
		}
	}
	switch {
	case u.Auth == "inject" && len(u.Keys) == 0:
		c.fail(field+".keys", "auth: inject needs at least one key")
	case u.Auth != "inject" && len(u.Keys) > 0:
		c.fail(field+".keys", "keys need auth: inject")
	case u.Auth == "inject" && conf.Tokens == "" && len(conf.Listen.TCP) > 0 && !conf.Trust:
		c.fail(field+".auth", "every process that reaches the port could use the keys: set tokens, listen on a unix socket only, "+
			"or set trust: everyone-on-this-machine")
	}
}

func (c *checker) model(field string, m Model, conf Config) {
	if m.Match == "" {
		c.fail(field+".match", "set a pattern of models, such as gpt-5*")
	}
	if m.As == "" && len(m.Fallback) == 0 {
		c.fail(field+".as", "set the model's name in quotas, such as gpt-5")
	}
	if m.For != (Selector{}) && len(m.Fallback) == 0 {
		c.fail(field+".for", "needs fallback: name models there")
	}
	for _, name := range m.Fallback {
		if name == "" || len(name) > 256 || strings.ContainsAny(name, "*\r\n") {
			c.fail(field+".fallback", "%q is not a model's name", name)
		}
	}
	if _, ok := conf.Upstreams[m.Upstream]; m.Upstream != "" && !ok {
		c.fail(field+".upstream", "unknown upstream %q", m.Upstream)
	}
}

func (c *checker) limits(l Limits) {
	if l.Body < 1<<10 || l.Body > 1<<30 {
		c.fail("limits.body", "%d bytes must be 1 KiB to 1 GiB", l.Body)
	}
	if l.Memory < l.Body {
		c.fail("limits.memory", "%d bytes are less than one body of limits.body", l.Memory)
	}
	if l.Drain < time.Second || l.Drain > time.Hour {
		c.fail("limits.drain", "%v must be 1s to 1h", l.Drain)
	}
}

// hosts checks that each host leads to one upstream only.
func (c *checker) hosts(conf Config) {
	owner := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(conf.Upstreams)) {
		for _, host := range conf.Upstreams[name].Hosts {
			if other, taken := owner[host]; taken {
				c.fail("upstreams."+name+".hosts", "%q already belongs to %s", host, other)
			}
			owner[host] = name
		}
	}
	for _, origin := range conf.Origins {
		if u, err := url.Parse(origin); err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" {
			c.fail("origins", "%q is not an origin, such as https://tools.example", origin)
		}
	}
}
