package realcluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestWorkflow_BackPressureReachesUpstream: a holder learns from answers that a holder downstream of it is limited, before it is limited
// itself.
func TestWorkflow_BackPressureReachesUpstream(t *testing.T) {
	cluster := start(t, 1)
	cluster.apply(rate("models", 10, time.Minute), slots("other", 9))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	steps := []*quotav1.WorkflowStep{
		{Holder: "triage"}, {Holder: "build", After: []string{"triage"}}, {Holder: "deploy", After: []string{"build"}},
	}
	_, err := cluster.admin().ApplyQuotas(ctx, &quotav1.ApplyQuotasRequest{
		Workflows: []*quotav1.Workflow{{Name: "release", Steps: steps}}, ReplaceWorkflows: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(holder, quota string, n int64) (*client.Lease, error) {
		return cluster.client(client.WithHolder(holder)).Reserve(ctx, client.ReserveRequest{Items: one(quota, n), Consume: quota == "models"})
	}
	if lease, err := ask("deploy", "models", 10); err != nil || lease.BackPressure() != nil {
		t.Fatalf("%v, %v", lease, err)
	}
	var refusal *client.RefusalError
	if _, err := ask("build", "models", 1); !errors.As(err, &refusal) || refusal.Reason != client.ReasonExhausted ||
		refusal.BackPressure.Side != client.Self {
		t.Fatalf("%v", err)
	}
	if _, err := ask("triage", "other", 1); !errors.Is(err, client.ReasonBackPressure) || !errors.As(err, &refusal) {
		t.Fatalf("%v", err)
	}
	if p := refusal.BackPressure; p.Workflow != "release" || p.Sequential || p.Step != "build" || p.Quota != "models" ||
		p.Side != client.Upstream || p.LimitedFor <= 0 {
		t.Errorf("%+v", p)
	}
	if lease, err := ask("deploy", "other", 1); err != nil || lease.BackPressure() == nil || lease.BackPressure().Side != client.Downstream {
		t.Errorf("%v, %v", lease, err)
	}
}
