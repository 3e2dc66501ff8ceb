// Package gatewayfile reads the configuration file of quotad gateway. It is strict: it reports all problems at once, each
// with its line.
package gatewayfile

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
)

// Load reads a file and adds the defaults. If the file has mistakes, the error is a strictyaml.Problems.
func Load(path string) (config.Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return config.Config{}, err
	}
	return Parse(path, data)
}

// Parse is Load for data, which was read from the named file.
func Parse(file string, data []byte) (config.Config, error) {
	d, err := strictyaml.Parse(file, data)
	if err != nil {
		return config.Config{}, err
	}
	r := &reader{Document: d, dir: filepath.Dir(file)}
	var conf config.Config
	if d.Root == nil {
		d.Fail(nil, "begin with upstreams: and cluster:", "the file is empty")
		return conf, d.Err()
	}
	r.secrets(d.Root)
	conf = r.top(d.Root)
	if err := d.Err(); err != nil {
		return conf, err
	}
	if len(conf.Listen.TCP) == 0 && conf.Listen.Unix == "" {
		conf.Listen.TCP, conf.Listen.Unix = conf.Complete().Listen.TCP, defaultSocket()
	}
	conf = conf.Complete()
	for _, problem := range conf.Check() {
		d.Fail(locate(d.Root, problem.Field), "", "%s", problem.Error())
	}
	return conf, d.Err()
}

// socketName is the socket's name in the folder that the system gives this process for its sockets.
const socketName = "gateway.sock"

// maxSocket is the longest path of a socket, in bytes, that every system accepts.
const maxSocket = 100

// defaultSocket returns the socket on which a gateway listens in addition to its ports, if its file names no listener. It
// is in the folder that systemd makes for a service, or in quotad below the user's own. Empty: the system provides none.
func defaultSocket() string {
	dir, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
	if own := os.Getenv("XDG_RUNTIME_DIR"); dir == "" && own != "" {
		if info, err := os.Stat(own); err == nil && info.IsDir() {
			dir = filepath.Join(own, "quotad")
		}
	}
	if path := filepath.Join(dir, socketName); filepath.IsAbs(path) && len(path) <= maxSocket {
		return path
	}
	return ""
}

// reader reads a document's nodes into a configuration.
type reader struct {
	*strictyaml.Document
	// dir is the folder of the file; relative paths of files start there.
	dir string
}

// key matches keys and tokens, which must not be in the file.
var key = regexp.MustCompile(`^(sk-|sk_|qtd_|gh[pousr]_|github_pat_|AIza|xox[abp]-|ABSK|Bearer )`)

// secrets rejects values that look like keys.
func (r *reader) secrets(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && key.MatchString(n.Value) {
		r.Fail(n, "name where it comes from: {file: PATH}, {env: NAME} or {credential: NAME}", "this file must not have secrets in it")
	}
	for _, child := range n.Content {
		r.secrets(child)
	}
}

// each calls the function of each key that is present.
func each(values map[string]*yaml.Node, keys map[string]func(*yaml.Node)) {
	for name, read := range keys {
		if n, ok := values[name]; ok {
			read(n)
		}
	}
}

// path reads the path of a file. A relative path starts at the configuration's folder, and ~/ is the user's.
func (r *reader) path(n *yaml.Node, what string) string {
	path := os.ExpandEnv(r.Text(n, what))
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			r.Fail(n, "name the folder", "%s: %v", what, err)
			return ""
		}
		return filepath.Join(home, rest)
	}
	if path == "" || filepath.IsAbs(path) || strings.HasPrefix(path, "@") { // an abstract socket of Linux
		return path
	}
	return filepath.Join(r.dir, path)
}

func (r *reader) texts(n *yaml.Node, what string) []string {
	var out []string
	for _, element := range r.Sequence(n, what) {
		out = append(out, r.Text(element, what))
	}
	return out
}

const longest = 30 * 24 * time.Hour

func (r *reader) top(n *yaml.Node) (c config.Config) {
	values := r.Mapping(n, "the file", "listen", "hosts", "origins", "tokens", "trust", "cluster", "machine", "identity", "upstreams", "root",
		"models", "prices", "state", "wait", "lease", "limits")
	each(values, map[string]func(*yaml.Node){
		"listen":   func(n *yaml.Node) { c.Listen = r.listen(n) },
		"hosts":    func(n *yaml.Node) { c.Hosts = r.texts(n, "hosts") },
		"origins":  func(n *yaml.Node) { c.Origins = r.texts(n, "origins") },
		"tokens":   func(n *yaml.Node) { c.Tokens = r.path(n, "tokens") },
		"trust":    func(n *yaml.Node) { c.Trust = r.Choice(n, "trust", "everyone-on-this-machine") != "" },
		"cluster":  func(n *yaml.Node) { c.Cluster = r.cluster(n) },
		"machine":  func(n *yaml.Node) { c.Machine = r.machine(n) },
		"identity": func(n *yaml.Node) { c.Identity = r.identity(n) },
		"upstreams": func(n *yaml.Node) {
			c.Upstreams = map[string]config.Upstream{}
			for name, upstream := range r.Mapping(n, "upstreams") {
				c.Upstreams[name] = r.upstream(upstream, "upstreams."+name)
			}
		},
		"root": func(n *yaml.Node) { c.Root = r.Text(n, "root") },
		"models": func(n *yaml.Node) {
			for _, model := range r.Sequence(n, "models") {
				c.Models = append(c.Models, r.model(model))
			}
		},
		"state":  func(n *yaml.Node) { c.State = r.path(n, "state") },
		"prices": func(n *yaml.Node) { c.Prices = r.prices(n) },
		"wait": func(n *yaml.Node) {
			c.Wait = make(map[config.Class]time.Duration)
			for name, bound := range r.Mapping(n, "wait", config.Classes...) {
				class, _ := config.ClassNamed(name)
				c.Wait[class] = r.Duration(bound, "wait."+name, 0, 10*time.Minute)
			}
		},
		"lease":  func(n *yaml.Node) { c.Lease = r.Duration(n, "lease", 5*time.Second, time.Hour) },
		"limits": func(n *yaml.Node) { c.Limits = r.limits(n) },
	})
	return c
}

func (r *reader) listen(n *yaml.Node) (l config.Listen) {
	each(r.Mapping(n, "listen", "tcp", "unix", "tls", "insecure"), map[string]func(*yaml.Node){
		"tcp":      func(n *yaml.Node) { l.TCP = r.texts(n, "listen.tcp") },
		"unix":     func(n *yaml.Node) { l.Unix = r.path(n, "listen.unix") },
		"insecure": func(n *yaml.Node) { l.Insecure = r.Bool(n, "listen.insecure") },
		"tls": func(n *yaml.Node) {
			each(r.Mapping(n, "listen.tls", "cert", "key"), map[string]func(*yaml.Node){
				"cert": func(n *yaml.Node) { l.Cert = r.path(n, "listen.tls.cert") },
				"key":  func(n *yaml.Node) { l.Key = r.path(n, "listen.tls.key") },
			})
		},
	})
	return l
}

func (r *reader) cluster(n *yaml.Node) (c config.Cluster) {
	each(r.Mapping(n, "cluster", "nodes", "token", "ca"), map[string]func(*yaml.Node){
		"nodes": func(n *yaml.Node) { c.Nodes = r.texts(n, "cluster.nodes") },
		"token": func(n *yaml.Node) {
			source := r.source(n, "cluster.token")
			c.Token = &source
		},
		"ca": func(n *yaml.Node) { c.CA = r.path(n, "cluster.ca") },
	})
	return c
}

func (r *reader) source(n *yaml.Node, what string) (s config.Source) {
	each(r.Mapping(n, what, "env", "file", "credential"), map[string]func(*yaml.Node){
		"env":        func(n *yaml.Node) { s.Env = r.Text(n, what+".env") },
		"file":       func(n *yaml.Node) { s.File = r.path(n, what+".file") },
		"credential": func(n *yaml.Node) { s.Credential = r.Text(n, what+".credential") },
	})
	return s
}

// machine reads a name, or the environment variable that contains it.
func (r *reader) machine(n *yaml.Node) string {
	if n.Kind != yaml.MappingNode {
		return r.Text(n, "machine")
	}
	values := r.Mapping(n, "machine", "env")
	if values["env"] == nil {
		return ""
	}
	name := r.Text(values["env"], "machine.env")
	value := os.Getenv(name)
	if value == "" {
		r.Fail(values["env"], "", "the environment variable %s is empty", name)
	}
	return value
}

func (r *reader) identity(n *yaml.Node) (i config.Identity) {
	each(r.Mapping(n, "identity", "names", "tools", "seats"), map[string]func(*yaml.Node){
		"names": func(n *yaml.Node) { i.Names = r.texts(n, "identity.names") },
		"tools": func(n *yaml.Node) {
			i.Tools = map[string]config.Tool{}
			for name, tool := range r.Mapping(n, "identity.tools") {
				values := r.Mapping(tool, "identity.tools."+name, "class")
				if values["class"] != nil {
					i.Tools[name] = config.Tool{Class: r.class(values["class"], "identity.tools."+name+".class")}
				}
			}
		},
		"seats": func(n *yaml.Node) {
			each(r.Mapping(n, "identity.seats", "by", "count"), map[string]func(*yaml.Node){
				"by":    func(n *yaml.Node) { i.Seats.By = r.Choice(n, "identity.seats.by", "session", "agent", "off") },
				"count": func(n *yaml.Node) { i.Seats.Count = int(r.Int(n, "identity.seats.count", 1, 1024)) },
			})
		},
	})
	return i
}

func (r *reader) class(n *yaml.Node, what string) config.Class {
	class, _ := config.ClassNamed(r.Choice(n, what, config.Classes...))
	return class
}

func (r *reader) limits(n *yaml.Node) (l config.Limits) {
	each(r.Mapping(n, "limits", "body", "memory", "drain", "calls"), map[string]func(*yaml.Node){
		"body":   func(n *yaml.Node) { l.Body = r.size(n, "limits.body") },
		"memory": func(n *yaml.Node) { l.Memory = r.size(n, "limits.memory") },
		"drain":  func(n *yaml.Node) { l.Drain = r.Duration(n, "limits.drain", time.Second, time.Hour) },
		"calls":  func(n *yaml.Node) { l.Calls = int(r.Int(n, "limits.calls", 1, 1_000_000)) },
	})
	return l
}

var sizes = map[string]int64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

// size parses a number of bytes, such as 32MiB.
func (r *reader) size(n *yaml.Node, what string) int64 {
	text := r.Text(n, what)
	digits := strings.TrimRight(text, "KMGiB")
	count, err := strconv.ParseInt(digits, 10, 32)
	unit, known := sizes[text[len(digits):]]
	if err != nil || !known || count < 1 {
		r.Fail(n, "such as 512KiB, 32MiB or 1GiB", "%s must be a size, not %q", what, text)
		return 0
	}
	return count * unit
}

// locate returns the node of a field, such as upstreams.openai.keys[1].name, or the nearest one above it.
func locate(root *yaml.Node, field string) *yaml.Node {
	at := root
	for step := range strings.SplitSeq(strings.ReplaceAll(field, "[", ".["), ".") {
		next := child(at, step)
		if next == nil {
			break
		}
		at = next
	}
	return at
}

func child(n *yaml.Node, step string) *yaml.Node {
	var index int
	if _, err := fmt.Sscanf(step, "[%d]", &index); err == nil && n.Kind == yaml.SequenceNode {
		if index < len(n.Content) {
			return n.Content[index]
		}
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == step {
			return n.Content[i+1]
		}
	}
	return nil
}
