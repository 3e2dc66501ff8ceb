package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
)

// write puts a config file into a folder of its own and returns its path.
func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "quotad.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func sourceOf(loaded *Loaded, key string) string {
	for _, value := range loaded.Values {
		if value.Setting.Key == key {
			return value.Source
		}
	}
	return "no such key"
}

func TestLoad_PrecedenceOfLayers(t *testing.T) {
	path := write(t, "log:\n  level: warn\n  format: json\ndata_dir: /file\nnode_id: file\n")
	loaded, err := Load(Input{
		File:    path,
		Environ: []string{"QUOTAD_LOG_LEVEL=error", "QUOTAD_DATA_DIR=/env", "HOME=/root", "QUOTAD_SERVER=x"},
		Flags:   map[string]string{"data-dir": "/flag"},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := loaded.Config
	if c.DataDir != "/flag" || c.Log.Level != "error" || c.Log.Format != "json" || c.API.Listen != "127.0.0.1:7450" {
		t.Errorf("wrong layer won: %+v", c)
	}
	for key, want := range map[string]string{
		"data_dir": "flag --data-dir", "log.level": "env QUOTAD_LOG_LEVEL", "log.format": path + ":3",
		"api.listen": "default", "raft.heartbeat": "profile lan", "api.advertise": "api.listen",
	} {
		if got := sourceOf(loaded, key); got != want {
			t.Errorf("%s comes from %q, want %q", key, got, want)
		}
	}
}

// TestLoad_EverySettingInEveryLayer: every layer accepts every setting, under the name that the table gives it.
func TestLoad_EverySettingInEveryLayer(t *testing.T) {
	samples := map[string]string{
		"name": "n1", "path": "/x", "host:port": "10.0.0.1:99", "duration": "2s", "count": "512", "size": "1GiB", "true, false": "true",
		"lan, wan": "wan", "boltdb, wal": "wal", "text, json": "json", "trace, debug, info, warn, error": "debug",
		"list of name=id":       "spiffe://a/b?c=d=n1,node.example=n2",
		"list of id, raft, api": "n1=10.0.0.1:1/10.0.0.1:2",
	}
	for _, setting := range Settings() {
		sample, ok := samples[setting.Unit]
		if !ok {
			t.Fatalf("%s: no sample for the unit %q", setting.Key, setting.Unit)
		}
		content := setting.Key + ": " + sample + "\n"
		if group, key, nested := strings.Cut(setting.Key, "."); nested {
			content = group + ":\n  " + key + ": " + sample + "\n"
		}
		for layer, in := range map[string]Input{
			"file": {File: write(t, content)},
			"env":  {Environ: []string{setting.Env() + "=" + sample}},
			"flag": {Flags: map[string]string{setting.Flag(): sample}},
		} {
			l := &loader{loaded: &Loaded{}}
			for _, s := range settings {
				l.loaded.Values = append(l.loaded.Values, Value{Setting: s})
			}
			if in.File != "" {
				l.file(in.File)
			}
			l.environment(in.Environ)
			l.flags(in.Flags)
			if len(l.mistakes) > 0 || l.value(setting.Key).Text != sample {
				t.Errorf("%s by %s: %q, %v", setting.Key, layer, l.value(setting.Key).Text, l.mistakes)
			}
		}
	}
}

// TestRaftTLSNames_AreParsed: a name may contain any character of a URI, and may stand for several nodes.
func TestRaftTLSNames_AreParsed(t *testing.T) {
	for value, want := range map[string]map[string][]string{
		"node.example=n1":                      {"node.example": {"n1"}},
		"spiffe://a/b?c=d=n1, node.example=n2": {"spiffe://a/b?c=d": {"n1"}, "node.example": {"n2"}},
		"shared=n1,shared=n2":                  {"shared": {"n1", "n2"}},
		"n1":                                   nil,
		"=n1":                                  nil,
		"node.example=":                        nil,
		"node.example=n 1":                     nil,
		"node.example=n1,":                     nil,
	} {
		var c Config
		err := setNames(&c, value)
		if want == nil && err == nil {
			t.Errorf("%q is taken for %v", value, c.RaftNames)
		}
		if want != nil && (err != nil || !reflect.DeepEqual(c.RaftNames, want)) {
			t.Errorf("%q: %v, %v", value, c.RaftNames, err)
		}
	}
}

func TestLoad_ThreeNodes(t *testing.T) {
	path := write(t, `node_id: n2
peers:
  - {id: n1, raft: 10.0.0.1:7451, api: 10.0.0.1:7450}
  - {id: n2, raft: 10.0.0.2:7451, api: 10.0.0.2:7450}
  - {id: n3, raft: 10.0.0.3:7451, api: 10.0.0.3:7450}
api: {listen: 0.0.0.0:7450, insecure: true}
raft: {listen: 0.0.0.0:7451, insecure: true, profile: wan, lease: 500ms}
disk: {refuse_below: 2GiB, stop_below: 0B}
`)
	loaded, err := Load(Input{File: path})
	if err != nil {
		t.Fatal(err)
	}
	c := loaded.Config
	if len(c.Peers) != 3 || c.Peers[2] != (Peer{ID: "n3", Raft: "10.0.0.3:7451", API: "10.0.0.3:7450"}) {
		t.Errorf("peers: %+v", c.Peers)
	}
	if c.Raft.Advertise != "10.0.0.2:7451" || c.API.Advertise != "10.0.0.2:7450" {
		t.Errorf("the own addresses come from the list: %+v %+v", c.Raft, c.API)
	}
	if c.Times != (Times{Heartbeat: 1500 * time.Millisecond, Election: 1500 * time.Millisecond, Lease: 500 * time.Millisecond}) {
		t.Errorf("times: %+v", c.Times)
	}
	if c.Disk != (Disk{RefuseBelow: 2 << 30}) {
		t.Errorf("disk: %+v", c.Disk)
	}
}

func TestMistakes(t *testing.T) {
	two := "peers: [{id: n1, raft: 127.0.0.1:1, api: 127.0.0.1:2}, {id: n2, raft: 127.0.0.1:3, api: 127.0.0.1:4}]\n"
	for name, c := range map[string]struct {
		file    string
		environ []string
		flags   map[string]string
		want    []string
	}{
		"unknown key":        {file: "data_dri: /x\n", want: []string{`quotad.yaml:1: unknown key "data_dri"`, `did you mean "data_dir"?`}},
		"unknown nested key": {file: "raft:\n  hartbeat: 1s\n", want: []string{`quotad.yaml:2: unknown key "hartbeat" in raft`, `"heartbeat"`}},
		"unknown peer key": {
			file: "peers:\n  - {id: n1, raft: h:1, apu: h:2}\n", want: []string{`quotad.yaml:2: unknown key "apu"`, `"api"`, "no api"},
		},
		"unknown variable": {
			environ: []string{"QUOTAD_RAFT_HARTBEAT=1s"}, want: []string{"QUOTAD_RAFT_HARTBEAT", `did you mean "QUOTAD_RAFT_HEARTBEAT"?`},
		},
		"bad value by flag":    {flags: map[string]string{"raft-lease": "fast"}, want: []string{"flag --raft-lease: raft.lease", `"fast"`}},
		"bad value by env":     {environ: []string{"QUOTAD_TESTING=yes"}, want: []string{"env QUOTAD_TESTING: testing"}},
		"bad overridden value": {file: "testing: maybe\n", flags: map[string]string{"testing": "true"}, want: []string{"quotad.yaml:1: testing"}},
		"bad address":          {flags: map[string]string{"api-listen": "7450"}, want: []string{"host:port"}},
		"bad port":             {flags: map[string]string{"api-listen": "h:99999"}, want: []string{"host:port"}},
		"bad choice":           {flags: map[string]string{"log-level": "inof"}, want: []string{`did you mean "info"?`}},
		"bad size":             {flags: map[string]string{"disk-stop-below": "64MB"}, want: []string{`"64MB" is not a size`}},
		"huge size":            {flags: map[string]string{"disk-stop-below": "9999999TiB"}, want: []string{"is not a size"}},
		"bad peers":            {environ: []string{"QUOTAD_PEERS=n1"}, want: []string{`"n1" is not id=`}},
		"not in the list":      {file: two + "node_id: n9\n", want: []string{"n9", "not in the list"}},
		"other address":        {file: two + "raft: {advertise: \"127.0.0.1:9\"}\n", want: []string{"n1 has the Raft address 127.0.0.1:1"}},
		"twice": {file: "peers: [{id: n1, raft: a:1, api: a:2}, {id: n1, raft: a:1, api: a:3}]\n", want: []string{
			"duplicate id n1", "duplicate raft address a:1",
		}},
		"one port for both": {file: "peers: [{id: n1, raft: a:1, api: a:1}]\n", want: []string{"a:1 is a raft address and an api address"}},
		"wildcard alone":    {file: "api: {listen: \"0.0.0.0:7450\"}\n", want: []string{"nobody can call 0.0.0.0:7450", "api.advertise"}},
		"join with peers":   {file: two + "join: true\n", want: []string{"remove peers"}},
		"join unreachable":  {file: "join: true\nraft: {listen: \"0.0.0.0:7451\"}\n", want: []string{"nobody can call 0.0.0.0:7451"}},
		"half of TLS":       {flags: map[string]string{"api-tls-cert": "c"}, want: []string{"belong together"}},
		"CA without TLS":    {flags: map[string]string{"api-tls-client-ca": "c"}, want: []string{"needs api.tls_cert"}},
		"raft without CA":   {flags: map[string]string{"raft-tls-cert": "c", "raft-tls-key": "k"}, want: []string{"verify each other"}},
		"lease too long":    {flags: map[string]string{"raft-lease": "1s"}, want: []string{"must not be above raft.heartbeat (300ms)"}},
		"watermarks":        {flags: map[string]string{"disk-refuse-below": "1MiB"}, want: []string{"disk.stop_below"}},
		"bad count":         {flags: map[string]string{"raft-snapshot-entries": "0"}, want: []string{`"0" is not a count`}},
		"Raft in clear text": {
			file: "raft: {listen: \"10.0.0.1:7451\"}\n", want: []string{"raft.listen 10.0.0.1:7451 is beyond loopback", "raft.insecure: true"},
		},
		"API in clear text": {
			file: "tokens_file: x\napi: {listen: \"10.0.0.1:7450\", advertise: \"10.0.0.1:7450\"}\n",
			want: []string{"calls and tokens pass in clear text", "api.insecure: true"},
		},
		"API without tokens": {
			flags: map[string]string{"api-listen": "[::]:7450", "api-tls-cert": "c", "api-tls-key": "k"},
			want:  []string{"tokens_file is not set", "api.insecure: true"},
		},
		"the other port's key": {file: "raft: {insecure: true}\napi: {listen: \":7450\"}\n", want: []string{"api.insecure"}},
		"record in earnest":    {flags: map[string]string{"testing-record": "/x"}, want: []string{"needs testing"}},
		"bad id":               {flags: map[string]string{"node-id": "a b"}, want: []string{`"a b" must be`}},
		"key without value":    {file: "data_dir:\n", want: []string{"has no value"}},
		"not YAML":             {file: "a: [\n", want: []string{"is not YAML"}},
		"group as a value":     {file: "raft: fast\n", want: []string{"raft must be a mapping"}},
		"value as a group":     {file: "data_dir: {a: b}\n", want: []string{"must be a single value"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Environ: c.environ, Flags: c.flags}
			if c.file != "" {
				in.File = write(t, c.file)
			}
			_, err := Load(in)
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("got %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is missing in:\n%s", want, err)
				}
			}
			problem := new(strictyaml.Problem)
			if strings.HasPrefix(name, "unknown key") && !errors.As(err, &problem) {
				t.Error("a mistake of the file is no strictyaml.Problem")
			}
		})
	}
}

// TestInsecurities_NeedTheirOwnKey: a secured port, or one on loopback, needs no key, and a key allows its own port only.
func TestInsecurities_NeedTheirOwnKey(t *testing.T) {
	for name, flags := range map[string]map[string]string{
		"loopback":            {"api-listen": "127.0.0.9:7450", "raft-listen": "[::1]:7451"},
		"a name":              {"api-listen": "localhost:7450", "raft-listen": "localhost:7451"},
		"both keys":           {"api-listen": "10.0.0.1:7450", "raft-listen": "10.0.0.1:7451", "api-insecure": "true", "raft-insecure": "true"},
		"the operators' port": {"ops-listen": "10.0.0.1:7453", "api-insecure": "true"},
		"all secured": {
			"api-listen": "10.0.0.1:7450", "raft-listen": "10.0.0.1:7451", "api-tls-cert": "c", "api-tls-key": "k", "tokens-file": "t",
			"raft-tls-cert": "c", "raft-tls-key": "k", "raft-tls-ca": "a",
		},
	} {
		loaded, err := Load(Input{Flags: flags})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, want := len(loaded.Config.Insecurities()), map[string]int{"both keys": 3, "the operators' port": 2}[name]; got != want {
			t.Errorf("%s: %d insecurities are to be warned of, want %d", name, got, want)
		}
	}
}

func TestLoad_IgnoresKubernetesVariables(t *testing.T) {
	environ := []string{
		"QUOTAD_SERVICE_HOST=10.0.0.1", "QUOTAD_SERVICE_PORT_API=7450", "QUOTAD_PORT=tcp://10.0.0.1:7450",
		"QUOTAD_PORT_7450_TCP_ADDR=10.0.0.1",
	}
	if _, err := Load(Input{Environ: environ}); err != nil {
		t.Error(err)
	}
}

func TestLoad_MissingFile(t *testing.T) {
	if _, err := Load(Input{File: filepath.Join(t.TempDir(), "none.yaml")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte("raft: {profile: wan}\npeers: [{id: n1, raft: h:1, api: h:2}]\n"))
	f.Add([]byte("disk: {refuse_below: 1GiB}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "quotad.yaml")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, err := Load(Input{File: path})
		if (loaded == nil) == (err == nil) {
			t.Fatalf("%v and %v", loaded, err)
		}
	})
}
