package dedup

import (
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// Sessions and idempotency keys belong to the caller that made them: its token, whatever reach that has by now. Without tokens nobody knows
// callers apart: a client that moves on to another node may come from another address there, so all of them are one
// (docs/decisions/0038-own-sessions.md).

// isOwn tells whether what a caller of some reach made, and an account is charged with, is the present command's caller's.
func isOwn(at *Moment, command *logpb.Command, by string, number uint64) bool {
	if at.Level < levels.Own || by == "" || command.By == "" {
		return by == command.By
	}
	a := at.Accounts.Get(number)
	if a == nil || a.Name == "" { // made before callers had accounts, or where there were too many of them
		return by == command.By
	}
	return a.Parent == 0 && a.Name == command.Caller
}

// keyName returns the full name of a command's idempotency key.
func keyName(at *Moment, command *logpb.Command) string {
	if at.Level < levels.Own || command.By == "" || command.Caller == "" {
		return sharedKey(command)
	}
	return command.Caller + "\x00" + command.IdempotencyKey // no reach is like a caller's name
}

// sharedKey returns the full name of an idempotency key that callers of one reach share.
func sharedKey(command *logpb.Command) string { return command.By + "\x00" + command.IdempotencyKey }

// keyOf returns the full name of a command's idempotency key, and what is remembered under it. Where a caller used the key before keys were
// callers', that is found too.
func (t *Table) keyOf(at *Moment, command *logpb.Command) (key string, known keyResult, isKnown bool) {
	key = keyName(at, command)
	if known, ok := t.keys.Get(key); ok && known.lives(at) {
		return key, known, true
	}
	shared := sharedKey(command)
	if shared == key {
		return key, keyResult{}, false
	}
	known, ok := t.keys.Get(shared)
	return key, known, ok && known.lives(at) && isOwn(at, command, command.By, known.account)
}
