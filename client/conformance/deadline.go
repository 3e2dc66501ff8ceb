package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

func deadlines(k *kit, d *driver) error {
	if err := late(k, d); err != nil {
		return err
	}
	// A deadline may be up to a second short, and a busy machine may lose that time. A client that ignores served_in is short every
	// time.
	var err error
	for try := range 3 {
		if err = waited(k, d, fmt.Sprintf("waited-%d", try)); err == nil || !errors.Is(err, errShort) {
			return err
		}
	}
	return err
}

// errShort: a client ends a lease long before it is over.
var errShort = errors.New("the client counts the lease as over too early")

// late checks that a deadline counts from before the send: a late answer does not move it.
func late(k *kit, d *driver) error {
	const onTheWay = 1500 * time.Millisecond
	quota, err := k.rate("late", 1_000)
	if err != nil {
		return err
	}
	takes := reservesOf(quota)
	k.seen.set(func(e *exchange) fate {
		if e.carries(takes) {
			return fate{late: onTheWay}
		}
		return fate{}
	})
	a, err := d.call(request{Do: doReserve, Items: []item{{quota, 1}}, TTL: 20_000, Within: 60_000})
	k.seen.set(nil)
	if err == nil {
		err = expect(a, applied, "a Reserve whose answer is on its way for 1.5 s")
	}
	if err != nil {
		return err
	}
	asked := time.Now()
	left, err := d.call(request{Do: doLeft, Lease: a.Lease})
	if err != nil {
		return err
	}
	var end time.Time // the lease's latest end
	for _, s := range k.seen.of(takes) {
		if lease := s.result.GetReserve().GetLease(); lease != nil {
			if at := s.answered.Add(lease.GetExpiresIn().AsDuration()); at.After(end) {
				end = at
			}
		}
	}
	if over := asked.Add(time.Duration(left.Left) * time.Millisecond).Sub(end); over > 0 {
		return fmt.Errorf("the client counts the lease as live %v after it ended: a deadline counts from before the send, not from the answer",
			over.Round(time.Millisecond))
	}
	return nil
}

// waited checks that served_in is added: a Reserve that waited in the queue has its whole lease left.
func waited(k *kit, d *driver, name string) error {
	const inTheQueue, short = 5 * time.Second, 2 * time.Second
	quota, err := k.apply(name, func(q *quotav1.Quota) { q.Rule = &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: 1}} })
	if err != nil {
		return err
	}
	free, err := k.hold(quota)
	if err != nil {
		return err
	}
	p, err := d.begin(request{Do: doReserve, Items: []item{{quota, 1}}, TTL: 30_000, Wait: 60_000, Within: 90_000})
	if err != nil {
		return err
	}
	if err := eventually("the Reserve waits", func() bool {
		status, err := k.quota(quota)
		return err == nil && status.GetWaiting() == 1
	}); err != nil {
		return err
	}
	<-time.After(inTheQueue)
	if err := free(); err != nil {
		return err
	}
	a, err := p.wait()
	if err == nil {
		err = expect(a, applied, "a Reserve that waits in the queue")
	}
	if err != nil {
		return err
	}
	left, err := d.call(request{Do: doLeft, Lease: a.Lease})
	if err != nil {
		return err
	}
	counted := time.Now().Add(time.Duration(left.Left) * time.Millisecond)
	answered := granted(k.seen.of(reservesOf(quota)))
	if answered == nil {
		return errors.New("the client has a lease, and the proxy saw none")
	}
	end := answered.arrived.Add(answered.servedIn + answered.result.GetReserve().GetLease().GetExpiresIn().AsDuration())
	if early := end.Sub(counted); early > short {
		return fmt.Errorf("%w: by %v, after a call that was served in %v",
			errShort, early.Round(time.Millisecond), answered.servedIn.Round(time.Millisecond))
	}
	return nil
}

// hold takes all of a quota of slots, until the returned function releases it.
func (k *kit) hold(quota string) (free func() error, err error) {
	var lease *quotav1.Lease
	err = k.retry("take the slot", func(ctx context.Context) error {
		quotas, err := k.cluster.quotas()
		if err != nil {
			return err
		}
		one := int64(1)
		response, err := quotas.Reserve(ctx, &quotav1.ReserveRequest{
			Holder: "kit", Items: []*quotav1.Item{{Quota: quota, Amount: &one}}, Ttl: durationpb.New(operating),
		})
		if lease = response.GetLease(); err == nil && lease == nil {
			err = errors.New("it is taken")
		}
		return err
	})
	return func() error {
		return k.retry("give the slot back", func(ctx context.Context) error {
			quotas, err := k.cluster.quotas()
			if err != nil {
				return err
			}
			_, err = quotas.Release(ctx, &quotav1.ReleaseRequest{Lease: lease.GetId(), Fence: lease.GetFence()})
			return err
		})
	}, err
}
