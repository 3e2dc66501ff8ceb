package dedup

import (
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// Sessions and idempotency keys belong to the caller that made them: its token, even if the token's reach has changed.
// Without tokens callers are indistinguishable: a client that switches to another node may have another address there,
// so all of them count as one (docs/decisions/0038-own-sessions.md).

// isOwn reports whether an object belongs to the caller of the present command: by is its maker's reach, number its
// account.
func isOwn(at *Moment, command *logpb.Command, by string, number uint64) bool {
	if at.Level < levels.OwnSessions || by == "" || command.By == "" {
		return by == command.By
	}
	a := at.Accounts.Get(number)
	if a == nil || a.Name == "" { // made before callers had accounts, or when there were too many accounts
		return by == command.By
	}
	return a.Parent == 0 && a.Name == command.Caller
}

// keyName returns the full name of a command's idempotency key.
func keyName(at *Moment, command *logpb.Command) string {
	if at.Level < levels.OwnSessions || command.By == "" || command.Caller == "" {
		return sharedKey(command)
	}
	return command.Caller + "\x00" + command.IdempotencyKey // no reach looks like a caller's name
}

// sharedKey returns the full name of an idempotency key that callers of one reach share.
func sharedKey(command *logpb.Command) string { return command.By + "\x00" + command.IdempotencyKey }

// keyOf returns the full name of a command's idempotency key, and the result stored under it. It also finds a key from
// before keys belonged to callers.
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
