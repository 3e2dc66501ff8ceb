package quotafile

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Write returns the file as YAML from which Parse reads the same file. It omits default values.
func Write(file *File) ([]byte, error) {
	top := mapping()
	if len(file.Quotas) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, quota := range file.Quotas {
			list.Content = append(list.Content, quotaNode(quota))
		}
		put(top, "quotas", list)
	}
	if file.HasHolders {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, rule := range file.Holders {
			list.Content = append(list.Content, holderNode(rule))
		}
		put(top, "holders", list)
	}
	if file.HasWorkflows {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, workflow := range file.Workflows {
			list.Content = append(list.Content, workflowNode(workflow))
		}
		put(top, "workflows", list)
	}
	return yaml.Dump(top, yaml.WithIndent(2), yaml.WithCompactSeqIndent(false), yaml.WithLineWidth(-1))
}

func quotaNode(quota *quotav1.Quota) *yaml.Node {
	n := mapping()
	put(n, "name", text(quota.Name))
	switch rule := quota.Rule.(type) {
	case *quotav1.Quota_Window:
		put(n, "window", windowNode(rule.Window))
	case *quotav1.Quota_Rate:
		put(n, "rate", rateNode(rule.Rate))
	case *quotav1.Quota_Slots:
		slots := flow()
		put(slots, "limit", number(rule.Slots.Limit))
		putDuration(slots, "grace", rule.Slots.Grace)
		put(n, "slots", slots)
	case *quotav1.Quota_Pool:
		put(n, "pool", poolNode(rule.Pool))
	}
	if quota.Headroom != 0 {
		put(n, "headroom", part(quota.Headroom))
	}
	putText(n, "parent", quota.Parent)
	if quota.MaxHold != nil {
		put(n, "max_hold", number(*quota.MaxHold))
	}
	if quota.ClampHold {
		put(n, "clamp_hold", &yaml.Node{Kind: yaml.ScalarNode, Value: "true"})
	}
	if quota.DefaultEstimate != 0 {
		put(n, "default_estimate", number(quota.DefaultEstimate))
	}
	putDuration(n, "spend_by", quota.SpendBy)
	putDuration(n, "transit", quota.Transit)
	putText(n, "charged", wordOf(chargedWords, quota.Charged))
	putDuration(n, "max_call", quota.MaxCall)
	putText(n, "settle", wordOf(settleWords, quota.Settle))
	if quota.Policy != nil {
		put(n, "policy", policyNode(quota.Policy))
	}
	putText(n, "fallback", quota.Fallback)
	putText(n, "note", quota.Note)
	return n
}

func poolNode(pool *quotav1.Pool) *yaml.Node {
	n := mapping()
	members := &yaml.Node{Kind: yaml.SequenceNode}
	for _, member := range pool.Members {
		m := flow()
		put(m, "name", text(member.Name))
		put(m, "quota", text(member.Quota))
		members.Content = append(members.Content, m)
	}
	put(n, "members", members)
	if pool.Sticky {
		put(n, "sticky", &yaml.Node{Kind: yaml.ScalarNode, Value: "true"})
	}
	return n
}

func policyNode(policy *quotav1.Policy) *yaml.Node {
	n := flow()
	putText(n, "zones", wordOf(zonesWords, policy.Zones))
	putDuration(n, "ramp", policy.Ramp)
	if breaker := policy.Breaker; breaker != nil {
		b := flow()
		put(b, "failures", number(int64(breaker.Failures)))
		putDuration(b, "closed", breaker.Closed)
		put(n, "breaker", b)
	}
	if policy.Shares != nil {
		put(n, "shares", sharesNode(policy.Shares))
	}
	putDuration(n, "ageing", policy.Ageing)
	if policy.Prediction != nil {
		prediction := flow()
		if policy.Prediction.Samples != 0 {
			put(prediction, "samples", number(int64(policy.Prediction.Samples)))
		}
		putDuration(prediction, "ahead", policy.Prediction.Ahead)
		put(n, "prediction", prediction)
	}
	if policy.Metering {
		put(n, "metering", &yaml.Node{Kind: yaml.ScalarNode, Value: "true"})
	}
	if policy.Observe {
		put(n, "observe", &yaml.Node{Kind: yaml.ScalarNode, Value: "true"})
	}
	return n
}

func sharesNode(shares *quotav1.Shares) *yaml.Node {
	n := flow()
	for _, of := range []struct {
		key   string
		value float64
	}{{"critical", shares.Critical}, {"standard", shares.Standard}, {"background", shares.Background}, {"cap", shares.Cap}} {
		if of.value != 0 {
			put(n, of.key, part(of.value))
		}
	}
	if shares.Floor != nil {
		put(n, "floor", part(*shares.Floor))
	}
	putDuration(n, "quiet", shares.Quiet)
	if len(shares.Holders) > 0 {
		holders := flow()
		for _, name := range slices.Sorted(maps.Keys(shares.Holders)) {
			put(holders, name, part(shares.Holders[name]))
		}
		put(n, "holders", holders)
	}
	return n
}

func part(value float64) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Value: strconv.FormatFloat(value, 'f', -1, 64)}
}

func windowNode(window *quotav1.Window) *yaml.Node {
	n := flow()
	put(n, "limit", number(window.Limit))
	every := window.Every
	if length, err := time.ParseDuration(every); err == nil {
		every = strictyaml.FormatDuration(length)
	}
	put(n, "every", text(every))
	putText(n, "anchor", wordOf(anchorWords, window.Anchor))
	putDuration(n, "skew", window.Skew)
	return n
}

func rateNode(rate *quotav1.Rate) *yaml.Node {
	n := flow()
	put(n, "limit", number(rate.Limit))
	putDuration(n, "per", rate.Per)
	if rate.Burst != 0 {
		put(n, "burst", number(rate.Burst))
	}
	return n
}

func holderNode(rule *quotav1.HolderRule) *yaml.Node {
	n := flow()
	put(n, "pattern", text(rule.Pattern))
	put(n, "class", text(ClassWord(rule.Class)))
	if rule.Weight != 0 {
		put(n, "weight", number(int64(rule.Weight)))
	}
	return n
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode} }

// flow is a mapping on one line: {limit: 5000, every: hour}.
func flow() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle} }

func put(n *yaml.Node, key string, value *yaml.Node) {
	n.Content = append(n.Content, text(key), value)
}

func putText(n *yaml.Node, key, value string) {
	if value != "" {
		put(n, key, text(value))
	}
}

func putDuration(n *yaml.Node, key string, d *durationpb.Duration) {
	if d != nil {
		put(n, key, text(strictyaml.FormatDuration(d.AsDuration())))
	}
}

// text returns a string node; its tag makes the writer quote a value that would otherwise be a number or a YAML keyword.
func text(value string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(value)
	return n
}

func number(value int64) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Value: strconv.FormatInt(value, 10)}
}
