package demo

import (
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/client/providertest"
)

// scale is how much faster than real time the provider's hours pass: one lasts a minute.
const scale = 60

// hour is the provider's hour in real time.
const hour = time.Hour / scale

// The provider's limits for each key, per hour of the provider. quotas.yaml gives the cluster the same limits.
const (
	requestLimit    = 5_000
	completionLimit = 80
	tokenLimit      = 40_000
)

// model is the model that the agents use for completions.
const model = "gpt-5"

// providerConfig is the provider's configuration, the same for both fleets.
func providerConfig(seed uint64) providertest.Config {
	return providertest.Config{
		Scale:  scale,
		Seed:   seed,
		GitHub: providertest.GitHub{Core: requestLimit, Latency: 8 * time.Millisecond},
		OpenAI: providertest.OpenAI{Requests: completionLimit, Tokens: tokenLimit, Per: time.Hour, Latency: 300 * time.Millisecond},
	}
}

// role is the work of one agent: repeated tasks of some reads and writes, and, in parallel and at its own pace, thinking,
// which is one completion each time.
type role struct {
	// Name is the name of the agent and of its holder.
	Name string
	// Class is its priority, for the report. quotas.yaml maps the names to classes for the cluster.
	Class client.Class
	// Every is the interval of tasks, ThinkEvery that of completions; 0: none. A tick that passes while the last task still
	// runs is skipped.
	Every, ThinkEvery time.Duration
	// Reads and Writes are the numbers of requests of one task.
	Reads, Writes int
	// Parallel is the number of concurrent reads.
	Parallel int
	// Paced: reads take from a local batch of a Limiter; otherwise every call goes through a Transport.
	Paced bool
	// Speaks is the program that makes its governed calls, through a gateway, if the machine has it; empty: Go.
	Speaks language
}

// roles are the nine agents. Their demand is about 115 requests and 2.2 completions a second; the limits allow 83 and 1.3.
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

// classes are the classes in descending order of priority, with their names.
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

// mode is the way in which a fleet shares its key.
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

// key is the API key of the mode's fleet. Each fleet has its own key, and so its own limits.
func (m mode) key() string { return "key-of-" + string(m) }
