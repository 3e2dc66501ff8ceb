package ledger

import (
	"fmt"
	"strings"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// Defaults and bounds of shares; DefaultCap and DefaultFloor are in millionths.
const (
	DefaultCap   = 900_000
	DefaultFloor = 300_000
	DefaultQuiet = 15 * fixed.Minute
	MaxQuiet     = fixed.Day
)

// Shares are the compiled shares of a definition, in millionths of usable.
type Shares struct {
	// On: there are shares.
	On bool
	// Holders are the shares of single holders; with them, classes have none.
	Holders []*logpb.HolderShare
	// Of are the shares by class.
	Of [Classes]int64
	// Cap is the most that critical calls may use, Floor the amount that background work leaves beyond its share.
	Cap, Floor int64
	// Quiet is how long after the last attempt of a higher class something is still kept from background work.
	Quiet int64
}

// newShares compiles shares, or returns why they are invalid.
func newShares(def *logpb.Quota, kind Kind, level uint32) (Shares, *logpb.Failure) {
	given := def.GetPolicy().GetShares()
	if given == nil {
		return Shares{}, nil
	}
	s := Shares{
		On: true, Of: [Classes]int64{int64(given.CriticalPpm), int64(given.StandardPpm), int64(given.BackgroundPpm)},
		Cap: int64(given.CapPpm), Floor: DefaultFloor, Quiet: given.QuietNs, Holders: given.Holders,
	}
	if s.Cap == 0 {
		s.Cap = DefaultCap
	}
	if given.FloorPpm != nil {
		s.Floor = int64(*given.FloorPpm)
	}
	if s.Quiet == 0 {
		s.Quiet = DefaultQuiet
	}
	sum := int64(0)
	for _, part := range s.Of {
		if part < 0 || part > fixed.Million {
			return Shares{}, Impossible(def, "a share must be 0 to 1", "critical: 0.4, standard: 0.35, background: 0.25")
		}
		sum += part
	}
	ofHolders, failure := sumOfHolders(def, given.Holders)
	if failure != nil {
		return Shares{}, failure
	}
	switch {
	case sum > 0 && ofHolders > 0:
		return Shares{}, Impossible(def, "classes and single holders have shares", "name either classes or holders")
	case kind != KindWindow && level < levels.Rates:
		return Shares{}, Impossible(def, "only windows have shares", "a rate's queue lends everything to whoever comes first in the order")
	case kind == KindSlots:
		return Shares{}, Impossible(def, "slots have no shares", "windows and rates have")
	case kind == KindRate && ofHolders > 0:
		return Shares{}, Impossible(def, "only windows have shares of single holders", "give shares to classes")
	case sum+ofHolders > fixed.Million:
		return Shares{}, Impossible(def, "the shares are together more than 1", "critical: 0.4, standard: 0.35, background: 0.25")
	case s.Cap < s.Of[ClassCritical] || s.Cap > fixed.Million:
		return Shares{}, Impossible(def, "the cap must be at least critical's share and at most 1", "the default is 0.9")
	case s.Floor < 0 || s.Floor > fixed.Million:
		return Shares{}, Impossible(def, "the floor must be 0 to 1", "the default is 0.3")
	case s.Quiet < fixed.Second || s.Quiet > MaxQuiet:
		return Shares{}, Impossible(def, "quiet must be 1 s to 24 h", "the default is 15m")
	}
	return s, nil
}

// MaxHolderShares bounds how many holders have a share of one quota: each Reserve of it reads all of them.
const MaxHolderShares = 64

// sumOfHolders adds the shares of single holders, or returns why they are invalid.
func sumOfHolders(def *logpb.Quota, holders []*logpb.HolderShare) (sum int64, failure *logpb.Failure) {
	if len(holders) > MaxHolderShares {
		return 0, Impossible(def, fmt.Sprintf("%d holders have a share", len(holders)),
			fmt.Sprintf("at most %d; give shares to classes", MaxHolderShares))
	}
	for i, h := range holders {
		switch {
		case h.Holder == "" || strings.Contains(h.Holder, "*"):
			return 0, Impossible(def, fmt.Sprintf("%q is no single holder's name", h.Holder),
				"a pattern has no share; name holders, or give shares to classes")
		case h.SharePpm <= 0 || h.SharePpm > fixed.Million:
			return 0, Impossible(def, "a share must be above 0 and at most 1", "such as 0.1")
		}
		for _, other := range holders[:i] {
			if other.Holder == h.Holder {
				return 0, Impossible(def, fmt.Sprintf("holder %q has two shares", h.Holder), "add them up")
			}
		}
		sum += int64(h.SharePpm)
	}
	return sum, nil
}

// Holder returns the share of one holder, in millionths of usable; 0: none.
func (s *Shares) Holder(name string) int64 {
	for _, h := range s.Holders {
		if h.Holder == name {
			return int64(h.SharePpm)
		}
	}
	return 0
}

// Cap returns the most that critical calls may use of a window.
func (r *Rule) Cap() int64 { return fixed.MulDivFloor(r.Usable, r.Policy.Shares.Cap, fixed.Million) }
