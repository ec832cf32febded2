package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/warmroute/warmroute/internal/upstream"
)

// config is everything that `serve` can be told. deploy/warmroute.yaml is its
// commented reference. Precedence: flags, then WARMROUTE_* variables, then the file,
// then the defaults of defaultConfig.
type config struct {
	Listen string `yaml:"listen"`
	Admin  string `yaml:"admin"`

	TLS       tlsConfig  `yaml:"tls"`
	Auth      authConfig `yaml:"auth"`
	Heartbeat duration   `yaml:"sse_heartbeat"`

	NATS     natsConfig        `yaml:"nats"`
	Workers  []workerConfig    `yaml:"workers"`
	Allow    []string          `yaml:"allow_announced"`
	Aliases  map[string]string `yaml:"model_aliases"`
	Routing  routingConfig     `yaml:"routing"`
	Limits   limitsConfig      `yaml:"limits"`
	Index    indexConfig       `yaml:"index"`
	Prefill  prefillConfig     `yaml:"speculative_prefill"`
	Tokens   tokenizerConfig   `yaml:"tokenizer"`
	StateDir string            `yaml:"state_dir"`
	Log      logConfig         `yaml:"log"`

	Simulate int `yaml:"simulate"`
}

// natsConfig says which event bus to use; the zero value embeds a server that listens
// on no port.
type natsConfig struct {
	URL                string `yaml:"url"`
	Listen             string `yaml:"listen"`
	Cluster            string `yaml:"cluster"`
	Prefix             string `yaml:"prefix"`
	CA                 string `yaml:"ca"`
	Cert               string `yaml:"cert"`
	Key                string `yaml:"key"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
	User               string `yaml:"user"`
	Password           string `yaml:"password"`
	Token              string `yaml:"token"`
}

// workerConfig is one worker: a URL and what cannot be learned from it.
type workerConfig = upstream.WorkerConfig

type routingConfig struct {
	Mode          string   `yaml:"mode"`
	MaxInflight   int      `yaml:"max_inflight"`
	MaxQueue      int      `yaml:"max_queue"`
	MaxQueueDelay duration `yaml:"max_queue_delay"`
	Retries       int      `yaml:"retries"`
}

// maxQueue returns the bound as the router takes it: there 0 is the default.
func (c *routingConfig) maxQueue() int {
	if c.MaxQueue == 0 {
		return -1
	}
	return c.MaxQueue
}

type limitsConfig struct {
	MaxBody          size     `yaml:"max_body"`
	ConnectTimeout   duration `yaml:"connect_timeout"`
	FirstByteTimeout duration `yaml:"first_byte_timeout"`
	IdleTimeout      duration `yaml:"idle_timeout"`
	TokenizeTimeout  duration `yaml:"tokenize_timeout"`
	DrainDelay       duration `yaml:"drain_delay"`
	Grace            duration `yaml:"grace"`
	KeepAlive        duration `yaml:"keep_alive"`
	MaxConnections   int      `yaml:"max_connections"`
}

type indexConfig struct {
	MaxBytes         size     `yaml:"max_bytes"`
	ApproximateBytes size     `yaml:"approximate_bytes"`
	ApproximateTTL   duration `yaml:"approximate_ttl"`
}

// prefillConfig says which turns are followed by a warm-up of the next.
type prefillConfig struct {
	Mode    string            `yaml:"mode"`
	Models  map[string]string `yaml:"models"`
	Keys    map[string]string `yaml:"keys"`
	Holdout float64           `yaml:"holdout"`

	// Of the requests that the modes or a hint name.
	Join      bool `yaml:"join"`
	Replicate bool `yaml:"replicate"`
	Rewarm    bool `yaml:"rewarm"`
}

// copies tells whether hot heads are copied to idle workers: the router must know before
// any hint comes.
func (c *prefillConfig) copies() bool {
	return c.Replicate && (c.Mode != "off" || len(c.Models)+len(c.Keys) > 0)
}

type logConfig struct {
	Level  string `yaml:"level"`
	Format string `yaml:"format"`
}

func defaultConfig() config {
	return config{
		Listen:  ":8000",
		Admin:   "127.0.0.1:8001",
		NATS:    natsConfig{Cluster: "default", Prefix: "warmroute"},
		Routing: routingConfig{Mode: "kv", MaxInflight: 1024, MaxQueue: 4096, MaxQueueDelay: duration(10 * time.Second), Retries: 2},
		Limits: limitsConfig{
			MaxBody:          64 << 20,
			ConnectTimeout:   duration(5 * time.Second),
			FirstByteTimeout: duration(10 * time.Minute),
			IdleTimeout:      duration(5 * time.Minute),
			TokenizeTimeout:  duration(50 * time.Millisecond),
			Grace:            duration(60 * time.Second),
			KeepAlive:        duration(2 * time.Minute),
			MaxConnections:   16384,
		},
		Index:   indexConfig{MaxBytes: 2 << 30, ApproximateBytes: 256 << 20, ApproximateTTL: duration(15 * time.Minute)},
		Prefill: prefillConfig{Mode: "off", Holdout: 0.05, Join: true, Replicate: true},
		Log:     logConfig{Level: "info", Format: "text"},
	}
}

// tokenizerConfig says where the files are with which this process makes tokens itself.
type tokenizerConfig struct {
	Path    string            `yaml:"path"`
	Models  map[string]string `yaml:"models"`
	Offline bool              `yaml:"offline"`
}

// bind declares the flags of c with its present values as their defaults. A setting's
// environment variable is WARMROUTE_ and its flag in upper case, - as _.
func (c *config) bind(f *pflag.FlagSet) {
	f.StringVar(&c.Listen, "listen", c.Listen, "address of the OpenAI endpoint")
	f.StringVar(&c.Admin, "admin", c.Admin, "address of metrics and /debug; keep it off public networks")
	f.StringVar(&c.TLS.Cert, "tls-cert", c.TLS.Cert, "PEM `file` with the certificate chain of the OpenAI endpoint; empty speaks plain HTTP")
	f.StringVar(&c.TLS.Key, "tls-key", c.TLS.Key, "PEM `file` with its key")
	f.StringVar(&c.TLS.ClientCA, "tls-client-ca", c.TLS.ClientCA, "PEM `file` with the authorities that sign clients' certificates; empty asks for none")
	f.StringVar(&c.Auth.File, "auth-file", c.Auth.File, "YAML `file` with API keys, a list as under auth.keys; without any key everybody may come in")
	f.Var(&c.Heartbeat, "sse-heartbeat", "silence of a stream, once it has begun, after which the client gets an SSE comment; 0s sends none")
	f.VarP((*workerFlag)(&c.Workers), "worker", "w", "worker as `URL[,key=value…]`, keys as in the file: id, events, replay, topic, ranks, engine, api_key, block_size, capacity_tokens, max_num_seqs, max_inflight, ca, cert, key, insecure_skip_verify; repeat for each")
	f.StringSliceVar(&c.Allow, "allow-announced", c.Allow, "`hosts or CIDRs` of workers that may join by NATS announcement alone; none by default")
	f.StringToStringVar(&c.Aliases, "model-alias", c.Aliases, "extra model name, as `alias=model`; repeat for each")
	f.StringVar(&c.NATS.URL, "nats", c.NATS.URL, "`URL` of a NATS server to share events over, e.g. nats://host:4222 or tls://host:4222; empty embeds one")
	f.StringVar(&c.NATS.Listen, "nats-listen", c.NATS.Listen, "`host:port` on which the embedded NATS server accepts relays; empty opens no port")
	f.StringVar(&c.NATS.Cluster, "nats-cluster", c.NATS.Cluster, "name of the cluster in NATS subjects; proxies and relays of one cluster share a view")
	f.StringVar(&c.NATS.Prefix, "nats-prefix", c.NATS.Prefix, "first part of NATS subjects")
	bindNATSCredentials(f, &c.NATS)
	f.StringVar(&c.Routing.Mode, "mode", c.Routing.Mode, "routing: kv, round-robin, random or least-loaded")
	f.IntVar(&c.Routing.MaxInflight, "max-inflight", c.Routing.MaxInflight, "requests in flight per worker; when every worker has that many, more wait")
	f.IntVar(&c.Routing.MaxQueue, "max-queue", c.Routing.MaxQueue, "requests that wait while every worker is full, and first turns while live conversations fill the KV caches; more get 429; 0: nobody waits")
	f.Var(&c.Routing.MaxQueueDelay, "max-queue-delay", "longest wait in that queue; then clients get 429 with Retry-After")
	f.IntVar(&c.Routing.Retries, "retries", c.Routing.Retries, "other workers tried when one fails before its first byte")
	f.Var(&c.Limits.MaxBody, "max-body", "largest request body, e.g. 64MiB")
	f.Var(&c.Limits.ConnectTimeout, "connect-timeout", "time to connect to a worker")
	f.Var(&c.Limits.FirstByteTimeout, "first-byte-timeout", "time from sending a request to the worker's response headers (a long prefill needs minutes)")
	f.Var(&c.Limits.IdleTimeout, "idle-timeout", "longest silence of a worker in mid-response")
	f.Var(&c.Limits.TokenizeTimeout, "tokenize-timeout", "time an engine has to tokenize a prompt; past it the request is routed by text")
	f.Var(&c.Limits.DrainDelay, "drain-delay", "time after SIGTERM in which /readyz already says no and requests are still accepted, for load balancers that poll it")
	f.Var(&c.Limits.Grace, "grace", "time that open streams have to finish after SIGTERM")
	f.Var(&c.Limits.KeepAlive, "keep-alive", "time that a client's connection is kept for its next request; more than the idle life of what connects, so that it closes first")
	f.IntVar(&c.Limits.MaxConnections, "max-connections", c.Limits.MaxConnections, "open connections of clients; more get 503")
	f.Var(&c.Index.MaxBytes, "index-max-bytes", "memory cap of the exact index, e.g. 2GiB")
	f.Var(&c.Index.ApproximateBytes, "approximate-max-bytes", "memory cap of the approximate index")
	f.Var(&c.Index.ApproximateTTL, "approximate-ttl", "how long the approximate index believes that a worker still holds a prefix")
	f.StringVar(&c.Prefill.Mode, "speculative-prefill", c.Prefill.Mode, "warm the next turn of conversations whose requests do not say: off, on, or auto (only on workers known to hold a cache)")
	f.Float64Var(&c.Prefill.Holdout, "speculation-holdout", c.Prefill.Holdout, "share of the turns to be warmed that are not, at random, so that /debug/prefill knows what warming saves; 0 measures nothing")
	f.StringVar(&c.Tokens.Path, "model-path", c.Tokens.Path, "`directory or Hugging Face id` with the tokenizer and chat template of every model that tokenizer.models does not name; empty takes what each worker names at /v1/models")
	f.BoolVar(&c.Tokens.Offline, "offline", c.Tokens.Offline, "take tokenizer files from disk only (as does HF_HUB_OFFLINE=1); HF_HOME, HF_ENDPOINT and HF_TOKEN are those of Python's huggingface_hub")
	f.StringVar(&c.StateDir, "state-dir", c.StateDir, "`directory` in which relays keep their hash maps, so that a restart stays exact")
	f.IntVar(&c.Simulate, "simulate", c.Simulate, "start this many simulated workers on 127.0.0.1 and route to them")
	bindLog(f, &c.Log)
}

// bindNATSCredentials declares the flags that serve and relay share.
func bindNATSCredentials(f *pflag.FlagSet, c *natsConfig) {
	f.StringVar(&c.CA, "nats-ca", c.CA, "PEM `file` with the authority that signed the NATS server's certificate")
	f.StringVar(&c.Cert, "nats-cert", c.Cert, "PEM `file` with the client certificate for NATS")
	f.StringVar(&c.Key, "nats-key", c.Key, "PEM `file` with the client key for NATS")
	f.BoolVar(&c.InsecureSkipVerify, "nats-insecure-skip-verify", c.InsecureSkipVerify, "accept any certificate of the NATS server (tests only)")
	f.StringVar(&c.User, "nats-user", c.User, "NATS user")
	f.StringVar(&c.Password, "nats-password", c.Password, "NATS password; better WARMROUTE_NATS_PASSWORD, which no process list shows")
	f.StringVar(&c.Token, "nats-token", c.Token, "NATS token; better WARMROUTE_NATS_TOKEN")
}

func bindLog(f *pflag.FlagSet, c *logConfig) {
	f.StringVar(&c.Level, "log-level", c.Level, "debug, info, warn or error")
	f.StringVar(&c.Format, "log-format", c.Format, "text or json")
}

// loadFile reads the YAML file over c.
func (c *config) loadFile(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read --config: %w", err)
	}
	return decodeYAML(path, raw, c)
}

// tenantHash is what a client is known by where there are no API keys: the start of the SHA-256 of its Authorization.
var tenantHash = regexp.MustCompile(`^[0-9a-f]{16}$`)

// validate names the first setting that cannot work and what would.
func (c *config) validate() error {
	for i := range c.Workers {
		if err := c.Workers[i].Validate(); err != nil {
			return fmt.Errorf("workers[%d]: %w", i, err)
		}
	}
	for setting, addr := range map[string]string{"listen (--listen)": c.Listen, "admin (--admin)": c.Admin} {
		if err := validAddress(setting, addr); err != nil {
			return err
		}
	}
	if c.NATS.Listen != "" {
		if err := validAddress("nats.listen (--nats-listen)", c.NATS.Listen); err != nil {
			return err
		}
	}
	if err := c.Tokens.validate(); err != nil {
		return err
	}
	if err := c.TLS.validate(); err != nil {
		return err
	}
	switch c.Routing.Mode {
	case "kv", "round-robin", "random", "least-loaded":
	default:
		return fmt.Errorf("routing.mode (--mode): %q is none of kv, round-robin, random, least-loaded", c.Routing.Mode)
	}
	if err := validWarming("speculative_prefill.mode (--speculative-prefill)", c.Prefill.Mode); err != nil {
		return err
	}
	for name, list := range map[string]map[string]string{"models": c.Prefill.Models, "keys": c.Prefill.Keys} {
		for _, key := range slices.Sorted(maps.Keys(list)) {
			if err := validWarming("speculative_prefill."+name+"."+key, list[key]); err != nil {
				return err
			}
		}
	}
	for key := range c.Prefill.Keys {
		if !c.Auth.on() && !tenantHash.MatchString(key) {
			return fmt.Errorf("speculative_prefill.keys: %q is no hash of a client's key: take the output of printf 'Bearer %%s' \"$KEY\" | sha256sum | cut -c1-16, or configure auth.keys and give a key's name", key)
		}
	}
	for _, r := range []struct {
		name string
		bad  bool
		want string
	}{
		{"routing.max_inflight (--max-inflight)", c.Routing.MaxInflight < 1, "at least 1"},
		{"routing.max_queue (--max-queue)", c.Routing.MaxQueue < 0, "0 or more"},
		{"routing.max_queue_delay (--max-queue-delay)", c.Routing.MaxQueueDelay <= 0, "more than 0s"},
		{"routing.retries (--retries)", c.Routing.Retries < 0, "0 or more"},
		{"limits.max_body (--max-body)", c.Limits.MaxBody < 1<<10, "at least 1KiB"},
		{"limits.connect_timeout (--connect-timeout)", c.Limits.ConnectTimeout <= 0, "more than 0s"},
		{"limits.first_byte_timeout (--first-byte-timeout)", c.Limits.FirstByteTimeout <= 0, "more than 0s"},
		{"limits.idle_timeout (--idle-timeout)", c.Limits.IdleTimeout <= 0, "more than 0s"},
		{"limits.tokenize_timeout (--tokenize-timeout)", c.Limits.TokenizeTimeout <= 0, "more than 0s"},
		{"limits.drain_delay (--drain-delay)", c.Limits.DrainDelay < 0, "0s or more"},
		{"limits.grace (--grace)", c.Limits.Grace < 0, "0s or more"},
		{"limits.keep_alive (--keep-alive)", c.Limits.KeepAlive <= 0, "more than 0s"},
		{"limits.max_connections (--max-connections)", c.Limits.MaxConnections < 1, "at least 1"},
		{"sse_heartbeat (--sse-heartbeat)", c.Heartbeat != 0 && c.Heartbeat < duration(time.Second), "0s or at least 1s"},
		{"index.max_bytes (--index-max-bytes)", c.Index.MaxBytes < 1<<20, "at least 1MiB"},
		{"index.approximate_bytes (--approximate-max-bytes)", c.Index.ApproximateBytes < 1<<20, "at least 1MiB"},
		{"index.approximate_ttl (--approximate-ttl)", c.Index.ApproximateTTL <= 0, "more than 0s"},
		{"speculative_prefill.holdout (--speculation-holdout)", !(c.Prefill.Holdout >= 0 && c.Prefill.Holdout <= 1), "a share from 0 to 1"},
		{"simulate (--simulate)", c.Simulate < 0 || c.Simulate > 64, "0 to 64"},
	} {
		if r.bad {
			return fmt.Errorf("%s must be %s", r.name, r.want)
		}
	}
	if len(c.Workers) == 0 && c.Simulate == 0 && len(c.Allow) == 0 {
		return errors.New("no workers: give --worker URL, workers: in the file, --allow-announced with --nats, or --simulate 2 to try it without a GPU")
	}
	return c.Log.validate()
}

func validWarming(setting, mode string) error {
	switch mode {
	case "off", "on", "auto":
		return nil
	}
	return fmt.Errorf("%s: %q is none of off, on, auto", setting, mode)
}

// loadConfig merges defaults, file, environment and flags.
func loadConfig(path string, given *pflag.FlagSet) (config, error) {
	c := defaultConfig()
	if path != "" {
		if err := c.loadFile(path); err != nil {
			return c, err
		}
	}
	bound := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.bind(bound)
	if err := overlay(given, bound, lookupEnv); err != nil {
		return c, err
	}
	return c, c.validate()
}
