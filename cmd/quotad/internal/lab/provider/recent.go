package provider

// recent holds recent arrivals, oldest first, and their sum.
type recent struct {
	entries []Entry
	oldest  int
	sum     int64
}

func (r *recent) add(now, n int64) {
	r.entries = append(r.entries, Entry{At: now, N: n})
	r.sum += n
}

// forget drops the arrivals up to a time.
func (r *recent) forget(upTo int64) {
	for r.oldest < len(r.entries) && r.entries[r.oldest].At <= upTo {
		r.sum -= r.entries[r.oldest].N
		r.oldest++
	}
	if r.oldest > 4096 && r.oldest > len(r.entries)/2 {
		r.entries = append(r.entries[:0], r.entries[r.oldest:]...)
		r.oldest = 0
	}
}
