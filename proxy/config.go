package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/prefill"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
)

// headerBytes bounds the headers of a request: long bearer tokens and baggage fit.
const headerBytes = 32 << 10

// writeBytes is the write buffer of a client's connection. A read of a stream gives the
// server at most 4 KB: with its frame, and the header before the first, it leaves in one
// write. Behind a full buffer of 4 KB the frame's last bytes would be a write of their own.
const writeBytes = 4<<10 + 768

// Config configures a Server. Zero values take the defaults.
type Config struct {
	Listen string      // the OpenAI endpoint, host:port; default ":8000". Flag --listen
	Admin  string      // metrics and /debug; default "127.0.0.1:8001". Flag --admin
	TLS    *tls.Config // of the OpenAI endpoint, as LoadTLS makes it; nil speaks plain HTTP. SetAccess replaces it

	Router *router.Router  // needed
	Fleet  *upstream.Fleet // needed
	Prompt *prompt.Builder // needed

	Prefill *prefill.Prefiller // warms next turns; nil warms none

	Consumer *events.Consumer // its feeds are shown; nil shows none
	Peers    *events.Peers    // other proxies, which are shown; nil shows none
	Bus      *events.Bus      // while it is down readiness says degraded; nil is never down

	// Keys are the API keys of the front; none lets everybody in and passes the client's
	// Authorization on to workers without a key of their own. SetAccess replaces them.
	Keys []Key

	Aliases      map[string]string // extra model names, alias to served name. Flag --model-alias
	MaxBodyBytes int               // largest request body, also after decompression; default 64 MiB. Flag --max-body
	Retries      int               // other workers tried before the first byte; default 2, negative is none. Flag --retries

	HeaderTimeout time.Duration // for the headers of a request; default 10 s
	BodyTimeout   time.Duration // for its body; default 2 min
	BodyRate      int           // bytes per second that a request must come with, over 30 s; default 1024, negative is none
	KeepAlive     time.Duration // for the next request on a connection; default 2 min. Flag --keep-alive
	MaxConns      int           // open connections of clients; more get 503; default 16384, negative is no limit. Flag --max-connections
	ClientStall   time.Duration // for a client to take the next bytes; default 1 min

	// Heartbeat is the silence of a stream after which the client gets an SSE comment; it
	// begins with the first byte of the answer. 0 sends none. Flag --sse-heartbeat
	Heartbeat time.Duration

	// DrainDelay is how long readiness says no before the port closes, for load balancers
	// that poll it; default 0. Grace is how long open streams may then go on before they
	// are broken off; default 60 s. Flag --grace
	DrainDelay, Grace time.Duration

	Version    string // shown by /debug/workers
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer // what /metrics shows; nil shows nothing
}

func (c *Config) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.HeaderTimeout, 10*time.Second)
	def(&c.BodyTimeout, 2*time.Minute)
	def(&c.KeepAlive, 2*time.Minute)
	def(&c.ClientStall, time.Minute)
	def(&c.Grace, time.Minute)
	if c.Listen == "" {
		c.Listen = ":8000"
	}
	if c.Admin == "" {
		c.Admin = "127.0.0.1:8001"
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = 64 << 20
	}
	if c.BodyRate == 0 {
		c.BodyRate = 1 << 10
	}
	if c.MaxConns == 0 {
		c.MaxConns = 16384
	}
	if c.Retries == 0 {
		c.Retries = 2
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Gatherer == nil {
		c.Gatherer = prometheus.NewRegistry()
	}
}

// Validate names the first setting that cannot work and what would.
func (c *Config) Validate() error {
	if c.Router == nil || c.Fleet == nil || c.Prompt == nil {
		return errors.New("BUG: proxy.Config needs Router, Fleet and Prompt")
	}
	if c.MaxBodyBytes < 0 {
		return fmt.Errorf("max_body (--max-body) %d must not be negative", c.MaxBodyBytes)
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"header timeout", c.HeaderTimeout}, {"body timeout", c.BodyTimeout}, {"keep-alive", c.KeepAlive},
		{"client stall", c.ClientStall}, {"drain delay", c.DrainDelay}, {"sse_heartbeat (--sse-heartbeat)", c.Heartbeat}, {"grace (--grace)", c.Grace},
	} {
		if d.d < 0 {
			return fmt.Errorf("%s must not be negative", d.name)
		}
	}
	for alias, model := range c.Aliases {
		if alias == "" || model == "" {
			return fmt.Errorf("model_aliases (--model-alias): %q=%q has an empty side", alias, model)
		}
		if _, ok := c.Aliases[model]; ok && alias != model {
			return fmt.Errorf("model_aliases (--model-alias): %q stands for %q, which is an alias itself: name the served model", alias, model)
		}
	}
	return nil
}
