package demo

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The flags check their values themselves, so that a wrong value is wrong usage, with its exit code, and not a failure of
// the demo.

// fleetFlag selects the fleets that run.
type fleetFlag string

// fleets are its values.
var fleets = []string{"both", string(own), string(governed)}

// Set implements pflag.Value.
func (f *fleetFlag) Set(text string) error {
	if !slices.Contains(fleets, text) {
		return fmt.Errorf("it is not one of %s", strings.Join(fleets, ", "))
	}
	*f = fleetFlag(text)
	return nil
}

// String implements pflag.Value.
func (f *fleetFlag) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *fleetFlag) Type() string { return "fleet" }

// The bounds of --duration: long enough for every agent to get something done, short enough for a manageable number of the
// provider's records.
const (
	shortestDemo = 10 * time.Second
	longestDemo  = 10 * time.Minute
)

// durationFlag is the duration of a demo.
type durationFlag time.Duration

// Set implements pflag.Value.
func (f *durationFlag) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < shortestDemo || d > longestDemo {
		return fmt.Errorf("it is not a duration from %v to %v", shortestDemo, longestDemo)
	}
	*f = durationFlag(d)
	return nil
}

// String implements pflag.Value.
func (f *durationFlag) String() string { return time.Duration(*f).String() }

// Type implements pflag.Value.
func (f *durationFlag) Type() string { return "duration" }
