package signals

import "strings"

// Of is a signal and the quota that it is about.
type Of struct {
	Quota string
	Signal
}

// Attribute assigns the signals of an answer to the quotas of its call, each quota at most once. A limit belongs to the quota with its
// name, or whose name ends with it: core to github/core. Counts of other limits are left out, except unnamed ones where the call draws on
// one quota. A refusal always counts, if need be against the first quota, and against all of them if it is about payment. Errors that are
// not a limit are left out.
func Attribute(said []Signal, quotas []string) []Of {
	if len(quotas) == 0 {
		return nil
	}
	var out []Of
	for _, s := range said {
		quota := named(s.Resource, quotas)
		switch {
		case s.Class == NotALimit:
			continue
		case s.Class == Billing:
			for _, quota := range quotas {
				out = join(out, Of{Quota: quota, Signal: Signal{Class: Billing, Scope: s.Scope, NoRetry: s.NoRetry, Rule: s.Rule}})
			}
			continue
		case quota == "" && (s.Class != OK || s.Resource == "" && len(quotas) == 1):
			quota = quotas[0]
		case quota == "":
			continue
		}
		out = join(out, Of{Quota: quota, Signal: s})
	}
	return out
}

// named returns the quota that a limit's name belongs to; empty if there is none.
func named(resource string, quotas []string) string {
	for _, quota := range quotas {
		if resource != "" && (quota == resource || strings.HasSuffix(quota, "/"+resource)) {
			return quota
		}
	}
	return ""
}

// join adds a signal: a refusal joins the counts of the same quota.
func join(all []Of, s Of) []Of {
	for i := range all {
		if all[i].Quota != s.Quota {
			continue
		}
		if s.Class != OK {
			all[i].Class, all[i].Scope, all[i].RetryAfter, all[i].Clamped = s.Class, s.Scope, s.RetryAfter, s.Clamped
			all[i].NoRetry, all[i].Rule = s.NoRetry, s.Rule
		}
		return all
	}
	return append(all, s)
}
