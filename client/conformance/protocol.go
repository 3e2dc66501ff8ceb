package main

// request is one command to a driver: a line of JSON on its standard input. README.md describes the commands.
type request struct {
	ID       int64     `json:"id"`
	Do       string    `json:"do"`
	Nodes    []string  `json:"nodes,omitempty"`
	Holder   string    `json:"holder,omitempty"`
	Items    []item    `json:"items,omitempty"`
	Lease    string    `json:"lease,omitempty"`
	TTL      int64     `json:"ttl_ms,omitempty"`
	Wait     int64     `json:"wait_ms,omitempty"`
	Within   int64     `json:"within_ms,omitempty"`
	Consume  bool      `json:"consume,omitempty"`
	Commands []request `json:"commands,omitempty"`
}

// item is an amount of one quota.
type item struct {
	Quota  string `json:"quota"`
	Amount int64  `json:"amount"`
}

// answer is the outcome of a command: a line of JSON on the driver's standard output.
type answer struct {
	ID         int64    `json:"id"`
	Outcome    string   `json:"outcome"`
	Reason     string   `json:"reason,omitempty"`
	Quota      string   `json:"quota,omitempty"`
	RetryAfter *int64   `json:"retry_after_ms,omitempty"`
	Lease      string   `json:"lease,omitempty"`
	Left       int64    `json:"left_ms"`
	Results    []answer `json:"results,omitempty"`
	Error      string   `json:"error,omitempty"`
}

// The commands.
const (
	doConnect = "connect"
	doReserve = "reserve"
	doConsume = "consume"
	doRenew   = "renew"
	doRelease = "release"
	doLeft    = "left"
	doBatch   = "batch"
)

// The outcomes.
const (
	// applied: it was carried out.
	applied = "applied"
	// refused: the answer is "no"; nothing changed.
	refused = "refused"
	// rejected: the command itself is wrong, permanently; nothing changed.
	rejected = "rejected"
	// notAccepted: it certainly had no effect.
	notAccepted = "not_accepted"
	// unknown: it may have had an effect.
	unknown = "unknown"
)
