package quotafile

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/rpc/quotav1"
)

var update = flag.Bool("update", false, "write the golden errors again")

// samples calls fn with each file of a folder of testdata.
func samples(t *testing.T, folder string, fn func(t *testing.T, path string, data []byte)) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", folder, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no samples in %s: %v", folder, err)
	}
	for _, path := range paths {
		t.Run(folder+"/"+strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			fn(t, path, data)
		})
	}
}

func TestParse_AcceptedSamplesSurviveWriting(t *testing.T) {
	samples(t, "accept", func(t *testing.T, path string, data []byte) {
		file, err := Parse(path, data)
		if err != nil {
			t.Fatal(err)
		}
		requireSameWhenWritten(t, file)
	})
}

func requireSameWhenWritten(t interface {
	Helper()
	Fatalf(string, ...any)
}, file *File,
) {
	t.Helper()
	written, err := Write(file)
	if err != nil {
		t.Fatalf("write: %v", err)
	}
	again, err := Parse("written", written)
	if err != nil {
		t.Fatalf("what was written is refused: %v\n%s", err, written)
	}
	if !proto.Equal(file.Request(), again.Request()) {
		t.Fatalf("changed by writing:\n%s\nwas  %v\nis   %v", written, file.Request(), again.Request())
	}
}

// TestParse_RefusedSamplesNamePlaceAndCause: each refused sample has its problems in a golden file: file, line, key and suggestion
// are promised.
func TestParse_RefusedSamplesNamePlaceAndCause(t *testing.T) {
	for _, folder := range []string{"reject", "meaning"} {
		samples(t, folder, func(t *testing.T, path string, data []byte) {
			_, err := Parse(filepath.Base(path), data)
			if _, ok := errors.AsType[*strictyaml.Problem](err); !ok {
				t.Fatalf("accepted, or not a problem: %v", err)
			}
			golden := strings.TrimSuffix(path, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, readErr := os.ReadFile(golden)
			if readErr != nil {
				t.Fatal(readErr)
			}
			if got := err.Error() + "\n"; got != string(want) {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// TestSchema_AgreesWithParser: the schema, which editors use, and the parser accept the same forms.
func TestSchema_AgreesWithParser(t *testing.T) {
	data, err := os.ReadFile("../../../../docs/quotas.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	validate := func(t *testing.T, data []byte) error {
		t.Helper()
		var value any
		if err := yaml.Load(data, &value); err != nil {
			t.Fatal(err)
		}
		return resolved.Validate(value)
	}
	samples(t, "accept", func(t *testing.T, _ string, data []byte) {
		if err := validate(t, data); err != nil {
			t.Errorf("the schema refuses what the parser accepts: %v", err)
		}
	})
	samples(t, "reject", func(t *testing.T, _ string, data []byte) {
		if validate(t, data) == nil {
			t.Error("the schema accepts what the parser refuses")
		}
	})
}

func TestParse_Translation(t *testing.T) {
	data, err := os.ReadFile("testdata/accept/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file, err := Parse("full.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	hold := int64(100)
	want := &quotav1.Quota{
		Name: "github/core",
		Rule: &quotav1.Quota_Window{Window: &quotav1.Window{
			Limit: 5000, Every: "hour", Anchor: quotav1.Anchor_ANCHOR_PROVIDER, Skew: durationpb.New(2 * time.Second),
		}},
		Headroom: 0.2, Parent: "github", MaxHold: &hold, DefaultEstimate: 1,
		SpendBy: durationpb.New(30 * time.Second), Transit: durationpb.New(500 * time.Millisecond),
		Charged: quotav1.Charged_CHARGED_START, MaxCall: durationpb.New(2 * time.Minute),
		Settle: quotav1.SettleMode_SETTLE_MODE_MAX, Note: "one key for the whole fleet",
		Policy: &quotav1.Policy{
			Zones: quotav1.Zones_ZONES_SMOOTH, Ramp: durationpb.New(time.Minute), Observe: true, Ageing: durationpb.New(5 * time.Minute),
			Breaker: &quotav1.Breaker{Failures: 5, Closed: durationpb.New(time.Minute)},
			Shares: &quotav1.Shares{
				Critical: 0.4, Standard: 0.35, Background: 0.25, Cap: 0.9, Floor: new(0.3), Quiet: durationpb.New(15 * time.Minute),
			},
		},
	}
	if got := file.Quotas[1]; !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if rule := file.Holders[0]; rule.Class != quotav1.Class_CLASS_CRITICAL || rule.Weight != 3 {
		t.Errorf("holder rule: %v", rule)
	}
	workflow := &quotav1.Workflow{
		Name: "release", Threshold: 2, Within: durationpb.New(30 * time.Second), Calm: durationpb.New(time.Minute),
		BatonTime: durationpb.New(5 * time.Minute), Pause: durationpb.New(2 * time.Minute), Steps: []*quotav1.WorkflowStep{
			{Holder: "triage"}, {Holder: "review@node-7", After: []string{"triage"}}, {Holder: "deploy", After: []string{"triage", "review@node-7"}},
		},
	}
	if len(file.Workflows) != 1 || !proto.Equal(file.Workflows[0], workflow) {
		t.Errorf("workflows: %v", file.Workflows)
	}
	if request := file.Request(); !request.ReplaceHolders || !request.ReplaceWorkflows || len(request.Workflows) != 1 {
		t.Errorf("a file with holders and workflows replaces both: %v", request)
	}
}

// TestParse_Profiles: a profile has its documented settings, and explicit settings override them.
func TestParse_Profiles(t *testing.T) {
	file, err := Parse("f", []byte(`quotas:
  - {name: hourly, window: {limit: 100, every: hour}, policy: {profile: fleet, ramp: 2m}}
  - {name: tokens, rate: {limit: 100, per: 1m}, policy: {profile: fleet}, clamp_hold: false}
  - {name: streams, slots: {limit: 8}, policy: {profile: fleet}}
  - {name: short, rate: {limit: 100, per: 1s}, policy: {profile: fleet}}
  - {name: tenths, rate: {limit: 100, per: 10s}, policy: {profile: fleet}}
  - {name: long, rate: {limit: 100, per: 1h}, policy: {profile: fleet}}
`))
	if err != nil {
		t.Fatal(err)
	}
	breaker := &quotav1.Breaker{Failures: 5, Closed: durationpb.New(time.Minute)}
	shares := &quotav1.Shares{Critical: 0.4, Standard: 0.35, Background: 0.25}
	ageing, foresight := durationpb.New(5*time.Minute), &quotav1.Prediction{}
	for i, want := range []struct {
		policy *quotav1.Policy
		clamp  bool
	}{
		{&quotav1.Policy{
			Zones: quotav1.Zones_ZONES_SMOOTH, Ramp: durationpb.New(2 * time.Minute), Breaker: breaker, Shares: shares, Ageing: ageing,
			Prediction: foresight, Metering: true,
		}, true},
		{&quotav1.Policy{Ramp: durationpb.New(time.Minute), Breaker: breaker, Shares: shares, Ageing: ageing, Metering: true}, false},
		{&quotav1.Policy{Ramp: durationpb.New(time.Minute), Breaker: breaker, Ageing: ageing, Metering: true}, false},
		{&quotav1.Policy{
			Ramp: durationpb.New(time.Second), Breaker: breaker, Shares: shares, Ageing: durationpb.New(10 * time.Second),
			Metering: true,
		}, true},
		{&quotav1.Policy{
			Ramp: durationpb.New(10 * time.Second), Breaker: breaker, Shares: shares, Ageing: durationpb.New(50 * time.Second),
			Metering: true,
		}, true},
		{&quotav1.Policy{Ramp: durationpb.New(time.Minute), Breaker: breaker, Shares: shares, Ageing: ageing, Metering: true}, true},
	} {
		if got := file.Quotas[i]; !proto.Equal(got.Policy, want.policy) || got.ClampHold != want.clamp {
			t.Errorf("%s: %v, clamp %v", got.Name, got.Policy, got.ClampHold)
		}
	}
}

// TestWrite_AnyQuotaSurvives: `get -o yaml` writes any quota of the API so that `apply` reads the same.
func TestWrite_AnyQuotaSurvives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		file := &File{Quotas: []*quotav1.Quota{drawQuota(t)}}
		if rapid.Bool().Draw(t, "workflows") {
			file.HasWorkflows = true
			file.Workflows = []*quotav1.Workflow{drawWorkflow(t)}
		}
		requireSameWhenWritten(t, file)
	})
}

// drawWorkflow draws a workflow in which a step follows any of the steps before it.
func drawWorkflow(t *rapid.T) *quotav1.Workflow {
	workflow := &quotav1.Workflow{Name: "w", Threshold: int32(rapid.IntRange(0, 2).Draw(t, "threshold"))}
	for _, to := range []**durationpb.Duration{&workflow.Within, &workflow.Calm, &workflow.BatonTime, &workflow.Pause} {
		if rapid.Bool().Draw(t, "set") {
			*to = durationpb.New(time.Duration(rapid.IntRange(1000, 600_000).Draw(t, "length")) * time.Millisecond)
		}
	}
	names := rapid.SliceOfNDistinct(rapid.StringMatching(`[!-)+-~ä€]{1,20}`), 2, 6, rapid.ID).Draw(t, "holders")
	for i, name := range names {
		step := &quotav1.WorkflowStep{Holder: name}
		for _, before := range names[:i] {
			if rapid.Bool().Draw(t, "after") {
				step.After = append(step.After, before)
			}
		}
		workflow.Steps = append(workflow.Steps, step)
	}
	return workflow
}

func drawQuota(t *rapid.T) *quotav1.Quota {
	length := func(label string) *durationpb.Duration {
		if !rapid.Bool().Draw(t, label+" is set") {
			return nil
		}
		return durationpb.New(time.Duration(rapid.Int64Range(1, 31*24*3600*1000).Draw(t, label)) * time.Millisecond)
	}
	quota := &quotav1.Quota{
		Name:      rapid.StringMatching(`[A-Za-z0-9._@:-]([A-Za-z0-9._/@:-]{0,40}[A-Za-z0-9._@:-])?`).Draw(t, "name"),
		Headroom:  float64(rapid.IntRange(0, 999_999).Draw(t, "millionths")) / 1_000_000,
		ClampHold: rapid.Bool().Draw(t, "clamp"),
		SpendBy:   length("spend by"), Transit: length("transit"),
		Charged:  quotav1.Charged(rapid.IntRange(0, 3).Draw(t, "charged")),
		Settle:   quotav1.SettleMode(rapid.IntRange(0, 2).Draw(t, "settle")),
		Fallback: rapid.SampledFrom([]string{"", "", "other/quota"}).Draw(t, "fallback"),
		Note:     rapid.StringMatching(`[ -~äß€\n]{0,60}`).Draw(t, "note"),
	}
	if rapid.Bool().Draw(t, "policed") {
		quota.Policy = &quotav1.Policy{Zones: quotav1.Zones(rapid.IntRange(0, 2).Draw(t, "zones")), Observe: rapid.Bool().Draw(t, "observe")}
		if rapid.Bool().Draw(t, "shared") {
			part := func(label string) float64 { return float64(rapid.IntRange(0, 1_000_000).Draw(t, label)) / 1_000_000 }
			quota.Policy.Shares = &quotav1.Shares{
				Critical: part("critical"), Standard: part("standard"), Background: part("background"), Cap: part("cap"),
			}
			if rapid.Bool().Draw(t, "of holders") {
				quota.Policy.Shares.Holders = map[string]float64{
					"ralph@node-7": part("of ralph"), rapid.StringMatching(`[A-Za-z][ -~ä]{0,20}`).Draw(t, "holder"): part("of a holder"),
				}
			}
			if rapid.Bool().Draw(t, "floored") {
				quota.Policy.Shares.Floor = new(part("floor"))
			}
			if rapid.Bool().Draw(t, "quiet") {
				quota.Policy.Shares.Quiet = durationpb.New(time.Duration(rapid.IntRange(1, 86_400).Draw(t, "quiet for")) * time.Second)
			}
		}
		quota.Policy.Metering = rapid.Bool().Draw(t, "metering")
		if rapid.Bool().Draw(t, "predicted") {
			quota.Policy.Prediction = &quotav1.Prediction{Samples: rapid.SampledFrom([]int32{0, 3, 10, 100}).Draw(t, "samples")}
			if rapid.Bool().Draw(t, "ahead") {
				quota.Policy.Prediction.Ahead = durationpb.New(time.Duration(rapid.IntRange(1, 3600).Draw(t, "by")) * time.Second)
			}
		}
		if rapid.Bool().Draw(t, "ages") {
			quota.Policy.Ageing = durationpb.New(time.Duration(rapid.IntRange(1, 86_400).Draw(t, "ageing")) * time.Second)
		}
		if rapid.Bool().Draw(t, "ramped") {
			quota.Policy.Ramp = durationpb.New(time.Duration(rapid.IntRange(50, 3_600_000).Draw(t, "ramp")) * time.Millisecond)
		}
		if rapid.Bool().Draw(t, "breaker") {
			quota.Policy.Breaker = &quotav1.Breaker{Failures: int32(rapid.IntRange(1, 1000).Draw(t, "failures"))}
			if rapid.Bool().Draw(t, "closed") {
				quota.Policy.Breaker.Closed = durationpb.New(time.Duration(rapid.IntRange(1, 3600).Draw(t, "closed for")) * time.Second)
			}
		}
	}
	limit := rapid.Int64Range(0, MaxAmount).Draw(t, "limit")
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		every := rapid.SampledFrom([]string{"hour", "day", "month", "15m0s", "36h0m0s", "1.5s"}).Draw(t, "every")
		anchor := quotav1.Anchor(rapid.IntRange(0, 2).Draw(t, "anchor"))
		quota.Rule = &quotav1.Quota_Window{Window: &quotav1.Window{Limit: limit, Every: every, Anchor: anchor}}
	case 1:
		per := durationpb.New(time.Duration(rapid.Int64Range(1, 31*24*3600).Draw(t, "per")) * time.Second)
		burst := rapid.Int64Range(0, MaxAmount).Draw(t, "burst")
		quota.Rule = &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: per, Burst: burst}}
	case 2:
		quota.Rule = &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: limit}}
	}
	return quota
}

func TestParse_RefusesTooManyQuotas(t *testing.T) {
	one := "- {name: a, slots: {limit: 1}}\n"
	if _, err := Parse("many.yaml", []byte("quotas:\n"+strings.Repeat(one, MaxQuotas+1))); err == nil {
		t.Error("accepted more quotas than a request may carry")
	}
}

// FuzzParse: any input is either refused with problems or survives writing.
func FuzzParse(f *testing.F) {
	for _, folder := range []string{"accept", "reject", "meaning"} {
		paths, err := filepath.Glob(filepath.Join("testdata", folder, "*.yaml"))
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("fuzz.yaml", data)
		if err != nil {
			if _, ok := errors.AsType[*strictyaml.Problem](err); !ok {
				t.Fatalf("an error that is no problem: %v", err)
			}
			return
		}
		requireSameWhenWritten(t, file)
	})
}
