package demo

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"
)

// tally adds up the events of one fleet's agents. It is safe for concurrent use.
type tally struct {
	mu     sync.Mutex
	agents map[string]*agentTally
}

// agentTally adds up the events of one agent.
type agentTally struct {
	Ready    bool                    `json:"ready"`
	Outcomes map[api]map[outcome]int `json:"outcomes"`
	Waits    map[api][]time.Duration `json:"-"`
	// Tasks is the number of finished tasks, Missed the number of skipped ones.
	Tasks  int `json:"tasks"`
	Missed int `json:"missed"`
	// MostTries is the highest number of attempts of one call.
	MostTries int `json:"mostTries"`
	// Failure is the last failure that was not a limit.
	Failure string `json:"failure,omitempty"`
	// Garbled is the number of lines that could not be parsed.
	Garbled int `json:"garbled,omitempty"`
}

func newTally() *tally {
	t := &tally{agents: make(map[string]*agentTally)}
	for _, r := range roles {
		a := &agentTally{Outcomes: make(map[api]map[outcome]int), Waits: make(map[api][]time.Duration)}
		for _, which := range []api{github, openai} {
			a.Outcomes[which] = make(map[outcome]int)
		}
		t.agents[r.Name] = a
	}
	return t
}

// hear adds one line of an agent.
func (t *tally) hear(agent string, line []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.agents[agent]
	var e event
	if json.Unmarshal(line, &e) != nil {
		a.Garbled++
		return
	}
	switch e.Kind {
	case agentReady:
		a.Ready = true
	case taskEnded:
		a.Tasks++
	case taskMissed:
		a.Missed++
	case callEnded:
		if a.Outcomes[e.API] == nil {
			a.Garbled++
			return
		}
		a.Outcomes[e.API][e.Outcome]++
		a.Waits[e.API] = append(a.Waits[e.API], e.Wait)
		a.MostTries = max(a.MostTries, e.Tries)
		if e.Outcome == failed || e.Outcome == refused {
			a.Failure = e.Detail
		}
	default:
		a.Garbled++
	}
}

// count returns the number of the agent's calls with an outcome.
func (a agentTally) count(o outcome) int {
	return a.Outcomes[github][o] + a.Outcomes[openai][o]
}

// one returns a copy of one agent's tally.
func (t *tally) one(agent string) agentTally {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := *t.agents[agent]
	c.Outcomes, c.Waits = make(map[api]map[outcome]int), make(map[api][]time.Duration)
	for which, outcomes := range t.agents[agent].Outcomes {
		c.Outcomes[which] = maps.Clone(outcomes)
		c.Waits[which] = slices.Clone(t.agents[agent].Waits[which])
	}
	return c
}

// all returns a copy of every agent's tally.
func (t *tally) all() map[string]agentTally {
	all := make(map[string]agentTally, len(roles))
	for _, r := range roles {
		all[r.Name] = t.one(r.Name)
	}
	return all
}

// quantile returns the smallest wait that at least a fraction q of the waits does not exceed; 0 if there are none. It sorts
// the waits.
func quantile(waits []time.Duration, q float64) time.Duration {
	if len(waits) == 0 {
		return 0
	}
	slices.Sort(waits)
	at := int(q*float64(len(waits)) + 0.999999)
	return waits[min(max(at, 1), len(waits))-1]
}

// jain is Jain's fairness index: 1 if all shares are equal, 1/n if one has everything.
func jain(shares []int) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum += float64(s)
		squares += float64(s) * float64(s)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}
