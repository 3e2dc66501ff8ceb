package quotafile

import (
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/rpc/quotav1"
)

// parser translates the tree of one file. It collects problems in doc, and replaces a wrong value by a harmless one, so
// that it can check the rest as well.
type parser struct {
	doc *strictyaml.Document
	// lines are the lines on which quotas are named, to find duplicates.
	lines map[string]int
}

// The keys of each mapping, in the usual order.
var (
	fileKeys  = []string{"quotas", "holders", "workflows"}
	quotaKeys = []string{
		"name", "window", "rate", "slots", "pool", "headroom", "parent", "max_hold", "clamp_hold", "default_estimate",
		"spend_by", "transit", "charged", "max_call", "settle", "policy", "fallback", "note",
	}
	policyKeys  = []string{"profile", "zones", "ramp", "breaker", "observe", "shares", "ageing", "prediction", "metering"}
	sharesKeys  = []string{"critical", "standard", "background", "cap", "floor", "quiet", "holders"}
	breakerKeys = []string{"failures", "closed"}
	windowKeys  = []string{"limit", "every", "anchor", "skew"}
	rateKeys    = []string{"limit", "per", "burst"}
	slotsKeys   = []string{"limit", "grace"}
	poolKeys    = []string{"members", "sticky"}
	memberKeys  = []string{"name", "quota"}
	holderKeys  = []string{"pattern", "class", "weight"}

	workflowKeys = []string{"name", "steps", "threshold", "within", "calm", "baton_time", "pause"}
	stepKeys     = []string{"holder", "after"}
)

func (p *parser) file() *File {
	file := &File{}
	if p.doc.Root == nil {
		p.doc.Fail(nil, needsAList, "is empty")
		return file
	}
	values := p.doc.Mapping(p.doc.Root, "the file", fileKeys...)
	if n, ok := values["quotas"]; ok {
		file.Quotas = p.quotas(n)
	}
	if n, ok := values["holders"]; ok {
		file.HasHolders = true
		for _, element := range p.doc.Sequence(n, "holders") {
			file.Holders = append(file.Holders, p.holder(element))
		}
	}
	if n, ok := values["workflows"]; ok {
		file.HasWorkflows = true
		file.Workflows = p.workflows(n)
	}
	if len(file.Quotas) == 0 && !file.HasHolders && !file.HasWorkflows && p.doc.Err() == nil {
		p.doc.Fail(p.doc.Root, needsAList, "is empty")
	}
	return file
}

// needsAList is the hint for an empty file.
const needsAList = `write a list "quotas:", "holders:" or "workflows:"`

// quotas reads the list of quotas.
func (p *parser) quotas(n *yaml.Node) []*quotav1.Quota {
	elements := p.doc.Sequence(n, "quotas")
	if len(elements) > MaxQuotas {
		p.doc.Fail(n, "", "quotas has %d elements; the maximum is %d", len(elements), MaxQuotas)
		elements = elements[:MaxQuotas]
	}
	quotas := make([]*quotav1.Quota, 0, len(elements))
	for _, element := range elements {
		quotas = append(quotas, p.quota(element))
	}
	p.findCycles(elements, quotas)
	return quotas
}

func (p *parser) quota(n *yaml.Node) *quotav1.Quota {
	quota := &quotav1.Quota{}
	values := p.doc.Mapping(n, "a quota", quotaKeys...)
	quota.Name = p.name(n, values)
	p.rule(n, values, quota)
	if v, ok := values["headroom"]; ok {
		quota.Headroom = p.headroom(v)
	}
	if v, ok := values["parent"]; ok {
		quota.Parent = p.doc.Text(v, "parent")
		if message := checkName(quota.Parent); message != "" {
			p.doc.Fail(v, "", "parent %s", message)
		}
	}
	if v, ok := values["max_hold"]; ok {
		most := p.doc.Int(v, "max_hold", 1, MaxAmount)
		quota.MaxHold = &most
	}
	if v, ok := values["clamp_hold"]; ok {
		quota.ClampHold = p.doc.Bool(v, "clamp_hold")
	}
	if v, ok := values["default_estimate"]; ok {
		quota.DefaultEstimate = p.doc.Int(v, "default_estimate", 1, MaxAmount)
	}
	p.times(values, quota)
	if v, ok := values["charged"]; ok {
		quota.Charged = chargedWords[p.doc.Choice(v, "charged", "start", "end", "during")]
	}
	if v, ok := values["settle"]; ok {
		quota.Settle = settleWords[p.doc.Choice(v, "settle", "actual", "max")]
	}
	if v, ok := values["policy"]; ok {
		p.policy(v, quota)
		if n, given := values["clamp_hold"]; given {
			quota.ClampHold = p.doc.Bool(n, "clamp_hold")
		}
	}
	if v, ok := values["fallback"]; ok {
		quota.Fallback = p.doc.Text(v, "fallback")
		if message := checkName(quota.Fallback); message != "" {
			p.doc.Fail(v, "", "fallback %s", message)
		}
	}
	if v, ok := values["note"]; ok {
		quota.Note = p.doc.Text(v, "note")
		if len(quota.Note) > maxNote {
			p.doc.Fail(v, "", "note has %d bytes; the maximum is %d", len(quota.Note), maxNote)
		}
	}
	return quota
}

// policy reads a quota's policy: that of a profile, if it names one, and the settings that override it.
func (p *parser) policy(n *yaml.Node, quota *quotav1.Quota) {
	policy := &quotav1.Policy{}
	quota.Policy = policy
	values := p.doc.Mapping(n, "policy", policyKeys...)
	if v, ok := values["profile"]; ok {
		if p.doc.Choice(v, "profile", "fleet") == "fleet" {
			applyFleet(quota)
		}
	}
	if v, ok := values["zones"]; ok {
		policy.Zones = zonesWords[p.doc.Choice(v, "zones", "smooth", "strict")]
	}
	if v, ok := values["ramp"]; ok {
		policy.Ramp = p.duration(v, "ramp", shortestTime, time.Hour)
	}
	if v, ok := values["ageing"]; ok {
		policy.Ageing = p.duration(v, "ageing", time.Second, 24*time.Hour)
	}
	if v, ok := values["observe"]; ok {
		policy.Observe = p.doc.Bool(v, "observe")
	}
	if v, ok := values["breaker"]; ok {
		policy.Breaker = p.breaker(v)
	}
	if v, ok := values["shares"]; ok {
		policy.Shares = p.shares(v)
	}
	if v, ok := values["prediction"]; ok {
		policy.Prediction = p.prediction(v)
	}
	if v, ok := values["metering"]; ok {
		policy.Metering = p.doc.Bool(v, "metering")
	}
}

// prediction reads a prediction; {} has the defaults.
func (p *parser) prediction(n *yaml.Node) *quotav1.Prediction {
	prediction := &quotav1.Prediction{}
	values := p.doc.Mapping(n, "prediction", "samples", "ahead")
	if v, ok := values["samples"]; ok {
		prediction.Samples = int32(p.doc.Int(v, "samples", 3, 100))
	}
	if v, ok := values["ahead"]; ok {
		prediction.Ahead = p.duration(v, "ahead", time.Second, time.Hour)
	}
	return prediction
}

// applyFleet gives a quota the policy for a fleet of agents on one key (docs/policy.md). Only windows get zones; a rate's
// times depend on its period.
func applyFleet(quota *quotav1.Quota) {
	quota.Policy.Ramp, quota.Policy.Ageing = durationpb.New(time.Minute), durationpb.New(5*time.Minute)
	quota.Policy.Breaker = &quotav1.Breaker{Failures: 5, Closed: durationpb.New(time.Minute)}
	if quota.GetSlots() == nil {
		quota.Policy.Shares = &quotav1.Shares{Critical: 0.4, Standard: 0.35, Background: 0.25}
	}
	if quota.GetWindow() != nil {
		quota.Policy.Zones, quota.Policy.Prediction = quotav1.Zones_ZONES_SMOOTH, &quotav1.Prediction{}
	}
	if rate := quota.GetRate(); rate != nil {
		period := rate.Per.AsDuration()
		quota.Policy.Ramp = durationpb.New(min(max(period, time.Second), time.Minute))
		quota.Policy.Ageing = durationpb.New(min(max(5*period, 10*time.Second), 5*time.Minute))
	}
	quota.Policy.Metering = true
	quota.ClampHold = quota.GetSlots() == nil
}

func (p *parser) shares(n *yaml.Node) *quotav1.Shares {
	shares := &quotav1.Shares{}
	values := p.doc.Mapping(n, "shares", sharesKeys...)
	for _, part := range []struct {
		key string
		to  *float64
	}{{"critical", &shares.Critical}, {"standard", &shares.Standard}, {"background", &shares.Background}, {"cap", &shares.Cap}} {
		if v, ok := values[part.key]; ok {
			*part.to = p.part(v, part.key)
		}
	}
	if v, ok := values["floor"]; ok {
		shares.Floor = new(p.part(v, "floor"))
	}
	if v, ok := values["holders"]; ok {
		shares.Holders = map[string]float64{}
		for name, n := range p.doc.Mapping(v, "holders") { // the order does not matter: problems are sorted by line
			shares.Holders[name] = p.part(n, "the share of "+name)
		}
	}
	if v, ok := values["quiet"]; ok {
		shares.Quiet = p.duration(v, "quiet", time.Second, 24*time.Hour)
	}
	return shares
}

func (p *parser) breaker(n *yaml.Node) *quotav1.Breaker {
	breaker := &quotav1.Breaker{}
	values := p.doc.Mapping(n, "breaker", breakerKeys...)
	if v, ok := values["failures"]; ok {
		breaker.Failures = int32(p.doc.Int(v, "failures", 1, 1000))
	} else {
		p.doc.Fail(n, `such as "failures: 5"`, "a breaker has no failures")
	}
	if v, ok := values["closed"]; ok {
		breaker.Closed = p.duration(v, "closed", time.Second, time.Hour)
	}
	return breaker
}

// times reads the durations that every kind of quota may have.
func (p *parser) times(values map[string]*yaml.Node, quota *quotav1.Quota) {
	if v, ok := values["spend_by"]; ok {
		quota.SpendBy = p.duration(v, "spend_by", shortestTime, maxPeriod)
	}
	if v, ok := values["transit"]; ok {
		quota.Transit = p.duration(v, "transit", shortestTime, maxPeriod)
	}
	if v, ok := values["max_call"]; ok {
		quota.MaxCall = p.duration(v, "max_call", shortestTime, 24*time.Hour)
	}
}

func (p *parser) duration(n *yaml.Node, what string, least, most time.Duration) *durationpb.Duration {
	return durationpb.New(p.doc.Duration(n, what, least, most))
}

func (p *parser) name(n *yaml.Node, values map[string]*yaml.Node) string {
	v, ok := values["name"]
	if !ok {
		p.doc.Fail(n, `such as "name: github/core"`, "a quota has no name")
		return ""
	}
	name := p.doc.Text(v, "name")
	if message := checkName(name); message != "" {
		p.doc.Fail(v, "", "name %s", message)
	}
	p.once(p.lines, "quota", name, v)
	return name
}

// once records the line of a name, and reports a duplicate.
func (p *parser) once(lines map[string]int, what, name string, at *yaml.Node) {
	if line, twice := lines[name]; twice {
		p.doc.Fail(at, "", "duplicate %s %q; already on line %d", what, name, line)
		return
	}
	lines[name] = at.Line
}

// checkName returns the mistake in a quota's name; empty: none.
func checkName(name string) string {
	switch {
	case name == "" || len(name) > maxName:
		return "must have 1 to 200 bytes"
	case strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/"):
		return "must not start or end with /"
	}
	for _, r := range name {
		if !isNameRune(r) {
			return "must consist of letters, digits and . _ - / @ :"
		}
	}
	return ""
}

func isNameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/@:", r)
}

func (p *parser) rule(n *yaml.Node, values map[string]*yaml.Node, quota *quotav1.Quota) {
	var kinds []string
	for _, kind := range []string{"window", "rate", "slots", "pool"} {
		if _, ok := values[kind]; ok {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) != 1 {
		found := "none"
		if len(kinds) > 0 {
			found = strings.Join(kinds, " and ")
		}
		p.doc.Fail(n, "", "the quota %q needs exactly one of window, rate, slots and pool; it has %s", quota.Name, found)
		return
	}
	v := values[kinds[0]]
	switch kinds[0] {
	case "window":
		quota.Rule = &quotav1.Quota_Window{Window: p.window(v)}
	case "rate":
		quota.Rule = &quotav1.Quota_Rate{Rate: p.rate(v)}
	case "slots":
		quota.Rule = &quotav1.Quota_Slots{Slots: p.slots(v)}
	case "pool":
		quota.Rule = &quotav1.Quota_Pool{Pool: p.pool(v)}
	}
}

func (p *parser) window(n *yaml.Node) *quotav1.Window {
	values := p.doc.Mapping(n, "window", windowKeys...)
	window := &quotav1.Window{Limit: p.limit(n, values), Every: p.every(n, values)}
	if v, ok := values["anchor"]; ok {
		window.Anchor = anchorWords[p.doc.Choice(v, "anchor", "calendar", "provider")]
	}
	if v, ok := values["skew"]; ok {
		window.Skew = p.duration(v, "skew", shortestTime, time.Hour)
	}
	return window
}

func (p *parser) every(n *yaml.Node, values map[string]*yaml.Node) string {
	v, ok := values["every"]
	if !ok {
		p.doc.Fail(n, "hour, day, month or a duration such as 15m", "window has no every")
		return ""
	}
	if text := v.Value; v.Kind == yaml.ScalarNode && slices.Contains([]string{"hour", "day", "month"}, text) {
		return text
	}
	if every := p.doc.Duration(v, "every (hour, day, month or a duration)", time.Second, maxPeriod); every > 0 {
		return every.String()
	}
	return ""
}

func (p *parser) rate(n *yaml.Node) *quotav1.Rate {
	values := p.doc.Mapping(n, "rate", rateKeys...)
	rate := &quotav1.Rate{Limit: p.limit(n, values)}
	if v, ok := values["per"]; ok {
		rate.Per = p.duration(v, "per", time.Second, maxPeriod)
	} else {
		p.doc.Fail(n, "such as per: 1m", "rate has no per")
	}
	if v, ok := values["burst"]; ok {
		rate.Burst = p.doc.Int(v, "burst", 1, MaxAmount)
	}
	return rate
}

func (p *parser) slots(n *yaml.Node) *quotav1.Slots {
	values := p.doc.Mapping(n, "slots", slotsKeys...)
	slots := &quotav1.Slots{Limit: p.limit(n, values)}
	if v, ok := values["grace"]; ok {
		slots.Grace = p.duration(v, "grace", shortestTime, 24*time.Hour)
	}
	return slots
}

func (p *parser) pool(n *yaml.Node) *quotav1.Pool {
	values := p.doc.Mapping(n, "pool", poolKeys...)
	pool := &quotav1.Pool{}
	members, ok := values["members"]
	if !ok {
		p.doc.Fail(n, "such as members: [{name: key-1, quota: openai/key-1/tokens}]", "pool has no members")
		return pool
	}
	for _, element := range p.doc.Sequence(members, "members") {
		pool.Members = append(pool.Members, p.member(element))
	}
	if v, ok := values["sticky"]; ok {
		pool.Sticky = p.doc.Bool(v, "sticky")
	}
	return pool
}

func (p *parser) member(n *yaml.Node) *quotav1.PoolMember {
	values := p.doc.Mapping(n, "a member", memberKeys...)
	member := &quotav1.PoolMember{}
	for _, key := range memberKeys {
		v, ok := values[key]
		if !ok {
			p.doc.Fail(n, "such as {name: key-1, quota: openai/key-1/tokens}", "a member has no %s", key)
			continue
		}
		value := p.doc.Text(v, key)
		if message := checkName(value); message != "" {
			p.doc.Fail(v, "", "%s %s", key, message)
		}
		if key == "name" {
			member.Name = value
		} else {
			member.Quota = value
		}
	}
	return member
}

func (p *parser) limit(n *yaml.Node, values map[string]*yaml.Node) int64 {
	v, ok := values["limit"]
	if !ok {
		p.doc.Fail(n, "write limit: 0 to suspend the quota", "limit is missing")
		return 0
	}
	return p.doc.Int(v, "limit", 0, MaxAmount)
}

func (p *parser) headroom(n *yaml.Node) float64 {
	value := p.doc.Float(n, "headroom")
	steps := math.Round(value * millionths)
	switch {
	case value < 0 || value >= 1:
		p.doc.Fail(n, "0.2 leaves a fifth of the limit alone", "headroom is %s; it must be at least 0 and below 1", n.Value)
		return 0
	case math.Abs(value*millionths-steps) > 1e-6 || steps == millionths:
		p.doc.Fail(n, "", "headroom is %s; it has at most six decimals", n.Value)
		return 0
	}
	return steps / millionths
}

// part reads a fraction.
func (p *parser) part(n *yaml.Node, what string) float64 {
	value := p.doc.Float(n, what)
	steps := math.Round(value * millionths)
	switch {
	case value < 0 || value > 1:
		p.doc.Fail(n, "0.4 is 40 %", "%s is %s; it must be 0 to 1", what, n.Value)
		return 0
	case math.Abs(value*millionths-steps) > 1e-6:
		p.doc.Fail(n, "", "%s is %s; it has at most six decimals", what, n.Value)
		return 0
	}
	return steps / millionths
}

// findCycles reports quotas that are their own ancestors. Parents outside the file may exist in the cluster.
func (p *parser) findCycles(elements []*yaml.Node, quotas []*quotav1.Quota) {
	parents := map[string]string{}
	for _, quota := range quotas {
		parents[quota.Name] = quota.Parent
	}
	for i, quota := range quotas {
		ancestor := quota.Parent
		for steps := 0; ancestor != "" && steps <= len(quotas); steps++ {
			if ancestor == quota.Name {
				p.doc.Fail(elements[i], "", "the quota %q is its own ancestor", quota.Name)
				break
			}
			ancestor = parents[ancestor]
		}
	}
}

func (p *parser) holder(n *yaml.Node) *quotav1.HolderRule {
	values := p.doc.Mapping(n, "a holder rule", holderKeys...)
	rule := &quotav1.HolderRule{}
	if v, ok := values["pattern"]; ok {
		rule.Pattern = p.doc.Text(v, "pattern")
		if rule.Pattern == "" || len(rule.Pattern) > maxHolder {
			p.doc.Fail(v, "", "pattern must have 1 to %d bytes", maxHolder)
		}
	} else {
		p.doc.Fail(n, `such as "pattern: picard*"`, "a holder rule has no pattern")
	}
	if v, ok := values["class"]; ok {
		rule.Class = classWords[p.doc.Choice(v, "class", "critical", "standard", "background")]
	} else {
		p.doc.Fail(n, "critical, standard or background", "a holder rule has no class")
	}
	if v, ok := values["weight"]; ok {
		rule.Weight = int32(p.doc.Int(v, "weight", 1, maxWeight)) // at most 1000
	}
	return rule
}
