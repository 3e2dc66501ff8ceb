package config

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/cmd/quotad/internal/suggest"
)

// Setting is one configurable value.
type Setting struct {
	// Key is its name in the file; a dot separates nested mappings: api.listen.
	Key string
	// Default is its value as text; empty: none.
	Default string
	// Unit is the kind of text that it takes.
	Unit string
	// Help is one sentence.
	Help string

	set func(c *Config, text string) error
}

// EnvPrefix starts the name of every environment variable.
const EnvPrefix = "QUOTAD_"

// Env is the setting's environment variable.
func (s Setting) Env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_"))
}

// Flag is the setting's flag, without the dashes.
func (s Setting) Flag() string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(s.Key)
}

// Settings returns all settings in the order of their documentation.
func Settings() []Setting { return slices.Clone(settings) }

var settings = []Setting{
	{"node_id", "n1", "name", "Stable name of this node, never used by another node.", text(func(c *Config) *string { return &c.NodeID })},
	{
		"data_dir", "quotad-data", "path",
		"Directory of all durable data; created with mode 0700.", text(func(c *Config) *string { return &c.DataDir }),
	},
	{
		"log_store", "boltdb", "boltdb, wal",
		"Storage engine of the Raft log; 'quotad migrate' converts the log of a stopped node.",
		choice(func(c *Config) *string { return &c.LogStore }, "boltdb", "wal"),
	},
	{
		"api.listen", "127.0.0.1:7450", "host:port",
		"Address of the API; port 0 takes a free one.", address(func(c *Config) *string { return &c.API.Listen }),
	},
	{
		"api.advertise", "", "host:port",
		"API address that other nodes and clients use; default: api.listen.", address(func(c *Config) *string { return &c.API.Advertise }),
	},
	{
		"api.tls_cert", "", "path",
		"Certificate chain of the API (PEM); enables TLS.", text(func(c *Config) *string { return &c.API.TLS.Cert }),
	},
	{"api.tls_key", "", "path", "Private key of the API (PEM).", text(func(c *Config) *string { return &c.API.TLS.Key })},
	{
		"api.tls_ca", "", "path",
		"CA bundle that verifies other nodes' API certificates (PEM); default: api.tls_client_ca, else the system's.",
		text(func(c *Config) *string { return &c.API.TLS.PeerCA }),
	},
	{
		"api.tls_client_ca", "", "path",
		"CA bundle (PEM); callers must present a certificate that it signed.", text(func(c *Config) *string { return &c.API.TLS.CA }),
	},
	{
		"api.insecure", "false", "true, false",
		"Allow the API beyond loopback in clear text, or without a tokens_file.",
		boolean(func(c *Config) *bool { return &c.API.Insecure }),
	},
	{
		"ops.listen", "", "host:port",
		"Address of the API for operators only, with its own budgets, such as 127.0.0.1:7453; default: none.",
		address(func(c *Config) *string { return &c.Ops.Listen }),
	},
	{
		"ops.pprof", "false", "true, false",
		"Serve profiles of the process at ops.listen, to tokens with the verb debug.",
		boolean(func(c *Config) *bool { return &c.Ops.Pprof }),
	},
	{
		"raft.listen", "127.0.0.1:7451", "host:port",
		"Address for peer connections.", address(func(c *Config) *string { return &c.Raft.Listen }),
	},
	{
		"raft.advertise", "", "host:port",
		"Raft address that other nodes use; default: raft.listen.", address(func(c *Config) *string { return &c.Raft.Advertise }),
	},
	{
		"raft.tls_cert", "", "path",
		"Certificate chain for peer connections (PEM); enables mutual TLS.", text(func(c *Config) *string { return &c.Raft.TLS.Cert }),
	},
	{"raft.tls_key", "", "path", "Private key for peer connections (PEM).", text(func(c *Config) *string { return &c.Raft.TLS.Key })},
	{
		"raft.tls_ca", "", "path",
		"CA bundle that signed the nodes' certificates (PEM).", text(func(c *Config) *string { return &c.Raft.TLS.CA }),
	},
	{
		"raft.tls_names", "", "list of name=id",
		"Node of each certificate name, such as a.example.org=n1,b.example.org=n2; a DNS name that equals the id needs no entry.",
		setNames,
	},
	{
		"raft.insecure", "false", "true, false",
		"Allow peer connections beyond loopback in clear text.", boolean(func(c *Config) *bool { return &c.Raft.Insecure }),
	},
	{
		"raft.profile", "lan", "lan, wan",
		"Defaults of raft.heartbeat, raft.election and raft.lease.", choice(func(c *Config) *string { return &c.Profile }, "lan", "wan"),
	},
	{
		"raft.heartbeat", "", "duration",
		"Time without contact after which a follower starts an election; lan 300ms, wan 1.5s.",
		duration(func(c *Config) *time.Duration { return &c.Times.Heartbeat }),
	},
	{
		"raft.election", "", "duration",
		"How long a candidate waits for votes; lan 300ms, wan 1.5s.",
		duration(func(c *Config) *time.Duration { return &c.Times.Election }),
	},
	{
		"raft.lease", "", "duration",
		"How long a leader that cannot reach a majority still leads; lan 200ms, wan 1s.",
		duration(func(c *Config) *time.Duration { return &c.Times.Lease }),
	},
	{
		"raft.snapshot_entries", "8192", "count",
		"Log entries between snapshots; about the most that a start replays.",
		count(func(c *Config) *uint64 { return &c.Snapshots.Entries }),
	},
	{
		"raft.snapshot_interval", "15s", "duration",
		"How often to check whether a snapshot is due.", duration(func(c *Config) *time.Duration { return &c.Snapshots.Interval }),
	},
	{
		"raft.trailing_entries", "8192", "count",
		"Log entries to keep after a snapshot; a follower that is further behind receives the snapshot.",
		count(func(c *Config) *uint64 { return &c.Snapshots.Trailing }),
	},
	{
		"peers", "", "list of id, raft, api",
		"Nodes that form the cluster, including this one; the same list on each node. Default: this node alone.", setPeers,
	},
	{
		"join", "false", "true, false",
		"Wait to be added with 'quotad member add' instead of forming a cluster.", boolean(func(c *Config) *bool { return &c.Join }),
	},
	{
		"tokens_file", "", "path",
		"Tokens and their permissions; without it every caller is trusted.", text(func(c *Config) *string { return &c.TokensFile }),
	},
	{
		"quotas_file", "", "path",
		"quotas.yaml to apply if the cluster has no quota yet.", text(func(c *Config) *string { return &c.QuotasFile }),
	},
	{
		"log.level", "info", "trace, debug, info, warn, error",
		"Lowest level to log.", choice(func(c *Config) *string { return &c.Log.Level }, "trace", "debug", "info", "warn", "error"),
	},
	{"log.format", "text", "text, json", "Format of the log.", choice(func(c *Config) *string { return &c.Log.Format }, "text", "json")},
	{
		"disk.refuse_below", "256MiB", "size",
		"Free space below which new grants are refused; releases still work.", size(func(c *Config) *int64 { return &c.Disk.RefuseBelow }),
	},
	{
		"disk.stop_below", "32MiB", "size",
		"Free space below which the node stops.", size(func(c *Config) *int64 { return &c.Disk.StopBelow }),
	},
	{
		"memory.limit", "", "size",
		"Memory of the process; above 85% of it new grants are refused. Default: the control group's or the machine's; 0B: unlimited.",
		limitSize(func(c *Config) *int64 { return &c.MemoryLimit }),
	},
	{
		"testing", "false", "true, false",
		"Enable test-only endpoints: log dumps, state hashes, clock faults.", boolean(func(c *Config) *bool { return &c.Testing }),
	},
	{
		"testing_record", "", "path",
		"Directory for a copy of every applied entry; needs testing.", text(func(c *Config) *string { return &c.TestingRecord }),
	},
}

func text(field func(*Config) *string) func(*Config, string) error {
	return func(c *Config, value string) error {
		*field(c) = value
		return nil
	}
}

func address(field func(*Config) *string) func(*Config, string) error {
	return func(c *Config, value string) error {
		if err := checkAddress(value); err != nil {
			return err
		}
		*field(c) = value
		return nil
	}
}

func checkAddress(value string) error {
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is not host:port, such as 10.0.0.1:7450 or [::1]:7450", value)
	}
	return nil
}

func choice(field func(*Config) *string, choices ...string) func(*Config, string) error {
	return func(c *Config, value string) error {
		if !slices.Contains(choices, value) {
			return hinted(fmt.Sprintf("%q is not one of %s", value, strings.Join(choices, ", ")), suggest.Hint(value, choices))
		}
		*field(c) = value
		return nil
	}
}

func duration(field func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, value string) error {
		length, err := strictyaml.ParseDuration(value)
		if err != nil || length <= 0 {
			return fmt.Errorf("%q is not a duration above 0, such as 300ms or 2s", value)
		}
		*field(c) = length
		return nil
	}
}

func boolean(field func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, value string) error {
		if value != "true" && value != "false" {
			return fmt.Errorf("%q is not true or false", value)
		}
		*field(c) = value == "true"
		return nil
	}
}

func count(field func(*Config) *uint64) func(*Config, string) error {
	return func(c *Config, value string) error {
		number, err := strconv.ParseUint(value, 10, 32)
		if err != nil || number == 0 {
			return fmt.Errorf("%q is not a count from 1 to 2^32-1", value)
		}
		*field(c) = number
		return nil
	}
}

// sizeUnits are tried in this order: B must follow the suffixes that end with it.
var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1},
}

func size(field func(*Config) *int64) func(*Config, string) error {
	return func(c *Config, value string) error {
		for _, unit := range sizeUnits {
			digits, found := strings.CutSuffix(value, unit.suffix)
			if !found {
				continue
			}
			count, err := strconv.ParseInt(digits, 10, 64)
			if err == nil && count >= 0 && count <= (1<<62)/unit.bytes {
				*field(c) = count * unit.bytes
				return nil
			}
			break
		}
		return fmt.Errorf("%q is not a size, such as 512MiB, 2GiB or 0B", value)
	}
}

// limitSize parses a size of which 0 means no limit.
func limitSize(field func(*Config) *int64) func(*Config, string) error {
	read := size(field)
	return func(c *Config, value string) error {
		if err := read(c, value); err != nil {
			return err
		}
		if *field(c) == 0 {
			*field(c) = -1
		}
		return nil
	}
}

// setPeers parses the list's form for flags and the environment: n1=host:7451/host:7450,n2=...
func setPeers(c *Config, value string) error {
	c.Peers = nil
	for element := range strings.SplitSeq(value, ",") {
		id, addresses, ok := strings.Cut(element, "=")
		raft, api, both := strings.Cut(addresses, "/")
		if !ok || !both || strings.TrimSpace(id) == "" {
			return fmt.Errorf("%q is not id=raft-host:port/api-host:port", element)
		}
		if err := checkAddress(raft); err != nil {
			return err
		}
		if err := checkAddress(api); err != nil {
			return err
		}
		c.Peers = append(c.Peers, Peer{ID: strings.TrimSpace(id), Raft: raft, API: api})
	}
	return nil
}

// setNames parses name=id,name=id. A name may stand for several nodes while their certificates are being replaced.
func setNames(c *Config, value string) error {
	c.RaftNames = map[string][]string{}
	for element := range strings.SplitSeq(value, ",") {
		at := strings.LastIndex(element, "=") // a URI may contain =
		if at <= 0 || !nodeID.MatchString(strings.TrimSpace(element[at+1:])) {
			return fmt.Errorf("%q is not name=id", element)
		}
		name := strings.TrimSpace(element[:at])
		c.RaftNames[name] = append(c.RaftNames[name], strings.TrimSpace(element[at+1:]))
	}
	return nil
}

func formatPeers(peers []Peer) string {
	elements := make([]string, len(peers))
	for i, peer := range peers {
		elements[i] = peer.ID + "=" + peer.Raft + "/" + peer.API
	}
	return strings.Join(elements, ",")
}

func hinted(message, hint string) error {
	if hint == "" {
		return fmt.Errorf("%s", message)
	}
	return fmt.Errorf("%s; %s", message, hint)
}
