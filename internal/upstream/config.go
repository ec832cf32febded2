package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
)

// The engines that a worker may be; EngineOpenAI is anything with an OpenAI API.
const (
	EngineVLLM     = "vllm"
	EngineSGLang   = "sglang"
	EngineLlamaCPP = "llamacpp"
	EngineOpenAI   = "openai"
)

// WorkerConfig is one worker: its URL and what cannot be learned from it.
type WorkerConfig struct {
	ID     string `yaml:"id"`      // stable name in metrics and headers; default: the normalised URL
	URL    string `yaml:"url"`     // http:// or https://, with or without /v1
	APIKey string `yaml:"api_key"` // sent as a bearer token instead of the client's Authorization
	Engine string `yaml:"engine"`  // vllm, sglang, llamacpp or openai; default: detected

	Events string `yaml:"events"` // ZMQ endpoint of rank 0's KV events, tcp://host:5557; rank r is port + r
	Replay string `yaml:"replay"` // its replay socket
	Topic  string `yaml:"topic"`  // ZMQ topic filter; default: all
	Ranks  int    `yaml:"ranks"`  // data-parallel ranks behind the URL; 0 learns it

	MaxInflight    int `yaml:"max_inflight"`    // requests in flight; 0 takes the router's limit
	CapacityTokens int `yaml:"capacity_tokens"` // KV tokens of one rank; 0 learns it
	MaxNumSeqs     int `yaml:"max_num_seqs"`    // sequences the engine runs at once; 0 learns it
	BlockSize      int `yaml:"block_size"`      // 0 learns it from the events

	CA                 string `yaml:"ca"`                   // PEM file for an https worker with a private authority
	Cert               string `yaml:"cert"`                 // PEM file with the certificate that an https worker asks of us
	Key                string `yaml:"key"`                  // PEM file with its key
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify"` // accept any certificate (tests only)
}

// Timeouts are the limits of one exchange. There is none for a whole answer.
type Timeouts struct {
	Connect   time.Duration // connecting to a worker; default 5 s
	FirstByte time.Duration // from sending the request to the first byte of the answer's body; default 10 min
	Idle      time.Duration // longest silence within an answer; default 5 min
}

// FleetConfig configures a Fleet. Zero values take the defaults.
type FleetConfig struct {
	Workers []WorkerConfig
	// Allow lists the hosts (name or address) and CIDRs of workers that may join by NATS
	// announcement alone; empty allows none.
	Allow    []string
	Timeouts Timeouts

	Router *router.Router // receives workers, health and feeds; needed
	Bus    *events.Bus    // carries the events of workers with Events; nil leaves them unread

	// Local makes tokens in this process; it hears which models there are. nil makes none.
	Local *prompt.Models

	Prefix, Cluster string // of the NATS subjects
	StateDir        string // where in-process relays keep their hash maps; "" keeps none

	// OnHealthy, if set, is called when a check of a worker that was not healthy has
	// succeeded, before the router hears of it. It must not wait.
	OnHealthy func(worker string)

	Probe    time.Duration // between health checks of a worker; default 2 s
	MaxConns int           // connections per worker; default 16384

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// idleLife is how long an unused connection to a worker is kept. vLLM and SGLang close
// theirs after 5 s (uvicorn).
const idleLife = 3500 * time.Millisecond

func (c *FleetConfig) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Timeouts.Connect, 5*time.Second)
	def(&c.Timeouts.FirstByte, 10*time.Minute)
	def(&c.Timeouts.Idle, 5*time.Minute)
	def(&c.Probe, 2*time.Second)
	if c.MaxConns == 0 {
		c.MaxConns = 16384
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate names the first setting that cannot work and what would.
func (c *FleetConfig) Validate() error {
	if c.Router == nil {
		return errors.New("BUG: FleetConfig.Router is nil")
	}
	for _, t := range []struct {
		name string
		d    time.Duration
	}{
		{"connect_timeout (--connect-timeout)", c.Timeouts.Connect},
		{"first_byte_timeout (--first-byte-timeout)", c.Timeouts.FirstByte},
		{"idle_timeout (--idle-timeout)", c.Timeouts.Idle},
		{"probe interval", c.Probe},
	} {
		if t.d < 0 {
			return fmt.Errorf("%s must be more than 0s", t.name)
		}
	}
	if _, err := parseAllow(c.Allow); err != nil {
		return err
	}
	return validateWorkers(c.Workers)
}

func validateWorkers(workers []WorkerConfig) error {
	byID, byURL := map[string]int{}, map[string]int{}
	for i := range workers {
		w := &workers[i]
		if err := w.Validate(); err != nil {
			return fmt.Errorf("workers[%d]: %w", i, err)
		}
		base, _ := parseBaseURL(w.URL)
		id := w.id()
		if j, ok := byID[id]; ok {
			return fmt.Errorf("workers[%d]: id %q is that of workers[%d]: give each worker its own id", i, id, j)
		}
		if j, ok := byURL[base.url]; ok {
			return fmt.Errorf("workers[%d]: url %s is that of workers[%d]: one entry per URL (ranks says how many DP ranks are behind it)", i, base.url, j)
		}
		byID[id], byURL[base.url] = i, i
	}
	return nil
}

// Validate names the first key of the worker that cannot work.
func (w *WorkerConfig) Validate() error {
	if _, err := parseBaseURL(w.URL); err != nil {
		return err
	}
	switch w.Engine {
	case "", EngineVLLM, EngineSGLang, EngineLlamaCPP, EngineOpenAI:
	default:
		return fmt.Errorf("engine %q is none of vllm, sglang, llamacpp, openai", w.Engine)
	}
	for _, e := range []struct{ key, v string }{{"events", w.Events}, {"replay", w.Replay}} {
		if e.v != "" && !strings.HasPrefix(e.v, "tcp://") && !strings.HasPrefix(e.v, "ipc://") {
			return fmt.Errorf("%s %q must be a ZMQ endpoint such as tcp://host:5557", e.key, e.v)
		}
	}
	if w.Replay != "" && w.Events == "" {
		return errors.New("replay is set without events: the replay socket only completes the event stream")
	}
	if w.Ranks < 0 || w.Ranks > maxRanks {
		return fmt.Errorf("ranks %d must be 0 to %d", w.Ranks, maxRanks)
	}
	if w.MaxInflight < 0 || w.CapacityTokens < 0 || w.MaxNumSeqs < 0 || w.BlockSize < 0 {
		return errors.New("max_inflight, capacity_tokens, max_num_seqs and block_size must not be negative (0 learns or takes the default)")
	}
	if strings.ContainsAny(w.APIKey, "\r\n") {
		return errors.New("api_key holds a line break")
	}
	_, err := w.tlsConfig()
	return err
}

// maxRanks bounds the data-parallel ranks of one worker.
const maxRanks = 1024

func (w *WorkerConfig) id() string {
	if w.ID != "" {
		return w.ID
	}
	base, err := parseBaseURL(w.URL)
	if err != nil {
		return w.URL
	}
	return base.url
}

// tlsConfig returns the TLS side of the worker, nil for plain http.
func (w *WorkerConfig) tlsConfig() (*tls.Config, error) {
	if (w.Cert == "") != (w.Key == "") {
		return nil, errors.New("cert and key go together")
	}
	if !strings.HasPrefix(strings.ToLower(w.URL), "https:") {
		if w.Cert != "" {
			return nil, errors.New("cert is set for a worker that is not https")
		}
		return nil, nil
	}
	base, err := parseBaseURL(w.URL)
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(base.addr)
	c := &tls.Config{ServerName: host, InsecureSkipVerify: w.InsecureSkipVerify, MinVersion: tls.VersionTLS12}
	if w.CA != "" {
		pem, err := os.ReadFile(w.CA)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s holds no PEM certificate", w.CA)
		}
	}
	if w.Cert == "" {
		return c, nil
	}
	first, err := tls.LoadX509KeyPair(w.Cert, w.Key)
	if err != nil {
		return nil, fmt.Errorf("cert and key: %w", err)
	}
	c.GetClientCertificate = clientCertificate(w.Cert, w.Key, first)
	return c, nil
}

// clientCertificate reads the certificate at each handshake, so that one which was renewed
// is used, and gives the last that could be read while the files change.
func clientCertificate(cert, key string, first tls.Certificate) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	var last atomic.Pointer[tls.Certificate]
	last.Store(&first)
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if pair, err := tls.LoadX509KeyPair(cert, key); err == nil {
			last.Store(&pair)
		}
		return last.Load(), nil
	}
}

// baseURL is a worker's URL in parts.
type baseURL struct {
	url  string // normalised: lower-case scheme and host, no default port, no trailing slash or /v1
	host string // value of the Host field
	addr string // host:port to dial
	path string // prefix of every path, without a trailing slash
}

func parseBaseURL(s string) (baseURL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return baseURL{}, fmt.Errorf("url %q must look like http://host:8000", redactURL(s))
	}
	if u.User != nil {
		return baseURL{}, errors.New("url holds user information: give the credential as api_key")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return baseURL{}, fmt.Errorf("url %q must have no query or fragment", s)
	}
	port := u.Port()
	host := strings.ToLower(u.Hostname())
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return baseURL{}, fmt.Errorf("url %q: port %s is not from 1 to 65535", s, port)
	}
	b := baseURL{addr: net.JoinHostPort(host, port), host: net.JoinHostPort(host, port)}
	if u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		b.host = strings.TrimSuffix(b.host, ":"+port)
	}
	b.path = strings.TrimSuffix(strings.TrimRight(u.EscapedPath(), "/"), "/v1")
	b.url = u.Scheme + "://" + b.host + b.path
	return b, nil
}

// redactURL cuts user information out of a URL that could not be parsed.
func redactURL(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if i := strings.LastIndex(rest, "@"); ok && i >= 0 {
		return scheme + "://" + rest[i+1:]
	}
	return s
}

// allowList says which announced workers may be used.
type allowList struct {
	hosts    []string
	prefixes []netip.Prefix
}

func parseAllow(entries []string) (allowList, error) {
	var a allowList
	for _, e := range entries {
		e = strings.ToLower(strings.TrimSpace(e))
		if p, err := netip.ParsePrefix(e); err == nil {
			a.prefixes = append(a.prefixes, p.Masked())
		} else if e == "" || strings.ContainsAny(e, "/ ") {
			return a, fmt.Errorf("allow_announced (--allow-announced): %q is neither a host nor a CIDR such as 10.0.0.0/8", e)
		} else {
			a.hosts = append(a.hosts, strings.Trim(e, "[]"))
		}
	}
	return a, nil
}

// match tells whether the host of a worker's URL is allowed. A name is never resolved: who
// controls DNS must not be able to attract prompts.
func (a *allowList) match(b baseURL) bool {
	host, _, _ := net.SplitHostPort(b.addr)
	if slices.Contains(a.hosts, host) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && slices.ContainsFunc(a.prefixes, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) })
}
