package rpc

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/task"
	"github.com/quotad/quotad/fsm/workflow"
	"github.com/quotad/quotad/rpc/quotav1"
)

// leafFiller gives each field of a value, at any depth, a value of its own, and can change one after the other.
type leafFiller struct {
	last   int64
	change map[string]func()
}

// fill fills a value. path is its place, in words of fields (wordOf).
func (f *leafFiller) fill(v reflect.Value, path string) {
	f.last++
	if v.Type() == reflect.TypeFor[*durationpb.Duration]() {
		length := durationpb.New(time.Duration(f.last))
		v.Set(reflect.ValueOf(length))
		f.change[path] = func() { length.Seconds++ }
		return
	}
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), path)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.Anonymous {
				f.fill(v.Field(i), path)
			} else if field.IsExported() {
				f.fill(v.Field(i), strings.TrimPrefix(path+"."+wordOf(field.Name), "."))
			}
		}
	case v.Kind() == reflect.Slice && strings.Count(path, "members") < 2: // a pool has no pools
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(v.Index(0), path)
	case v.Kind() == reflect.String:
		v.SetString(fmt.Sprint("some", f.last))
		f.change[path] = func() { v.SetString(v.String() + "else") }
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
		f.change[path] = func() { v.SetBool(false) }
	case v.CanInt():
		v.SetInt(f.last)
		f.change[path] = func() { v.SetInt(v.Int() + 1000) }
	case v.CanUint():
		v.SetUint(uint64(f.last))
		f.change[path] = func() { v.SetUint(v.Uint() + 1000) }
	case v.CanFloat():
		v.SetFloat(float64(f.last) / 1000)
		f.change[path] = func() { v.SetFloat(v.Float() + 0.25) }
	}
}

// wordOf returns a field's name without the differences between Go, schemas and units.
func wordOf(name string) string {
	name = strings.ToLower(strings.ReplaceAll(name, "_", ""))
	return strings.TrimSuffix(strings.TrimSuffix(name, "ppm"), "ns")
}

// flat returns the fields of a message that are set, at any depth, by path.
func flat(m protoreflect.Message, path string, into map[string]string) map[string]string {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := strings.TrimPrefix(path+"."+wordOf(string(field.Name())), ".")
		switch {
		case field.IsMap():
			value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				into[name] += fmt.Sprint(key, value)
				return true
			})
		case field.IsList() && field.Message() != nil:
			flat(value.List().Get(0).Message(), name, into)
		case field.IsList():
			into[name] = value.List().Get(0).String()
		case field.Message() == nil:
			into[name] = value.String()
		case field.Message().FullName() == "google.protobuf.Duration":
			into[name] = protojson.Format(value.Message().Interface())
		default:
			flat(value.Message(), name, into)
		}
		return true
	})
	return into
}

// viewCase is a translation between the state and the API.
type viewCase struct {
	// from is what is translated.
	from      any
	translate func() proto.Message
	// names are the fields of the result that have other names, separated by blanks; empty: it has none.
	names map[string]string
}

// stateCases are translations of what the state shows.
func stateCases() map[string]viewCase {
	clock := fsm.Clock{}
	quota, usage, lease, budget, event := new(fsm.QuotaView), new(fsm.UsageView), new(fsm.LeaseView), new(accounts.View), new(effect.Event)
	its, flow, refusal := new(task.View), new(workflow.View), new(logpb.Refusal)
	return map[string]viewCase{
		"a quota": {quota, func() proto.Message { return apiQuotaStatus(quota, clock) }, map[string]string{
			"closedfor": "", "windowleft": "windowclosesin", "broken": "brokenholders", "forecast.exhaustedat": "forecast.exhaustedin",
			"members.quota.definition.name": "members.quota", "members.quota.usable": "members.usable",
			"members.quota.availablewithparents": "members.available", "members.quota.closedfor": "members.cooldownleft",
			"definition.policy.shares.holders.holder": "definition.policy.shares.holders",
			"definition.policy.shares.holders.share":  "definition.policy.shares.holders",
		}},
		"usage": {usage, func() proto.Message { return apiUsage(usage) }, map[string]string{
			"denials.reason": "refusals.reason", "denials.times": "refusals.times",
		}},
		"a lease": {lease, func() proto.Message { return apiLeaseStatus(lease, clock, clock) }, map[string]string{
			"left": "expiresin", "held.until": "held.expiresin", "consumed.until": "consumed.expiresin",
		}},
		"a budget": {budget, func() proto.Message { return apiBudgets([]accounts.View{*budget})[0] }, map[string]string{
			"refused": "", "atbudget": "callersatbudget",
		}},
		"an event": {event, func() proto.Message { return apiEvent(event) }, map[string]string{"outcome": "taskoutcome"}},
		"a task": {its, func() proto.Message { return apiTask(its) }, map[string]string{
			"name": "task", "limited": "", "left": "expiresin", "retryin": "retryafter",
		}},
		"a workflow": {flow, func() proto.Message { return apiWorkflowStatus(flow) }, map[string]string{
			"sequential": "calmin state", "baton.left": "baton.endsin",
		}},
		"a refusal": {refusal, func() proto.Message { return apiRefusal(refusal, clock) }, map[string]string{
			"retryat": "retryafter", "reopensat": "reopensin", "forecast.exhaustedat": "forecast.exhaustedin",
			"backpressure.sequential": "backpressure.state", "backpressure.until": "backpressure.limitedfor",
		}},
	}
}

// settingCases are translations of what operators set, in both directions.
func settingCases() map[string]viewCase {
	limits, setLimits, flow, setFlow := new(logpb.SetLimits), new(quotav1.Limits), new(logpb.Workflow), new(quotav1.Workflow)
	quota, setQuota := new(logpb.Quota), new(quotav1.Quota)
	return map[string]viewCase{
		"limits":     {limits, func() proto.Message { return apiLimits(limits) }, map[string]string{"operators": "operatorspart"}},
		"set limits": {setLimits, func() proto.Message { return logLimits(setLimits) }, map[string]string{"operatorspart": "operators"}},
		"steps":      {flow, func() proto.Message { return apiWorkflow(flow) }, nil},
		"set steps":  {setFlow, func() proto.Message { return logWorkflow(setFlow) }, nil},
		"a rule": {quota, func() proto.Message { return apiQuota(quota) }, map[string]string{
			"policy.shares.holders.holder": "policy.shares.holders", "policy.shares.holders.share": "policy.shares.holders",
		}},
		"a set rule": {setQuota, func() proto.Message { return logQuota(setQuota) }, nil},
	}
}

// TestViews_EachFieldHasItsOwn: a change of one field of the state changes the field of the API of that name and no other, and the other
// way round for settings.
func TestViews_EachFieldHasItsOwn(t *testing.T) {
	cases := stateCases()
	maps.Copy(cases, settingCases())
	for name, c := range cases { // in any order
		f := &leafFiller{change: map[string]func(){}}
		f.fill(reflect.ValueOf(c.from).Elem(), "")
		for _, path := range slices.Sorted(maps.Keys(f.change)) {
			want, renamed := c.names[path]
			if !renamed && !strings.HasPrefix(path, "members.quota.") { // only some fields of a pool's members are shown
				want = path
			}
			before := flat(c.translate().ProtoReflect(), "", map[string]string{})
			f.change[path]()
			after := flat(c.translate().ProtoReflect(), "", map[string]string{})
			var changed []string
			for field := range before {
				if after[field] != before[field] {
					changed = append(changed, field)
				}
			}
			slices.Sort(changed)
			if got := strings.Join(changed, " "); got != want {
				t.Errorf("%s: %s changes %q, want %q", name, path, got, want)
			}
		}
		if len(f.change) < 5 {
			t.Errorf("%s: only %d fields are checked", name, len(f.change))
		}
	}
}
