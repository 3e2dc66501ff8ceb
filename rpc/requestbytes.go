package rpc

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quotad/quotad/raftnode/budget"
	"github.com/quotad/quotad/rpc/processor"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// DefaultRequestBytes is the default for the memory that requests may take, in bytes.
const DefaultRequestBytes = 256 << 20

const (
	// smallMessage is the longest message of most procedures, in bytes: the longest valid ones have about 20 KB.
	smallMessage = 64 << 10
	// perByte is how many bytes of memory one byte of a request counts as: it is read into a buffer that doubles, and decoded. A message of
	// at most mostParts parts takes no more, nor does an answer with its text as JSON.
	perByte = 8
	// unpackerBytes is the memory of an unpacker itself.
	unpackerBytes = 64 << 10
	// readStep is how many bytes are read at once.
	readStep = 4 << 10
)

// longMessages are the procedures with longer messages: many commands, a whole configuration, and a chunk of a backup.
var longMessages = map[string]int64{
	quotav1connect.QuotaServiceBatchProcedure:       maxMessage,
	quotav1connect.AdminServiceApplyQuotasProcedure: maxMessage,
	quotav1connect.AdminServiceRestoreProcedure:     maxMessage,
}

// longestMessage returns the maximum length of a procedure's message, unpacked, in bytes.
func longestMessage(procedure string) int64 {
	if longest, ok := longMessages[procedure]; ok {
		return longest
	}
	return smallMessage
}

// A message within a message takes more memory than its bytes: an empty one has two bytes. These bound the parts of one request.
const (
	mostParts     = 1024
	mostLongParts = maxBatch * (maxItems + 8)
)

// longRequests are the types of requests that may have mostLongParts.
var longRequests = map[protoreflect.Name]bool{"BatchRequest": true, "ApplyQuotasRequest": true}

// partsOf returns how many parts a message of a type may have.
func partsOf(of protoreflect.MessageDescriptor) int {
	if longRequests[of.Name()] {
		return mostLongParts
	}
	return mostParts
}

// newRequestBytes makes the budget of the memory that requests take while they are read and served, and answers until they are written.
// An eighth is kept for operators.
func newRequestBytes(capacity int64) *budget.Budget {
	return budget.New("request_bytes", capacity, capacity/8, capacity/64)
}

// requestBytes is what one call has of the budget. It takes memory before that is used. It returns all of it when the call ends, or, in a
// stream, when a message has been received or sent.
type requestBytes struct {
	from     *budget.Budget
	account  string
	operator bool
	// refused makes the error of a refusal.
	refused func(*budget.FullError) error
	// share is charged for what is read.
	share *processor.Call

	mu sync.Mutex // a handler may read a stream in another goroutine
	// has is the memory that was taken, used the part of it that was needed.
	has, used int64
}

// require takes the memory that is missing for n more bytes.
func (b *requestBytes) require(n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	missing := b.used + n*perByte - b.has
	if missing <= 0 {
		return nil
	}
	if full := b.from.Take(b.account, missing, b.operator); full != nil {
		return b.refused(full)
	}
	b.has += missing
	return nil
}

// use counts n bytes for which room was required.
func (b *requestBytes) use(n int) {
	b.mu.Lock()
	b.used += int64(n) * perByte
	b.mu.Unlock()
	b.share.ChargeRead(n)
}

// reserve takes room for an answer of n bytes before the call does anything. A request and answer without room even for a caller that is
// alone are too large: a retry would not help.
func (b *requestBytes) reserve(n int) error {
	b.mu.Lock()
	fits := b.used+int64(n)*perByte <= b.from.Alone()
	b.mu.Unlock()
	if !fits {
		return tooLargeError(fmt.Sprintf("the request and its answer of up to %d bytes take more memory than a caller may have", n))
	}
	return b.require(int64(n))
}

// answer takes the memory for an encoded answer of n bytes, and returns what was reserved beyond that. The memory stays taken until
// giveBack. An answer that must be sent is charged even without room.
func (b *requestBytes) answer(n int, must bool) error {
	if b == nil {
		return nil
	}
	if !must {
		if err := b.require(int64(n)); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += int64(n) * perByte
	if missing := b.used - b.has; missing > 0 {
		b.from.Charge(b.account, missing, b.operator)
		b.has += missing
	}
	b.giveLocked(b.has - b.used)
	return nil
}

// trim returns memory that was required and is not used.
func (b *requestBytes) trim() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.giveLocked(b.has - b.used)
}

// giveBack returns all memory.
func (b *requestBytes) giveBack() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = 0
	b.giveLocked(b.has)
}

func (b *requestBytes) giveLocked(n int64) {
	if n > 0 {
		b.from.Give(b.account, n)
		b.has -= n
	}
}
