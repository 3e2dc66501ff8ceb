package identity

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// seatIdle is how long a session may be silent before its seat is free.
const seatIdle = 30 * time.Minute

// Seats number the sessions of each tool, so that new session ids become few and stable holders. A session takes the lowest free
// number, which is freed after 30 min of silence. If all are taken, the seat with the longest silence moves to the new session.
type Seats struct {
	mu    sync.Mutex
	count int
	tools map[string]*tool
}

type tool struct {
	seats []seat
	// at has the seat index of each session.
	at map[string]int
}

type seat struct {
	session string
	last    time.Time
}

// NewSeats returns seats, count of them for each tool.
func NewSeats(count int) *Seats { return &Seats{count: count, tools: map[string]*tool{}} }

// Resize sets the number of seats of each tool. Sessions of removed seats take other ones with their next call.
func (s *Seats) Resize(count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count = count
	for _, t := range s.tools {
		for _, gone := range t.seats[min(count, len(t.seats)):] {
			delete(t.at, gone.session)
		}
		t.seats = t.seats[:min(count, len(t.seats))]
	}
}

// Take returns the number of a session's seat, from 1.
func (s *Seats) Take(name, session string, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tools[name]
	if t == nil {
		t = &tool{at: map[string]int{}}
		s.tools[name] = t
	}
	i, seated := t.at[session]
	if !seated {
		i = t.free(s.count, now)
		if old := t.seats[i].session; old != "" {
			delete(t.at, old)
		}
		t.seats[i].session = session
		t.at[session] = i
	}
	t.seats[i].last = now
	return i + 1
}

// free returns the index of the lowest free seat, or of a new one, or of the one with the longest silence.
func (t *tool) free(count int, now time.Time) int {
	oldest := 0
	for i, s := range t.seats {
		if now.Sub(s.last) >= seatIdle {
			return i
		}
		if s.last.Before(t.seats[oldest].last) {
			oldest = i
		}
	}
	if len(t.seats) < count {
		t.seats = append(t.seats, seat{})
		return len(t.seats) - 1
	}
	return oldest
}

// Seat is a taken seat.
type Seat struct {
	Tool, Session string
	Number        int
	Silent        time.Duration
}

// List returns the seats taken at now, by tool and number.
func (s *Seats) List(now time.Time) []Seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Seat
	for _, name := range slices.Sorted(maps.Keys(s.tools)) {
		for i, taken := range s.tools[name].seats {
			if silent := now.Sub(taken.last); silent < seatIdle {
				out = append(out, Seat{Tool: name, Session: taken.session, Number: i + 1, Silent: silent})
			}
		}
	}
	return out
}
