package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// kit is the cluster, and the recorder between it and the client under test.
type kit struct {
	cluster *cluster
	seen    *recorder
	runs    int
}

func newKit(dir string) (*kit, error) {
	seen := &recorder{}
	c, err := startCluster(dir, seen)
	if err != nil {
		return nil, err
	}
	return &kit{cluster: c, seen: seen}, nil
}

func (k *kit) close() { k.cluster.stop() }

// run runs a case with a new driver process.
func (k *kit) run(c testCase, command []string) error {
	k.runs++
	k.seen.reset()
	d, err := startDriver(command)
	if err != nil {
		return err
	}
	defer d.stop()
	if err := connect(d, k.cluster.addresses()); err != nil {
		return err
	}
	err = c.run(k, d)
	k.seen.set(nil)
	if err != nil {
		return err
	}
	k.seen.mu.Lock()
	err = k.seen.unread
	k.seen.mu.Unlock()
	if err != nil {
		return err
	}
	return audit(k.seen.of(func(*quotav1.Command) bool { return true }))
}

func connect(d *driver, addresses []string) error {
	var nodes []string
	for _, address := range addresses {
		nodes = append(nodes, "http://"+address)
	}
	a, err := d.call(request{Do: doConnect, Nodes: nodes, Holder: "conformance"})
	if err != nil {
		return err
	}
	return expect(a, applied, "connect")
}

// operating bounds the kit's own requests to the cluster.
const operating = time.Minute

// apply creates a quota for one case, so that cases do not affect each other.
func (k *kit) apply(name string, set func(*quotav1.Quota)) (string, error) {
	quota := &quotav1.Quota{Name: fmt.Sprintf("kit/%d/%s", k.runs, name)}
	set(quota)
	return quota.Name, k.retry("apply a quota", func(ctx context.Context) error {
		admin, err := k.cluster.admin()
		if err != nil {
			return err
		}
		_, err = admin.ApplyQuotas(ctx, &quotav1.ApplyQuotasRequest{Quotas: []*quotav1.Quota{quota}})
		return err
	})
}

// rate creates a quota with a limit per hour.
func (k *kit) rate(name string, limit int64) (string, error) {
	return k.apply(name, func(q *quotav1.Quota) {
		q.Rule = &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: limit, Per: durationpb.New(time.Hour)}}
	})
}

// quota reads a quota, bypassing the proxies.
func (k *kit) quota(name string) (quota *quotav1.QuotaStatus, err error) {
	err = k.retry("read a quota", func(ctx context.Context) error {
		quotas, err := k.cluster.quotas()
		if err != nil {
			return err
		}
		response, err := quotas.GetQuota(ctx, &quotav1.GetQuotaRequest{Name: name})
		quota = response.GetQuota()
		return err
	})
	return quota, err
}

// retry repeats an idempotent request while the cluster elects a leader.
func (k *kit) retry(what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), operating)
	defer cancel()
	var last error
	if err := eventually("the kit could "+what, func() bool {
		last = f(ctx)
		return last == nil || ctx.Err() != nil
	}); err != nil {
		return err
	}
	if last != nil {
		return fmt.Errorf("the kit could not %s: %w", what, last)
	}
	return nil
}

// held checks the amount of a quota that leases hold.
func (k *kit) held(name string, want int64) error {
	quota, err := k.quota(name)
	if err != nil {
		return err
	}
	if quota.GetHeld() != want {
		return fmt.Errorf("%d of the quota are held by leases, and the client was granted %d", quota.GetHeld(), want)
	}
	return nil
}

// expect checks an outcome.
func expect(a answer, outcome, what string) error {
	if a.Outcome != outcome {
		return fmt.Errorf("%s: outcome %q (reason %q, error %q), want %q", what, a.Outcome, a.Reason, a.Error, outcome)
	}
	return nil
}

// reserve requests one unit of a quota and expects an outcome.
func reserve(d *driver, quota, outcome string) (answer, error) {
	a, err := d.call(request{Do: doReserve, Items: []item{{quota, 1}}, TTL: 600_000, Within: 60_000})
	if err == nil {
		err = expect(a, outcome, "reserve 1 of "+quota)
	}
	return a, err
}
