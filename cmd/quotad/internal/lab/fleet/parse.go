package fleet

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Bounds of a file.
const (
	// MaxAgents is the maximum number of agents in a fleet.
	MaxAgents = 10_000
	// MaxFor is the longest run.
	MaxFor   = 366 * 24 * time.Hour
	longest  = 24 * time.Hour
	maxCalls = 1_000_000
)

// The keys of each mapping, in the usual order.
var (
	fleetKeys    = []string{"title", "quotas", "workflows", "begins", "for", "network", "cluster", "provider", "alone", "agents", "expect"}
	clusterKeys  = []string{"commit", "hop", "kill", "failover"}
	providerKeys = []string{"limits", "outages", "silent"}
	limitKeys    = []string{"limit", "no_burst", "others"}
	outageKeys   = []string{"quota", "at", "for", "says", "means"}
	aloneKeys    = []string{"retries", "first", "most", "jitter", "obeys", "pause", "again"}
	agentKeys    = []string{
		"name", "count", "class", "weight", "use", "start", "every", "cron", "jitter", "tasks", "overlap", "follows", "calls",
		"parallel", "think", "latency", "patience", "hold", "hold_ttl", "batch", "retry", "crashes", "cuts",
	}
	useKeys     = []string{"estimate", "actual", "input", "output", "max_output"}
	absenceKeys = []string{"at", "for"}
)

// Read reads and parses the file at path. If the file has mistakes, the error is strictyaml.Problems.
func Read(path string) (*Fleet, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse parses data; name is the file's name in problems. It returns all problems at once, as strictyaml.Problems.
func Parse(name string, data []byte) (*Fleet, error) {
	doc, err := strictyaml.Parse(name, data)
	if err != nil {
		return nil, err
	}
	p := &parser{doc: doc, slots: map[string]bool{}, rates: map[string]bool{}, estimates: map[string]int64{}, ceilings: map[string]int64{}}
	fleet := p.fleet()
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return fleet, nil
}

// parser translates the tree of one file. It collects problems in doc.
type parser struct {
	doc *strictyaml.Document
	// quotas are the names of the file's quotas; limits are those that are not pools.
	quotas, limits []string
	// slots has the quotas that are slots.
	slots map[string]bool
	rates map[string]bool
	// estimates are the quotas' default estimates, ceilings what one call can get of them.
	estimates, ceilings map[string]int64
	agents              []string
	// later are checks that need the whole file.
	later []func(*Fleet)
}

// fleet reads the whole file.
func (p *parser) fleet() *Fleet {
	f := &Fleet{
		Begins:  time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC),
		For:     time.Hour,
		Network: Span{Least: 5 * time.Millisecond, Most: 40 * time.Millisecond},
		Cluster: Cluster{
			Commit:   Span{Least: 2 * time.Millisecond, Most: 6 * time.Millisecond},
			Hop:      Span{Least: 200 * time.Microsecond, Most: time.Millisecond},
			Failover: Span{Least: 700 * time.Millisecond, Most: 1500 * time.Millisecond},
		},
		Alone: Alone{
			Retries: 3, First: 500 * time.Millisecond, Most: 8 * time.Second, Jitter: 0.25, Obeys: true, Pause: 30 * time.Second,
			Again: Span{Least: time.Minute, Most: 2 * time.Minute},
		},
	}
	if p.doc.Root == nil {
		p.doc.Fail(nil, `write "quotas:" and "agents:"`, "is empty")
		return f
	}
	values := p.doc.Mapping(p.doc.Root, "the file", fleetKeys...)
	p.setting(f, values)
	if n, ok := values["quotas"]; ok {
		f.Quotas = quotafile.Quotas(p.doc, n)
	}
	if len(f.Quotas) == 0 {
		p.doc.Fail(p.doc.Root, `it needs a list "quotas:", as in a quotas.yaml`, "the fleet has no quotas")
	}
	for _, quota := range f.Quotas {
		p.quotas = append(p.quotas, quota.Name)
		p.slots[quota.Name], p.rates[quota.Name] = quota.GetSlots() != nil, quota.GetRate() != nil
		p.estimates[quota.Name], p.ceilings[quota.Name] = quota.DefaultEstimate, f.ceiling(quota)
		if quota.GetPool() == nil {
			p.limits = append(p.limits, quota.Name)
		}
	}
	for _, quota := range f.Quotas {
		if members := f.Members(quota.Name); len(members) > 0 { // its members are of one kind
			p.slots[quota.Name] = p.slots[members[0].Quota]
		}
	}
	var agents []*yaml.Node
	if n, ok := values["agents"]; ok {
		agents = p.doc.Sequence(n, "agents")
	}
	for _, element := range agents {
		f.Agents = append(f.Agents, p.agent(element))
	}
	p.checkAgents(f, agents)
	if n, ok := values["workflows"]; ok {
		f.Workflows = p.workflows(n, f)
	}
	for _, check := range p.later {
		check(f)
	}
	p.countHandedOn(f)
	if n, ok := values["provider"]; ok {
		f.Provider = p.provider(n)
	}
	if n, ok := values["expect"]; ok {
		f.Expect = p.expect(n)
		p.canFail(n, f)
	}
	return f
}

// setting reads the keys that concern the run as a whole.
func (p *parser) setting(f *Fleet, values map[string]*yaml.Node) {
	if n, ok := values["title"]; ok {
		f.Title = p.doc.Text(n, "title")
		if strings.ContainsFunc(f.Title, unicode.IsControl) {
			p.doc.Fail(n, "one line of plain text", "title has control characters")
		}
	}
	if n, ok := values["begins"]; ok {
		begins, err := time.Parse(time.RFC3339, p.doc.Text(n, "begins"))
		if err != nil || begins.Year() < 1971 || begins.Year() > 2200 {
			p.doc.Fail(n, "such as 2026-01-05T08:59:30Z", "begins must be a moment between 1971 and 2200")
		}
		f.Begins = begins.UTC()
	}
	if n, ok := values["for"]; ok {
		f.For = p.doc.Duration(n, "for", time.Second, MaxFor)
	}
	if n, ok := values["network"]; ok {
		f.Network = p.span(n, "network", longest)
	}
	if n, ok := values["cluster"]; ok {
		p.cluster(n, &f.Cluster)
	}
	if n, ok := values["alone"]; ok {
		p.alone(n, &f.Alone)
	}
}

func (p *parser) cluster(n *yaml.Node, c *Cluster) {
	values := p.doc.Mapping(n, "cluster", clusterKeys...)
	for _, span := range []struct {
		key string
		to  *Span
	}{{"commit", &c.Commit}, {"hop", &c.Hop}, {"failover", &c.Failover}} {
		if v, ok := values[span.key]; ok {
			*span.to = p.span(v, span.key, time.Minute)
		}
	}
	if v, ok := values["kill"]; ok {
		for _, element := range p.doc.Sequence(v, "kill") {
			c.Kills = append(c.Kills, p.doc.Duration(element, "kill", 0, MaxFor))
		}
		slices.Sort(c.Kills)
	}
}

func (p *parser) provider(n *yaml.Node) Provider {
	provider := Provider{Limits: map[string]Limit{}}
	values := p.doc.Mapping(n, "provider", providerKeys...)
	if v, ok := values["limits"]; ok {
		limits := p.doc.Mapping(v, "limits", p.limits...)
		for _, quota := range p.limits {
			if one, ok := limits[quota]; ok {
				provider.Limits[quota] = p.limit(one, quota)
			}
		}
	}
	if v, ok := values["outages"]; ok {
		for _, element := range p.doc.Sequence(v, "outages") {
			provider.Outages = append(provider.Outages, p.outage(element))
		}
	}
	if v, ok := values["silent"]; ok {
		provider.Silent = p.doc.Bool(v, "silent")
	}
	return provider
}

func (p *parser) outage(n *yaml.Node) Outage {
	values := p.doc.Mapping(n, "an outage", outageKeys...)
	o := Outage{Quota: p.quota(n, values), At: p.at(n, values), For: p.lasts(n, values)}
	o.Says, o.Means = p.message(n, values)
	return o
}

func (p *parser) limit(n *yaml.Node, quota string) Limit {
	limit := Limit{Limit: -1}
	values := p.doc.Mapping(n, "a limit", limitKeys...)
	if v, ok := values["limit"]; ok {
		limit.Limit = p.doc.Int(v, "limit", 0, quotafile.MaxAmount)
	}
	if v, ok := values["no_burst"]; ok {
		limit.NoBurst = p.doc.Bool(v, "no_burst")
	}
	if v, ok := values["others"]; ok {
		limit.Others = p.part(v, "others", 0.01, 0.9)
		if !p.rates[quota] {
			p.doc.Fail(v, "give it a quota of kind rate", "others are simulated on rates only, and %s is none", quota)
		}
	}
	return limit
}

// quota reads the name of one of the file's limits.
func (p *parser) quota(n *yaml.Node, values map[string]*yaml.Node) string {
	v, ok := values["quota"]
	if !ok {
		p.doc.Fail(n, "", "quota is missing")
		return ""
	}
	return p.doc.Choice(v, "quota", p.limits...)
}

func (p *parser) at(n *yaml.Node, values map[string]*yaml.Node) time.Duration {
	v, ok := values["at"]
	if !ok {
		p.doc.Fail(n, "the time since the run began, such as 5m", "at is missing")
		return 0
	}
	return p.doc.Duration(v, "at", 0, MaxFor)
}

func (p *parser) lasts(n *yaml.Node, values map[string]*yaml.Node) time.Duration {
	v, ok := values["for"]
	if !ok {
		p.doc.Fail(n, "how long it lasts, such as 20s", "for is missing")
		return 0
	}
	return p.doc.Duration(v, "for", time.Millisecond, MaxFor)
}

func (p *parser) alone(n *yaml.Node, a *Alone) {
	values := p.doc.Mapping(n, "alone", aloneKeys...)
	if v, ok := values["retries"]; ok {
		a.Retries = int(p.doc.Int(v, "retries", 0, 1000))
	}
	for _, length := range []struct {
		key string
		to  *time.Duration
	}{{"first", &a.First}, {"most", &a.Most}, {"pause", &a.Pause}} {
		if v, ok := values[length.key]; ok {
			*length.to = p.doc.Duration(v, length.key, time.Millisecond, longest)
		}
	}
	if v, ok := values["jitter"]; ok {
		a.Jitter = p.doc.Float(v, "jitter")
		if a.Jitter < 0 || a.Jitter > 1 {
			p.doc.Fail(v, "0.25 takes off up to a quarter", "jitter is %s; it must be 0 to 1", v.Value)
		}
	}
	if v, ok := values["again"]; ok {
		a.Again = p.span(v, "again", longest)
		if a.Again.Least == 0 {
			p.doc.Fail(v, "such as 90s-110s", "again must be longer than 0: a task that ends at once would be begun without time passing")
		}
	}
	if v, ok := values["obeys"]; ok {
		a.Obeys = p.doc.Bool(v, "obeys")
	}
}

// span reads a duration, or two with a dash between: 100ms-2s.
func (p *parser) span(n *yaml.Node, what string, most time.Duration) Span {
	from, to, isRange := strings.Cut(n.Value, "-")
	if !isRange {
		to = from
	}
	least, err := strictyaml.ParseDuration(from)
	if from == "0" {
		least, err = 0, nil
	}
	last, errLast := strictyaml.ParseDuration(to)
	if to == "0" {
		last, errLast = 0, nil
	}
	if n.Kind != yaml.ScalarNode || err != nil || errLast != nil || least < 0 || last < least || last > most {
		p.doc.Fail(n, "such as 200ms, or 100ms-2s", "%s must be a length of time or a range of them, at most %s", what,
			strictyaml.FormatDuration(most))
		return Span{}
	}
	return Span{Least: least, Most: last}
}

// amounts reads an integer, or two with a dash between: 200-480.
func (p *parser) amounts(n *yaml.Node, what string) Range {
	from, to, isRange := strings.Cut(n.Value, "-")
	if !isRange {
		to = from
	}
	least, err := strconv.ParseInt(from, 10, 64)
	most, errMost := strconv.ParseInt(to, 10, 64)
	if n.Kind != yaml.ScalarNode || err != nil || errMost != nil || least < 0 || most < least || most > quotafile.MaxAmount {
		p.doc.Fail(n, "such as 500, or 200-480", "%s must be a whole number or a range of them", what)
		return Range{}
	}
	return Range{Least: least, Most: most}
}

// classOf reads a class.
func (p *parser) classOf(n *yaml.Node, what string) quotav1.Class {
	class, _ := quotafile.ParseClass(p.doc.Choice(n, what, "critical", "standard", "background"))
	return class
}
