package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/spf13/pflag"
)

// overlay fills dst, whose values are the defaults or the file's, from the environment
// and then from the flags that the user gave. given are the parsed flags of the command;
// bound binds the same names to dst.
func overlay(given, bound *pflag.FlagSet, env func(string) (string, bool)) error {
	var err error
	bound.VisitAll(func(f *pflag.Flag) {
		if g := given.Lookup(f.Name); err != nil || (g != nil && g.Changed) {
			return
		}
		name := envName(f.Name)
		v, ok := env(name)
		if !ok {
			return
		}
		if e := set(f.Value, v); e != nil {
			err = fmt.Errorf("%s: %w", name, badValue(f, v, e))
		}
	})
	given.Visit(func(g *pflag.Flag) {
		f := bound.Lookup(g.Name)
		if err != nil || f == nil {
			return
		}
		if from, ok := g.Value.(pflag.SliceValue); ok {
			err = f.Value.(pflag.SliceValue).Replace(from.GetSlice())
			return
		}
		if m, ok := g.Value.(interface{ String() string }); ok && g.Value.Type() == "stringToString" {
			err = f.Value.Set(strings.Trim(m.String(), "[]"))
			return
		}
		err = f.Value.Set(g.Value.String())
	})
	return err
}

// set gives a flag's value to v; a list in the environment is separated by spaces.
func set(v pflag.Value, s string) error {
	if list, ok := v.(pflag.SliceValue); ok {
		return list.Replace(strings.Fields(s))
	}
	return v.Set(s)
}

// badValue says what the value of a flag, or of its variable, looks like: err of the flag
// package shows the functions that it called.
func badValue(f *pflag.Flag, value string, err error) error {
	kinds := map[string]reflect.Kind{"int": reflect.Int, "uint64": reflect.Uint64, "float64": reflect.Float64, "bool": reflect.Bool}
	switch kind, known := kinds[f.Value.Type()]; {
	case known:
		return fmt.Errorf("%q is not %s", value, form(kind, f.DefValue))
	case f.Value.Type() == "duration" && strings.HasPrefix(err.Error(), "time: "):
		return errors.New(noDuration(value))
	case f.Value.Type() == "stringToString":
		return fmt.Errorf("%q is not name=value, separated by commas where there are several", value)
	}
	return err
}

// lookupEnv reads the environment; an empty variable counts as absent.
func lookupEnv(name string) (string, bool) {
	v := os.Getenv(name)
	return v, v != ""
}

// envName is the environment variable of a flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// workerFlag is the list behind --worker.
type workerFlag []workerConfig

func (w *workerFlag) Type() string { return "worker" }

func (w *workerFlag) String() string { return strings.Join(w.GetSlice(), " ") }

// Set appends one worker.
func (w *workerFlag) Set(s string) error {
	c, err := parseWorker(s)
	if err != nil {
		return err
	}
	*w = append(*w, c)
	return nil
}

// Append is Set, for pflag.SliceValue.
func (w *workerFlag) Append(s string) error { return w.Set(s) }

// Replace makes the list hold exactly the given workers.
func (w *workerFlag) Replace(list []string) error {
	*w = nil
	for _, s := range list {
		if err := w.Set(s); err != nil {
			return err
		}
	}
	return nil
}

// GetSlice returns the workers in the form that Set takes.
func (w *workerFlag) GetSlice() []string {
	out := make([]string, 0, len(*w))
	for _, c := range *w {
		parts := []string{c.URL}
		for _, k := range workerKeys {
			if v := k.get(&c); v != "" && v != "0" && v != "false" {
				parts = append(parts, k.name+"="+v)
			}
		}
		out = append(out, strings.Join(parts, ","))
	}
	return out
}

type workerKey struct {
	name string
	kind reflect.Kind
	get  func(*workerConfig) string
	set  func(*workerConfig, string) error
}

// workerKeys are the keys of --worker, which are those of a worker in the file.
var workerKeys = []workerKey{
	stringKey("id", func(c *workerConfig) *string { return &c.ID }),
	stringKey("engine", func(c *workerConfig) *string { return &c.Engine }),
	stringKey("api_key", func(c *workerConfig) *string { return &c.APIKey }),
	stringKey("events", func(c *workerConfig) *string { return &c.Events }),
	stringKey("replay", func(c *workerConfig) *string { return &c.Replay }),
	stringKey("topic", func(c *workerConfig) *string { return &c.Topic }),
	stringKey("ca", func(c *workerConfig) *string { return &c.CA }),
	stringKey("cert", func(c *workerConfig) *string { return &c.Cert }),
	stringKey("key", func(c *workerConfig) *string { return &c.Key }),
	intKey("ranks", func(c *workerConfig) *int { return &c.Ranks }),
	intKey("block_size", func(c *workerConfig) *int { return &c.BlockSize }),
	intKey("capacity_tokens", func(c *workerConfig) *int { return &c.CapacityTokens }),
	intKey("max_num_seqs", func(c *workerConfig) *int { return &c.MaxNumSeqs }),
	intKey("max_inflight", func(c *workerConfig) *int { return &c.MaxInflight }),
	{
		"insecure_skip_verify", reflect.Bool,
		func(c *workerConfig) string { return strconv.FormatBool(c.InsecureSkipVerify) },
		func(c *workerConfig, v string) (err error) {
			c.InsecureSkipVerify, err = strconv.ParseBool(v)
			return err
		},
	},
}

func stringKey(name string, field func(*workerConfig) *string) workerKey {
	return workerKey{name, reflect.String,
		func(c *workerConfig) string { return *field(c) },
		func(c *workerConfig, v string) error { *field(c) = v; return nil }}
}

func intKey(name string, field func(*workerConfig) *int) workerKey {
	return workerKey{name, reflect.Int,
		func(c *workerConfig) string { return strconv.Itoa(*field(c)) },
		func(c *workerConfig, v string) (err error) { *field(c), err = strconv.Atoi(v); return err }}
}

// parseWorker reads URL[,key=value…].
func parseWorker(s string) (workerConfig, error) {
	parts := strings.Split(s, ",")
	c := workerConfig{URL: parts[0]}
next:
	for _, part := range parts[1:] {
		k, v, ok := strings.Cut(part, "=")
		if !ok {
			return c, fmt.Errorf("worker %q: every part after the URL is key=value, and values hold no comma", redactWorker(parts[0]))
		}
		for _, key := range workerKeys {
			if key.name == k {
				if err := key.set(&c, v); err != nil {
					return c, fmt.Errorf("worker %q: %s=%q is not %s", parts[0], k, v, form(key.kind, ""))
				}
				continue next
			}
		}
		names := make([]string, len(workerKeys))
		for i, key := range workerKeys {
			names[i] = key.name
		}
		return c, fmt.Errorf("worker %q: unknown key %q%s; known are %s", parts[0], k, didYouMean(closest(k, names)), strings.Join(names, ", "))
	}
	return c, c.Validate()
}

// redactWorker cuts user information out of a URL before it is printed.
func redactWorker(u string) string {
	if i := strings.LastIndex(u, "@"); i >= 0 {
		return "…" + u[i:]
	}
	return u
}

// size is a count of bytes, written like 64MiB.
type size int64

var sizeUnits = []struct {
	suffix string
	factor int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1}}

func (s *size) Type() string { return "size" }

func (s *size) String() string {
	for _, u := range sizeUnits[:3] {
		if n := int64(*s); n != 0 && n%u.factor == 0 {
			return strconv.FormatInt(n/u.factor, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(*s), 10) + "B"
}

// Set reads a number with an optional unit.
func (s *size) Set(v string) error {
	num, factor := strings.TrimSpace(v), int64(1)
	for _, u := range sizeUnits {
		if cut, ok := strings.CutSuffix(num, u.suffix); ok {
			num, factor = strings.TrimSpace(cut), u.factor
			break
		}
	}
	n, err := strconv.ParseFloat(num, 64)
	if err != nil || n < 0 || n*float64(factor) > 1<<62 {
		return fmt.Errorf("%q is not a size such as 64MiB", v)
	}
	*s = size(n * float64(factor))
	return nil
}

// UnmarshalYAML reads the form of Set.
func (s *size) UnmarshalYAML(n ast.Node) error { return unmarshalText(n, s.Set) }

// duration is a time span, written like 10s.
type duration time.Duration

func (d *duration) Type() string   { return "duration" }
func (d *duration) String() string { return time.Duration(*d).String() }

// Set reads a Go duration.
func (d *duration) Set(v string) error {
	n, err := time.ParseDuration(v)
	if err != nil {
		return errors.New(noDuration(v))
	}
	*d = duration(n)
	return nil
}

func noDuration(v string) string { return fmt.Sprintf("%q is not a duration such as 10s or 5m", v) }

// UnmarshalYAML reads the form of Set.
func (d *duration) UnmarshalYAML(n ast.Node) error { return unmarshalText(n, d.Set) }

// unmarshalText sets a scalar of the file; its errors name the key and the line.
func unmarshalText(n ast.Node, set func(string) error) error {
	var s string
	err := yaml.NodeToValue(n, &s)
	if err != nil {
		err = errors.New("one value is expected here")
	} else {
		err = set(s)
	}
	if err != nil {
		return fmt.Errorf("%s (line %d): %w", strings.TrimPrefix(n.GetPath(), "$."), n.GetToken().Position.Line, err)
	}
	return nil
}

// validAddress checks the form of an address that is listened on.
func validAddress(setting, addr string) error {
	if _, port, err := net.SplitHostPort(addr); err == nil {
		if _, err := net.LookupPort("tcp", port); err == nil {
			return nil
		}
		return fmt.Errorf("%s: %q has no port from 0 to 65535: expected host:port or :port such as :8000", setting, addr)
	}
	hint := ""
	if _, err := net.LookupPort("tcp", addr); err == nil && addr != "" {
		hint = didYouMean([]string{":" + addr})
	} else if addr != "" && !strings.ContainsAny(addr, ":[] ") {
		hint = didYouMean([]string{addr + ":8000"})
	}
	return fmt.Errorf("%s: %q is no address: expected host:port or :port such as :8000%s", setting, addr, hint)
}

func (c *logConfig) validate() error {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.Level)); err != nil {
		return fmt.Errorf("log.level (--log-level): %q is none of debug, info, warn, error", c.Level)
	}
	if c.Format != "text" && c.Format != "json" {
		return fmt.Errorf("log.format (--log-format): %q is none of text, json", c.Format)
	}
	return nil
}

// logger returns the logger that the validated c describes, writing to w.
func (c *logConfig) logger(w io.Writer) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(c.Level)) // validate has read it
	opts := &slog.HandlerOptions{Level: l}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
