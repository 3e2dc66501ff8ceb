package signals

import (
	"time"

	"github.com/dunglas/httpsfv"
)

// ietfSignals reads the RateLimit fields of the IETF's draft in each of its forms: a list of named policies (from -08), one dictionary
// (-07), and three headers (up to -06). A malformed field is left out as a whole. The fields of a cached answer belong to an earlier call
// and are left out.
func ietfSignals(r *response) []Signal {
	if age := r.header.Get("Age"); age != "" && age != "0" {
		return nil
	}
	policies := r.policies()
	fields := r.header.Values("Ratelimit")
	if len(fields) == 0 {
		s, listed := r.threeHeaders("Ratelimit-", "ietf/counts")
		return append(append(counted(s), policies...), listed...)
	}
	if list, err := httpsfv.UnmarshalList(fields); err == nil {
		return r.named(list, policies)
	}
	dictionary, err := httpsfv.UnmarshalDictionary(fields)
	if err != nil {
		r.malformed++
		return policies
	}
	return append(counted(Signal{
		Class: OK, Rule: "ietf/counts", Limit: member(dictionary, "limit"), Remaining: member(dictionary, "remaining"),
		ResetIn: inSeconds(member(dictionary, "reset")),
	}), policies...)
}

// counted returns s if it has counts, and nothing otherwise.
func counted(s Signal) []Signal {
	if !s.Limit.Known && !s.Remaining.Known && !s.Used.Known && !s.ResetIn.Known {
		return nil
	}
	s.Exact = s.Remaining.Known
	return []Signal{inWindow(s)}
}

// threeHeaders reads Limit, Remaining and Reset. The first one may list policies as well: 10, 10;w=1, 50;w=60.
func (r *response) threeHeaders(prefix, rule string) (s Signal, policies []Signal) {
	s = Signal{Class: OK, Rule: rule, Remaining: r.count(prefix + "Remaining"), ResetIn: r.longest(prefix+"Reset", r.guessed)}
	fields := r.header.Values(prefix + "Limit")
	if len(fields) == 0 {
		return s, nil
	}
	list, err := httpsfv.UnmarshalList(fields)
	if err != nil || len(list) == 0 {
		r.malformed++
		return s, nil
	}
	s.Limit = number(list[0])
	return s, listedPolicies(list[1:], rule)
}

// policies reads the RateLimit-Policy field, whose items are named, or numbers up to -07.
func (r *response) policies() []Signal {
	fields := r.header.Values("Ratelimit-Policy")
	list, err := httpsfv.UnmarshalList(fields)
	if err != nil {
		r.malformed++
		return nil
	}
	return listedPolicies(list, "ietf/policy")
}

// listedPolicies reads the items of a list as policies: a limit for a window. Other items are left out.
func listedPolicies(list httpsfv.List, rule string) []Signal {
	var out []Signal
	for _, m := range list {
		s := Signal{
			Class: OK, Scope: ScopeResource, Resource: itemName(m), Rule: rule,
			Limit: number(m), Window: inSeconds(parameter(m, "w")),
		}
		switch {
		case !s.Limit.Known:
			s.Limit = parameter(m, "q")
		case !s.Window.Known:
			continue // a number without a window is not a policy: 30,000 is not a list of two
		}
		if name, ok := parameterText(m, "name"); ok {
			s.Resource = word(name)
		}
		if s.Limit.Known {
			out = append(out, s)
		}
	}
	return out
}

// named reads what remains of named policies, and joins it with the limits and windows of the policies.
func (r *response) named(list httpsfv.List, policies []Signal) []Signal {
	var out []Signal
	for _, m := range list {
		remaining, refillIn := parameter(m, "r"), inSeconds(parameter(m, "t"))
		if _, timed := parameterValue(m, "t"); itemName(m) == "" || !remaining.Known || (timed && !refillIn.Known) {
			r.malformed++
			return policies
		}
		out = append(out, Signal{
			Class: OK, Scope: ScopeResource, Resource: itemName(m), Rule: "ietf/counts", Remaining: remaining, Exact: true, RefillIn: refillIn,
		})
	}
	for _, policy := range policies {
		joined := false
		for i := range out {
			if out[i].Resource == policy.Resource {
				out[i].Limit, out[i].Window, joined = policy.Limit, policy.Window, true
			}
		}
		if !joined {
			out = append(out, policy)
		}
	}
	return out
}

// itemName returns an item's value where it is a name.
func itemName(m httpsfv.Member) string {
	item, _ := m.(httpsfv.Item)
	switch value := item.Value.(type) {
	case string:
		return word(value)
	case httpsfv.Token:
		return word(string(value))
	}
	return ""
}

// number returns an item's value where it is a count.
func number(m httpsfv.Member) Count {
	item, _ := m.(httpsfv.Item)
	return countOf(item.Value)
}

// member returns a dictionary's member where it is a count.
func member(d *httpsfv.Dictionary, key string) Count {
	m, _ := d.Get(key)
	return number(m)
}

func parameterValue(m httpsfv.Member, key string) (any, bool) {
	item, ok := m.(httpsfv.Item)
	if !ok || item.Params == nil {
		return nil, false
	}
	return item.Params.Get(key)
}

// parameter returns an item's parameter where it is a count.
func parameter(m httpsfv.Member, key string) Count {
	value, _ := parameterValue(m, key)
	return countOf(value)
}

func parameterText(m httpsfv.Member, key string) (string, bool) {
	value, _ := parameterValue(m, key)
	text, ok := value.(string)
	return text, ok
}

func countOf(value any) Count {
	n, ok := value.(int64)
	if !ok || n < 0 {
		return Count{}
	}
	return Count{N: n, Known: true}
}

// inSeconds converts a count of seconds.
func inSeconds(c Count) Span {
	if !c.Known || c.N > int64(maxSpan/time.Second) {
		return Span{}
	}
	return Span{D: time.Duration(c.N) * time.Second, Known: true}
}
