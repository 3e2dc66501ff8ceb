package dedup

import (
	"fmt"
	"math"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// Records calls fn for each session, stored result and idempotency key in a fixed order, until it returns false. It
// returns whether it never did. A key's record has the end of its life.
func (t *Table) Records(keyLife int64, fn func(*logpb.SnapshotRecord) bool) bool {
	going := true
	encode := func(_ uint64, s *session) bool {
		encoded := &logpb.SnapshotSession{
			Id: s.id, Holder: s.holder, AckedBelow: s.ackedBelow, UsedNs: s.used, By: s.by, Account: s.account, Ended: s.ended,
		}
		if !s.ended && s.listed != s.used { // an ended one is not listed
			encoded.ListedNs = &s.listed
		}
		going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Session{Session: encoded}})
		return going
	}
	t.sessions.Scan(encode)
	if going {
		t.ended.Scan(encode)
	}
	if going {
		t.results.Scan(func(r sessionResult) bool {
			going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Result{Result: &logpb.SnapshotResult{
				Session: r.session, Seq: r.seq, Digest: r.digest, Result: r.result,
			}}})
			return going
		})
	}
	if going {
		t.keys.Scan(func(key string, k keyResult) bool {
			encoded := &logpb.SnapshotKey{Key: key, Digest: k.digest, Result: k.result, Account: k.account}
			if encoded.UntilNs = fixed.AddSaturated(k.made, keyLife); encoded.UntilNs == math.MaxInt64 {
				encoded.UntilNs, encoded.MadeNs = 0, &k.made
			}
			going = fn(&logpb.SnapshotRecord{Kind: &logpb.SnapshotRecord_Key{Key: encoded}})
			return going
		})
	}
	return going
}

// leftoverVersion is the last version of snapshots that may hold results without a session. In it, an ended session
// left results of requests numbered from 2^63 on.
const leftoverVersion = 1

// DropLeftover reports whether a record is a result without a session in a snapshot version that may have some. It
// counts these.
func (t *Table) DropLeftover(version uint32, record *logpb.SnapshotRecord) bool {
	if record.GetResult() == nil || version > leftoverVersion {
		return false
	}
	_, known := t.sessions.Get(record.GetResult().Session)
	if !known {
		t.dropped++
	}
	return !known
}

// Dropped returns how many results without a session DropLeftover found.
func (t *Table) Dropped() int { return t.dropped }

// EnterSession enters a session, without its results.
func (t *Table) EnterSession(at Moment, encoded *logpb.SnapshotSession) error {
	s := &session{
		Made: cow.In(at.Generation), id: encoded.Id, holder: encoded.Holder, ackedBelow: encoded.AckedBelow, used: encoded.UsedNs,
		listed: encoded.UsedNs, by: encoded.By, account: encoded.Account, ended: encoded.Ended,
	}
	if s.ended {
		if s.account != 0 && at.Accounts.Get(s.account) == nil { // its results are charged to it
			return fmt.Errorf("session %d, which has ended, is charged to account %d, which does not exist", s.id, s.account)
		}
		t.ended.Set(s.id, s)
		return nil
	}
	if encoded.ListedNs != nil {
		s.listed = *encoded.ListedNs
	}
	if err := at.Accounts.ChargeOne(s.account, accounts.Sessions); err != nil {
		return err
	}
	t.sessions.Set(s.id, s)
	t.use.Set(due{At: s.listed, ID: s.id})
	return nil
}

// EnterResult enters a stored result. It marks the session if the result is still to leave.
func (t *Table) EnterResult(at Moment, names *entry.Names, encoded *logpb.SnapshotResult) error {
	s := t.ownerOf(encoded.Session)
	if s == nil || encoded.Result == nil {
		return fmt.Errorf("a result of session %d, which does not exist", encoded.Session)
	}
	if !s.ended && encoded.Seq < s.ackedBelow {
		t.acked.Set(s.id, struct{}{})
	}
	s.kept++
	names.ShareResult(encoded.Result)
	t.keepResult(&at, s, sessionResult{session: encoded.Session, seq: encoded.Seq, digest: encoded.Digest, result: encoded.Result})
	return nil
}

// EnterKey enters an idempotency key.
func (t *Table) EnterKey(at Moment, names *entry.Names, encoded *logpb.SnapshotKey) error {
	if encoded.Result == nil {
		return fmt.Errorf("an idempotency key without a result")
	}
	if encoded.Account != 0 && at.Accounts.Get(encoded.Account) == nil {
		return fmt.Errorf("an idempotency key is charged to account %d, which does not exist", encoded.Account)
	}
	made := encoded.UntilNs - at.Accounts.Limits.KeyLife
	if encoded.MadeNs != nil {
		made = *encoded.MadeNs
	}
	names.ShareResult(encoded.Result)
	t.keepKey(at.Accounts, encoded.Key, keyResult{digest: encoded.Digest, result: encoded.Result, made: made, account: encoded.Account})
	return nil
}
