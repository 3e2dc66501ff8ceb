package raftnode

import (
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm"
)

func TestConfig_Validate(t *testing.T) {
	valid := func() Config {
		c := DefaultConfig()
		c.ID, c.DataDir, c.RaftAddress = "n1", "data", "127.0.0.1:7400"
		c.Peers = []Peer{{ID: "n1", RaftAddress: "127.0.0.1:7400"}, {ID: "n2", RaftAddress: "127.0.0.1:7401"}}
		return c
	}
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"defaults":                    {func(*Config) {}, ""},
		"an entry as large as may be": {func(c *Config) { c.MaxEntryCommands = fsm.MaxEntryCommands }, ""},
		"no id":                       {func(c *Config) { c.ID = "" }, "node id must"},
		"an id with a blank":          {func(c *Config) { c.ID = "n 1" }, "node id must"},
		"no data directory":           {func(c *Config) { c.DataDir = "" }, "data directory"},
		"another store":               {func(c *Config) { c.LogStore = "tape" }, `log store "tape"`},
		"no port":                     {func(c *Config) { c.RaftAddress = "127.0.0.1" }, "is not host:port"},
		"a lease beyond a heartbeat":  {func(c *Config) { c.LeaderLease = time.Second }, "heartbeat timeout"},
		"elections before heartbeats": {func(c *Config) { c.ElectionTimeout = 1 }, "election timeout"},
		"no tick":                     {func(c *Config) { c.Tick = 0 }, "tick"},
		"no commands":                 {func(c *Config) { c.MaxEntryCommands = 0 }, "bounds of an entry"},
		"a command too many":          {func(c *Config) { c.MaxEntryCommands = fsm.MaxEntryCommands + 1 }, "at most 2048 commands"},
		"a queue below an entry":      {func(c *Config) { c.MaxQueueCommands = c.MaxEntryCommands - 1 }, "hold at least one entry"},
		"no snapshots":                {func(c *Config) { c.SnapshotsRetained = 0 }, "snapshot settings"},
		"not among the peers":         {func(c *Config) { c.ID = "n3" }, "does not name this node"},
		"a peer without address":      {func(c *Config) { c.Peers[1].RaftAddress = "" }, "needs an id and a Raft address"},
		"a peer twice":                {func(c *Config) { c.Peers[1].RaftAddress = c.Peers[0].RaftAddress }, "listed twice"},
	} {
		t.Run(name, func(t *testing.T) {
			c := valid()
			test.change(&c)
			switch err := c.Validate(); {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, not %q", err, test.want)
			}
		})
	}
}
