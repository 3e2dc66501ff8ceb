package live_test

import (
	"os"
	"testing"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/live"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/local/localtest"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
)

// TestMain runs quotad if the arguments are those of quotad: a run starts its own binary, which is this test binary.
func TestMain(m *testing.M) { localtest.Main(m) }

func writers(t *testing.T) *fleet.Fleet {
	t.Helper()
	f, err := fleet.Read("testdata/six-writers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func play(t *testing.T, f *fleet.Fleet, side sim.Side) *live.Outcome {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o, err := live.Run(t.Context(), f, side, live.Setting{Binary: binary, Dir: t.TempDir(), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestRun_SixWritersWithKilledLeader: with real nodes whose leader is killed, a real provider and real clients, all work
// gets done, and the provider never sees more than its limit.
func TestRun_SixWritersWithKilledLeader(t *testing.T) {
	f := writers(t)
	o := play(t, f, sim.Governed)
	writes := o.Quotas[0]
	if o.Refused != 0 || writes.Refused != 0 || writes.Peak > writes.Limit {
		t.Errorf("the provider refused %d; in one period it saw %d of %d", writes.Refused, writes.Peak, writes.Limit)
	}
	if o.Finish == 0 || o.Served != 78 || writes.Total != 78 || len(o.Seen) != 78 || o.Retries != 0 || o.GivenUp != 0 {
		t.Errorf("finished after %v: served %d, admitted %d, arrived %d, retries %d, given up %d",
			o.Finish, o.Served, writes.Total, len(o.Seen), o.Retries, o.GivenUp)
	}
	if len(o.Kills) != 1 || o.Kills[0].Heir == o.Kills[0].Node {
		t.Errorf("kills: %+v", o.Kills)
	}
	for _, h := range o.Holders {
		if h.Served != 13 || h.Tasks != 1 {
			t.Errorf("%+v", h)
		}
	}
}

// TestRun_SixWritersAloneAreRefused: the same provider refuses calls without quotad, so a run without refusals is meaningful.
func TestRun_SixWritersAloneAreRefused(t *testing.T) {
	f := writers(t)
	for _, a := range f.Agents {
		a.Calls, a.Parallel = 4, 4 // 24 concurrent calls
	}
	f.Alone.First, f.Alone.Pause = f.Network.Most, f.Network.Most
	o := play(t, f, sim.Alone)
	writes := o.Quotas[0]
	if o.Refused == 0 || o.Refused != writes.Refused || o.Retries != o.Refused || int64(len(o.Seen)) != o.Attempts {
		t.Errorf("refused %d, counted %d; retries %d; arrived %d of %d", o.Refused, writes.Refused, o.Retries, len(o.Seen), o.Attempts)
	}
	if o.Served != 24 || writes.Total != 24 || o.Finish == 0 {
		t.Errorf("served %d, admitted %d, finished after %v", o.Served, writes.Total, o.Finish)
	}
}

// TestRun_EveryKindOfQuota: calls on quotas of every kind use less than estimated. The client's settlements and reports leave
// room for the remaining calls.
func TestRun_EveryKindOfQuota(t *testing.T) {
	f, err := fleet.Parse("kinds", []byte(`
for: 5m
quotas:
  - {name: github/core, window: {limit: 24, every: hour, anchor: provider}}
  - {name: tokens, rate: {limit: 2400, per: 1h}, spend_by: 1m}
  - {name: streams, slots: {limit: 2}}
network: 1ms-2ms
agents:
  - name: one
    count: 3
    tasks: 1
    calls: 8
    use: {github/core: 1, tokens: {estimate: 300, actual: 50-100}, streams: 1}
    latency: 5ms-20ms
    patience: forever
`))
	if err != nil {
		t.Fatal(err)
	}
	o := play(t, f, sim.Governed)
	if o.Served != 24 || o.Refused != 0 || o.Retries != 0 || o.Finish == 0 {
		t.Errorf("served %d, refused %d, retries %d, finished after %v", o.Served, o.Refused, o.Retries, o.Finish)
	}
	core, tokens, streams := o.Quotas[0], o.Quotas[1], o.Quotas[2]
	if core.Total != 24 || streams.Peak > 2 || tokens.Total < 24*50 || tokens.Total > 24*100 {
		t.Errorf("the provider counted %+v, %+v, %+v", core, tokens, streams)
	}
}

// TestRun_RefusesAgentThatHolds: Run rejects a fleet that it cannot run at once.
func TestRun_RefusesAgentThatHolds(t *testing.T) {
	f := writers(t)
	f.Agents[0].Hold = 3
	if _, err := live.Run(t.Context(), f, sim.Alone, live.Setting{}); err == nil {
		t.Error("an agent that holds calls ahead was run")
	}
}
