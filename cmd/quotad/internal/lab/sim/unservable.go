package sim

import (
	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/fsm/logpb"
)

// Unservable is an agent whose call quotad can never grant with the given quotas.
type Unservable struct {
	// Agent is the description's name; Quota is the obstacle.
	Agent  string `json:"agent"`
	Quota  string `json:"quota"`
	Reason string `json:"reason"`
	Advice string `json:"advice"`
}

// FindUnservable asks the state machine itself, with nothing in use, for one call of each agent, and for the prompt that an
// attempt loads. It returns an error if the quotas cannot be applied.
func FindUnservable(f *fleet.Fleet) ([]Unservable, error) {
	if _, err := fresh(f); err != nil {
		return nil, err
	}
	var all []Unservable
	for _, kind := range f.Agents {
		asks := []*logpb.Reserve{{Items: itemsFor(kind.Uses, int64(max(kind.Hold, 1))), Consume: kind.Hold == 0}}
		if kind.Retry != nil && len(kind.Retry.Load) > 0 {
			asks = append(asks, &logpb.Reserve{Items: itemsFor(kind.Retry.Load, 1), Consume: true})
		}
		for _, reserve := range asks {
			reserve.Holder = kind.Holders()[0]
			refusal, err := refusalOf(f, kind, reserve)
			if err != nil {
				return nil, err
			}
			if refusal != nil && refusal.RetryAtNs == 0 {
				all = append(all, Unservable{Agent: kind.Name, Quota: refusal.Quota, Reason: reasonWord(refusal.Reason), Advice: refusal.Advice})
			}
		}
	}
	return all, nil
}

// refusalOf returns the refusal of one Reserve in a state in which nothing is used and only this agent has holder rules;
// nil: it is granted.
func refusalOf(f *fleet.Fleet, kind *fleet.Agent, reserve *logpb.Reserve) (*logpb.Refusal, error) {
	alone, only := *kind, *f
	alone.Name, alone.Count = reserve.Holder, 1
	only.Agents = []*fleet.Agent{&alone}
	w, err := fresh(&only)
	if err != nil {
		return nil, err
	}
	result, err := w.enter(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: reserve}})
	return result.GetRefusal(), err
}

// fresh returns a cluster with a fleet's quotas, workflows and rules, and nothing else.
func fresh(f *fleet.Fleet) (*world, error) {
	s := &schedule{}
	w := &world{schedule: s, fleet: f, cluster: newCluster(s, f.Cluster, f.Begins, newDice(1, "cluster"))}
	return w, w.found()
}

func reasonWord(reason logpb.Reason) string { return reason.String()[len("REASON_"):] }
