package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/jepsen/cluster"
	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// chunk is the size of a message of a backup, in bytes.
const chunk = 256 << 10

// restoreWithin bounds all attempts of a restore.
const restoreWithin = 30 * time.Second

// restoreWorking takes a backup while calls run, and restores it while they run. A runbook stops the holders first; without that nothing
// may break either: the epoch of the fences rises, and grants from in between are void.
func restoreWorking() Fault {
	return Fault{Name: "restore-while-working", do: func(
		ctx context.Context, e *Env, r *rand.Rand, hold func(context.Context),
	) (h hit, err error) {
		leader, _, err := e.leader(ctx)
		if err != nil {
			return h, err
		}
		h.targets = names(leader)
		backup, index, err := takeBackup(ctx, leader)
		if err != nil {
			return h, err
		}
		restore := history.Restore{Backup: index, File: fmt.Sprintf("backup-%d", index)}
		if err := os.WriteFile(filepath.Join(e.Folder, restore.File), backup, 0o600); err != nil {
			return h, err
		}
		hold(ctx)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreWithin)
		defer cancel()
		lost, err := e.takeLost(ctx)
		if err != nil {
			return h, err
		}
		before, err := e.Cluster.Restored()
		if err != nil {
			return h, err
		}
		restore.Began = history.Now()
		done, attempts, err := giveBackup(ctx, e, backup)
		if err != nil {
			settle(context.WithoutCancel(ctx), e)
		}
		restore.Ended = history.Now()
		places, placesErr := e.placesOf(ctx, before, done.GetMeta().GetIndex())
		for _, place := range places {
			each := restore
			each.Index = place
			h.restores = append(h.restores, &each)
		}
		if err := errors.Join(err, placesErr); err != nil {
			return h, err
		}
		last := h.restores[len(h.restores)-1]
		last.Epoch = done.Epoch
		h.seen = fmt.Sprintf("index %d restored at %d, epoch %d, attempt %d", index, last.Index, last.Epoch, attempts)
		return h, e.checkBack(ctx, lost, last)
	}}
}

// settle waits until no node has restored a backup for a while: an attempt that timed out may still be applied.
func settle(ctx context.Context, e *Env) {
	const quiet, most = 5 * time.Second, 30 * time.Second
	began, changed, seen := time.Now(), time.Now(), 0
	for time.Since(changed) < quiet && time.Since(began) < most {
		if places, err := e.Cluster.Restored(); err == nil && len(places) > seen {
			seen, changed = len(places), time.Now()
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// placesOf returns the indices at which backups were restored since before, from the nodes' logs. below is the index of the answer; if it
// is set, placesOf waits until the last restore is below it.
func (e *Env) placesOf(ctx context.Context, before []uint64, below uint64) (places []uint64, err error) {
	for {
		after, err := e.Cluster.Restored()
		if err != nil {
			return nil, err
		}
		places = slices.DeleteFunc(after, func(place uint64) bool { return slices.Contains(before, place) })
		if below == 0 || len(places) > 0 && places[len(places)-1] < below {
			return places, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no node says where the backup was restored: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// takeBackup takes a backup from the leader.
func takeBackup(ctx context.Context, leader *cluster.Node) (backup []byte, index uint64, err error) {
	stream, err := leader.Admin().Backup(ctx, &quotav1.BackupRequest{})
	if err != nil {
		return nil, 0, err
	}
	for stream.Receive() {
		backup = append(backup, stream.Msg().Chunk...)
		index = max(index, stream.Msg().Index)
	}
	err = errors.Join(stream.Err(), stream.Close())
	if err == nil && index == 0 {
		err = errors.New("the backup names no index")
	}
	return backup, index, err
}

// giveBackup makes the leader restore a backup, and repeats that until it succeeds, as in the runbook.
func giveBackup(ctx context.Context, e *Env, backup []byte) (done *quotav1.RestoreResponse, attempts int, err error) {
	for attempts = 1; ; attempts++ {
		if done, err = attemptRestore(ctx, e, backup); err == nil || ctx.Err() != nil {
			return done, attempts, err
		}
		wait(ctx, 50*time.Millisecond)
	}
}

func attemptRestore(ctx context.Context, e *Env, backup []byte) (*quotav1.RestoreResponse, error) {
	leader, err := e.Cluster.Leader(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := leader.Admin().Restore(ctx)
	if err != nil {
		return nil, err
	}
	for from := 0; from < len(backup) && err == nil; from += chunk {
		err = stream.Send(&quotav1.RestoreRequest{Chunk: backup[from:min(from+chunk, len(backup))]})
	}
	done, closeErr := stream.CloseAndReceive() // it says why a Send failed
	if closeErr != nil {
		return nil, closeErr
	}
	return done, err
}

// lostThings are a session and a lease that a restore takes back.
type lostThings struct {
	quota                 quotav1connect.QuotaServiceClient
	session, lease, fence uint64
}

// restorer is their holder.
const restorer = "restorer"

// takeLost opens a session and takes a lease, between backup and restore. Its calls are recorded and judged like the workload's.
func (e *Env) takeLost(ctx context.Context) (lost lostThings, err error) {
	leader, err := e.Cluster.AwaitLeader(ctx)
	if err != nil {
		return lost, err
	}
	lost.quota = quotav1connect.NewQuotaServiceClient(&http.Client{Transport: e.Recorded(restorer)}, leader.URL())
	opened, err := lost.quota.OpenSession(ctx, &quotav1.OpenSessionRequest{Holder: restorer})
	if err != nil {
		return lost, err
	}
	lost.session = opened.Session
	lease, err := lost.reserve(ctx, 1)
	lost.lease, lost.fence = lease.GetId(), lease.GetFence()
	return lost, err
}

// reserve takes a lease of a quota with enough room; seq 0: without a request ID.
func (l *lostThings) reserve(ctx context.Context, seq uint64) (*quotav1.Lease, error) {
	ask := &quotav1.ReserveRequest{Holder: restorer, Items: []*quotav1.Item{{Quota: "renewed"}}, Ttl: durationpb.New(time.Minute)}
	if seq != 0 {
		ask.RequestId = &quotav1.RequestId{Session: l.session, Seq: seq}
	}
	answer, err := l.quota.Reserve(ctx, ask)
	if err == nil && answer.GetLease() == nil {
		err = fmt.Errorf("a lease for the restore was not granted: %v", answer)
	}
	return answer.GetLease(), err
}

// checkBack checks that everything that a restore took back is void: the fence frees and renews nothing, and the session is unknown. New
// fences are higher, in the epoch that the restore returned.
func (e *Env) checkBack(ctx context.Context, lost lostThings, restore *history.Restore) error {
	reason := func(err error) quotav1.Reason {
		if err == nil {
			return quotav1.Reason_REASON_UNSPECIFIED
		}
		return quotav1.Reason(history.ErrorOf(err).Reason)
	}
	_, releaseErr := lost.quota.Release(ctx, &quotav1.ReleaseRequest{Lease: lost.lease, Fence: lost.fence})
	_, renewErr := lost.quota.Renew(ctx, &quotav1.RenewRequest{Lease: lost.lease, Fence: lost.fence})
	_, sessionErr := lost.reserve(ctx, 2)
	lease, err := lost.reserve(ctx, 0)
	if err != nil {
		return fmt.Errorf("nothing could be reserved after the restore: %w", err)
	}
	for _, is := range []struct {
		what string
		err  error
		want quotav1.Reason
	}{
		{"a Release by a fence that the restore took back", releaseErr, quotav1.Reason_REASON_STALE_FENCE},
		{"a Renew by a fence that the restore took back", renewErr, quotav1.Reason_REASON_STALE_FENCE},
		{"a request of a session that the restore took back", sessionErr, quotav1.Reason_REASON_UNKNOWN_SESSION},
	} {
		switch got := reason(is.err); {
		case got == is.want:
		case is.err != nil && (got == 0 || got >= quotav1.Reason_REASON_NO_LEADER):
			return fmt.Errorf("%s: %w", is.what, is.err) // another fault hit the call
		default:
			return brokenError(fmt.Sprintf("%s ended with %v, not with %v", is.what, is.err, is.want))
		}
	}
	if lease.Fence <= lost.fence || uint32(lease.Fence>>48) != restore.Epoch {
		return brokenError(fmt.Sprintf("fence %d was granted after fence %d and a restore to epoch %d", lease.Fence, lost.fence, restore.Epoch))
	}
	_, err = lost.quota.Release(ctx, &quotav1.ReleaseRequest{Lease: lease.Id, Fence: lease.Fence})
	return err
}
