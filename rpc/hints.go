package rpc

import (
	"strings"

	"github.com/quotad/quotad/fsm/logpb"
)

// hints has other wordings for hints and advice of the state machine, by reason; messages has them for its messages. These texts are part
// of its results: nodes that apply the same entries must make the same results, and recorded histories are compared by them. So a text is
// improved here and not there. Names and numbers within a text stay.
var hints = map[logpb.Reason]*strings.Replacer{ //nolint:exhaustive // other texts stay as they are
	logpb.Reason_REASON_STALE_FENCE: strings.NewReplacer(
		"stop using it and reserve anew", "stop using it and reserve again",
		"another attempt may be under way", "another attempt may be running",
	),
	logpb.Reason_REASON_UNKNOWN_LEASE: strings.NewReplacer("it may have ended by itself", "it has ended, or never existed"),
	logpb.Reason_REASON_INVALID: strings.NewReplacer(
		"found the cluster again from a backup", "restore a backup into a new cluster",
	),
	logpb.Reason_REASON_ITEM_CLOSED:   strings.NewReplacer("reserve anew", "reserve again"),
	logpb.Reason_REASON_TASKS_FULL:    forgetTasks,
	logpb.Reason_REASON_CALLER_BUDGET: forgetTasks,
	logpb.Reason_REASON_TASK_SHELVED: strings.NewReplacer(
		"see why, then put it back with quotad task retry", "find the cause, then run quotad task retry",
	),
	logpb.Reason_REASON_TASK_IN_FLIGHT: strings.NewReplacer(
		"it ends by itself at the latest then, if nothing is heard of it",
		"an attempt is running; it is lost at its deadline unless it is renewed",
	),
	logpb.Reason_REASON_SEQUENTIAL: strings.NewReplacer(
		" goes one at a time, and it is the turn of ", " runs one step at a time, and ",
		": wait in the queue", " has the baton: wait in the queue",
	),
}

// advice has other wordings for advice of every reason.
var advice = strings.NewReplacer(
	"come back then", "retry at that time",
	"what is left is kept for others", "the rest is kept for other callers",
)

var forgetTasks = strings.NewReplacer(
	"forget those that are shelved and not wanted any more; done ones go by themselves",
	"forget shelved tasks that are no longer needed; done tasks are forgotten after 7 days by default",
)

var messages = strings.NewReplacer(
	" are not both slots, or both not", " must both be slots, or neither",
	": turn must be ", ": baton_time must be ",
	"too few members told the time", "fewer than a majority of the members reported their clocks",
	"the time of day cannot be moved on any further", "the time of day cannot move any further",
	" has slots: held is in use, there is nothing to consume", " has slots, which are held and never consumed",
)

// messageFor returns a failure's message in its wording for callers.
func messageFor(f *logpb.Failure) string { return messages.Replace(f.Message) }

// hintFor returns a hint of the state machine in its wording for callers.
func hintFor(reason logpb.Reason, text string) string {
	if replacer, ok := hints[reason]; ok {
		text = replacer.Replace(text)
	}
	return advice.Replace(text)
}
