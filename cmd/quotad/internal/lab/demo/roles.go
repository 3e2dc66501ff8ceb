package demo

import (
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/providertest"
)

// scale is how much faster than life the provider's hours pass: one lasts a minute.
const scale = 60

// hour is the provider's hour on our clock.
const hour = time.Hour / scale

// The provider's limits for each key, per hour of its own. quotas.yaml states the same ones to the cluster.
const (
	requestLimit    = 5_000
	completionLimit = 80
	tokenLimit      = 40_000
)

// model is what the agents ask for completions.
const model = "gpt-5"

// providerConfig is the provider, the same for both fleets.
func providerConfig(seed uint64) providertest.Config {
	return providertest.Config{
		Scale:  scale,
		Seed:   seed,
		GitHub: providertest.GitHub{Core: requestLimit, Latency: 8 * time.Millisecond},
		OpenAI: providertest.OpenAI{Requests: completionLimit, Tokens: tokenLimit, Per: time.Hour, Latency: 300 * time.Millisecond},
	}
}

// role is what one agent does: tasks of some reads and writes over and over, and beside them, at its own pace, thinking,
// which is one completion each time.
type role struct {
	// Name is the agent's, and the holder's.
	Name string
	// Class is its priority. quotas.yaml maps the names to classes; this one is for the report.
	Class client.Class
	// Every is how often a task begins, ThinkEvery how often a completion; 0: it does not think. One that is due while the
	// last still runs is left out.
	Every, ThinkEvery time.Duration
	// Reads and Writes are the requests of one task.
	Reads, Writes int
	// Parallel is how many reads are in flight at once.
	Parallel int
	// Paced: reads take from a local batch of a Limiter; otherwise every call goes through a Transport.
	Paced bool
	// Speaks is what its governed calls are made with, through a gateway, where the machine has it; empty: Go.
	Speaks language
}

// roles are the nine agents. Together they want about 115 requests and 2.2 completions a second, where the limits allow
// 83 and 1.3.
var roles = []role{
	{Name: "architect", Class: client.Critical, Every: 2 * time.Second, Reads: 6, Parallel: 2, ThinkEvery: 2 * time.Second, Speaks: curl},
	{Name: "specialist-1", Class: client.Standard, Every: time.Second, Reads: 13, Writes: 1, Parallel: 3},
	{Name: "specialist-2", Class: client.Standard, Every: 2 * time.Second, Reads: 26, Writes: 1, Parallel: 3, ThinkEvery: 2 * time.Second},
	{Name: "specialist-3", Class: client.Standard, Every: 2 * time.Second, Reads: 26, Writes: 1, Parallel: 3, ThinkEvery: 2 * time.Second},
	{
		Name: "specialist-4", Class: client.Standard, Every: 4 * time.Second, Reads: 52, Writes: 2, Parallel: 3, ThinkEvery: 4 * time.Second,
		Speaks: node,
	},
	{Name: "specialist-5", Class: client.Standard, Every: time.Second, Reads: 13, Writes: 1, Parallel: 3},
	{Name: "reviewer", Class: client.Standard, Every: 4 * time.Second, Reads: 40, Writes: 1, Parallel: 3, ThinkEvery: 4 * time.Second},
	{Name: "poller", Class: client.Background, Every: 5 * time.Second, Reads: 110, Parallel: 6, Paced: true},
	{
		Name: "digest", Class: client.Background, Every: 10 * time.Second, Reads: 90, Parallel: 4, Paced: true, ThinkEvery: 5 * time.Second,
		Speaks: python,
	},
}

// classes are the classes in their order, with their words.
var classes = []struct {
	class client.Class
	name  string
}{{client.Critical, "0 critical"}, {client.Standard, "1 standard"}, {client.Background, "2 background"}}

func roleOf(name string) (role, bool) {
	for _, r := range roles {
		if r.Name == name {
			return r, true
		}
	}
	return role{}, false
}

// mode is how a fleet shares its key.
type mode string

// The modes.
const (
	own      mode = "own"
	governed mode = "governed"
)

func (m mode) title() string {
	if m == governed {
		return "through quotad"
	}
	return "own backoff"
}

// key is the API key of the mode's fleet. Each has its own, and so limits of its own.
func (m mode) key() string { return "key-of-" + string(m) }
