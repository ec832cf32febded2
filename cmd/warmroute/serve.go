package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/prefill"
	"github.com/warmroute/warmroute/proxy"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// heapFloor is held and never touched, so it costs address space only. The live heap of a
// proxy with a small index is a few MiB, which long prompts double within a dozen
// requests: without a floor the collector is most of the tail of the added latency. A
// higher GOGC would double a large index instead.
const heapFloor = 64 << 20

func newServe() *cobra.Command {
	var path string
	flags := defaultConfig() // only to parse into; loadConfig merges
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the proxy",
		Long: `serve runs the proxy: an OpenAI endpoint on --listen and metrics and /debug on
--admin. Settings come from flags, then WARMROUTE_* variables (a flag's name in upper
case, - as _), then --config, then defaults. SIGHUP or a change of a file reloads workers,
API keys and certificates. SIGTERM drains; a second signal exits at once.`,
		Example: `  # Try it without a GPU.
  warmroute serve --simulate 2

  # Two vLLM replicas with KV events, one SGLang replica without.
  warmroute serve \
    --worker http://gpu1:8000,events=tcp://gpu1:5557,replay=tcp://gpu1:5657 \
    --worker http://gpu2:8000,events=tcp://gpu2:5557,replay=tcp://gpu2:5657 \
    --worker http://gpu3:30000

  # Several proxies that share the events of one NATS cluster.
  warmroute serve --nats nats://nats:4222 --config warmroute.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				path = os.Getenv("WARMROUTE_CONFIG")
			}
			reload := newReloader(path, cmd.Flags())
			cfg, err := loadConfig(path, cmd.Flags())
			if err != nil {
				return &usageError{err}
			}
			reload.follow(cfg)
			simulated, err := startSimulated(cfg.Simulate, simPorts)
			if err != nil { // somebody has one of the usual ports
				simulated, err = startSimulated(cfg.Simulate, ports{})
			}
			if err != nil {
				return err
			}
			registry := prometheus.NewRegistry()
			log := cfg.Log.logger(cmd.ErrOrStderr())
			for _, line := range strayVariables(cmd.Root(), os.Environ(), cfg.Auth.secretVariables) {
				log.Warn(line)
			}
			p, err := newParts(cfg, simulated, registry, registry, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			floor := make([]byte, heapFloor)
			defer runtime.KeepAlive(floor)
			return p.run(cmd.Context(), reload)
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "YAML `file`; deploy/warmroute.yaml is the reference")
	flags.bind(cmd.Flags())
	return cmd
}

// parts are the running halves of serve: the front, and everything behind it.
type parts struct {
	bus       *events.Bus
	fleet     *upstream.Fleet
	consumer  *events.Consumer
	peers     *events.Peers // nil: no other proxy can be heard
	models    *prompt.Models
	prompt    *prompt.Builder
	prefill   *prefill.Prefiller
	front     *proxy.Server
	simulated *simulated
	log       *slog.Logger
	stderr    io.Writer
	names     []modelNames
	api       string // scheme and address of the OpenAI endpoint
	nats      string // which server it is, for people
	quiet     bool   // no hint of what to try
}

// newParts wires the packages and binds the ports; run serves them. What registry takes
// is what gather shows.
func newParts(cfg config, simulated *simulated, registry prometheus.Registerer, gather prometheus.Gatherer, stderr io.Writer) (*parts, error) {
	log := cfg.Log.logger(stderr)
	keys, certificates, err := cfg.secrets()
	if err != nil {
		return nil, &usageError{err}
	}
	if names := cfg.unknownKeys(keys); len(names) > 0 {
		log.Warn("speculative_prefill.keys names API keys that there are not", "names", names)
	}
	if err := makeStateDir(cfg.StateDir); err != nil {
		return nil, err
	}
	workers := append(cfg.Workers, simulated.workers...)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	bus, err := events.OpenBus(busConfig(cfg.NATS, log))
	if err != nil {
		return nil, err
	}
	closeBus := true
	defer func() {
		if closeBus {
			bus.Close()
		}
	}()

	var numbers kv.Workers
	indexes := index.NewSet(index.Config{
		MaxBytes:         int64(cfg.Index.MaxBytes),
		ApproximateBytes: int64(cfg.Index.ApproximateBytes),
		ApproximateTTL:   time.Duration(cfg.Index.ApproximateTTL),
	})
	registry.MustRegister(index.NewCollector(indexes))

	var consumer *events.Consumer
	var peers *events.Peers
	var tell func()
	var reach prefill.Peers
	var warmer *prefill.Prefiller
	shared := bus.Shared()
	if shared != nil {
		tell = func() { peers.Wake() }
		reach = prefill.Peers{Changed: func() { peers.Warmed() }, Meet: func(m kv.Meeting) { peers.Meet(m) }}
	}
	rt := router.New(router.Config{
		Mode:        router.Mode(cfg.Routing.Mode),
		MaxInflight: cfg.Routing.MaxInflight,
		MaxQueue:    cfg.Routing.maxQueue(),
		Index:       indexes,
		Workers:     &numbers,
		OnStaleHits: func(r kv.WorkerRank) { consumer.Resync(r, "stale_hits") },
		OnBooking:   tell,
		Copies:      cfg.Prefill.copies(),
		Registerer:  registry,
		Logger:      log,

		MaxQueueDelay: time.Duration(cfg.Routing.MaxQueueDelay),
	})
	models := prompt.NewModels(prompt.ModelsConfig{Paths: modelPaths(cfg.Tokens), Find: findModel(cfg.Tokens, log), Logger: log, Registerer: registry})
	fc := cfg.fleet()
	fc.Workers, fc.Local, fc.Router, fc.Bus, fc.Logger, fc.Registerer = workers, models, rt, bus, log, registry
	fc.OnHealthy = func(worker string) { warmer.Join(worker) }
	fleet, err := upstream.NewFleet(fc)
	if err != nil {
		return nil, &usageError{err}
	}
	consumer, err = events.NewConsumer(events.ConsumerConfig{
		Local:          bus.Local(),
		External:       bus.External(),
		Prefix:         cfg.NATS.Prefix,
		Cluster:        cfg.NATS.Cluster,
		Index:          indexes,
		Workers:        &numbers,
		Resolve:        fleet.Resolve,
		OnFeed:         fleet.OnFeed,
		OnAnnouncement: fleet.OnAnnouncement,
		Logger:         log,
		Registerer:     registry,
	})
	if err != nil {
		return nil, err
	}
	builder := prompt.New(prompt.Config{Deadline: time.Duration(cfg.Limits.TokenizeTimeout), Models: models, Registerer: registry})
	wc := cfg.warming()
	wc.Router, wc.Sender, wc.Peers, wc.Registerer = rt, proxy.Sender{Fleet: fleet}, reach, registry
	wc.Identify = func(ctx context.Context, req *openai.Request, body []byte, ns kv.Namespace) *kv.Prompt {
		return builder.Build(ctx, req, body, fleet.Tokenizer(req.Model, req.Kind), ns, req.Model)
	}
	warmer = prefill.New(wc)
	if shared != nil {
		peers, err = events.NewPeers(events.PeersConfig{
			Conn: shared, Prefix: cfg.NATS.Prefix, Cluster: cfg.NATS.Cluster, Proxy: proxyID(cfg.Listen),
			Load: rt, Warmups: warmer, Logger: log, Registerer: registry,
		})
		if err != nil {
			return nil, err
		}
	}
	pc := cfg.front()
	pc.TLS, pc.Keys, pc.Registerer, pc.Gatherer, pc.Logger = certificates, keys, registry, gather, log
	pc.Router, pc.Fleet, pc.Prompt, pc.Prefill, pc.Bus, pc.Consumer, pc.Peers = rt, fleet, builder, warmer, bus, consumer, peers
	front, err := proxy.New(pc)
	if err != nil {
		return nil, err
	}
	closeBus = false
	scheme := "http://"
	if certificates != nil {
		scheme = "https://"
	}
	return &parts{bus: bus, fleet: fleet, consumer: consumer, peers: peers, models: models, prompt: builder, prefill: warmer, front: front, simulated: simulated,
		log: log, stderr: stderr, api: scheme + front.Addr().String(), nats: busName(cfg.NATS), names: cfg.modelNames(keys)}, nil
}

// fleet, warming and front are what the file, the environment and the flags say of one
// package each; newParts adds what the packages need of each other.

func (c *config) fleet() upstream.FleetConfig {
	return upstream.FleetConfig{
		Allow:    c.Allow,
		Prefix:   c.NATS.Prefix,
		Cluster:  c.NATS.Cluster,
		StateDir: c.StateDir,
		Timeouts: upstream.Timeouts{
			Connect:   time.Duration(c.Limits.ConnectTimeout),
			FirstByte: time.Duration(c.Limits.FirstByteTimeout),
			Idle:      time.Duration(c.Limits.IdleTimeout),
		},
	}
}

func (c *config) warming() prefill.Config {
	return prefill.Config{
		Default:   prefill.Mode(c.Prefill.Mode),
		Models:    modes(c.Prefill.Models),
		Keys:      modes(c.Prefill.Keys),
		Holdout:   orNone(c.Prefill.Holdout),
		Join:      c.Prefill.Join,
		Replicate: c.Prefill.Replicate,
		Rewarm:    c.Prefill.Rewarm,
	}
}

func (c *config) front() proxy.Config {
	return proxy.Config{
		Listen:       c.Listen,
		Admin:        c.Admin,
		Heartbeat:    time.Duration(c.Heartbeat),
		KeepAlive:    time.Duration(c.Limits.KeepAlive),
		MaxConns:     c.Limits.MaxConnections,
		Aliases:      c.Aliases,
		MaxBodyBytes: int(c.Limits.MaxBody),
		Retries:      orNone(c.Routing.Retries),
		DrainDelay:   time.Duration(c.Limits.DrainDelay),
		Grace:        time.Duration(c.Limits.Grace),
		Version:      versionString(),
	}
}

// makeStateDir makes the directory of relays' state and sees that it can be written.
func makeStateDir(dir string) error {
	if dir == "" {
		return nil
	}
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".probe-*"); err == nil {
			f.Close()
			err = os.Remove(f.Name())
		}
	}
	if err != nil {
		return &usageError{fmt.Errorf("state_dir (--state-dir): %w", err)}
	}
	return nil
}

// orNone turns a setting in which 0 is none into one in which 0 is the default and
// anything negative none.
func orNone[T int | float64](n T) T {
	if n == 0 {
		return -1
	}
	return n
}

func modes(m map[string]string) map[string]prefill.Mode {
	out := make(map[string]prefill.Mode, len(m))
	for name, mode := range m {
		out[name] = prefill.Mode(mode)
	}
	return out
}

// run serves until ctx ends: warm-ups are dropped, the front drains, then the feed, the fleet and the
// simulated workers stop, then the bus closes.
func (p *parts) run(ctx context.Context, reload reloader) error {
	defer p.bus.Close()
	defer p.prompt.Close()
	back, stopBack := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBack()
	g, back := errgroup.WithContext(back)
	g.Go(func() error { return p.consumer.Run(back) })
	if p.peers != nil {
		g.Go(func() error { return p.peers.Run(back) })
	}
	g.Go(func() error { return p.fleet.Run(back) })
	g.Go(func() error { return p.models.Run(back, p.fleet.Styled) })
	g.Go(func() error {
		// Speculation ends with the signal, before the streams have drained.
		warm, stop := context.WithCancel(back)
		defer stop()
		defer context.AfterFunc(ctx, stop)()
		return p.prefill.Run(warm)
	})
	g.Go(func() error { return p.simulated.run(back) })
	g.Go(func() error {
		return reload.run(back, p.log, func(c config) error {
			keys, certificates, err := c.secrets()
			if err != nil {
				return err
			}
			workers := append(c.Workers, p.simulated.workers...)
			if err := p.fleet.CheckWorkers(workers); err != nil {
				return err
			}
			if err := p.front.SetAccess(keys, certificates); err != nil {
				return err
			}
			return p.fleet.SetWorkers(workers)
		})
	})
	p.log.Info("listening", "api", p.api, "admin", "http://"+p.front.AdminAddr().String(), "nats", p.nats)
	g.Go(func() error { p.warnUnserved(back); return nil })
	if len(p.simulated.workers) > 0 && !p.quiet {
		g.Go(func() error { return p.hint(back) })
	}
	g.Go(func() error {
		defer stopBack()
		front, stopFront := context.WithCancel(back)
		defer stopFront()
		stop := context.AfterFunc(ctx, stopFront)
		defer stop()
		return p.front.Run(front)
	})
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// hint prints what to try once the simulated workers are ready.
func (p *parts) hint(ctx context.Context) error {
	if p.ready(ctx, len(p.simulated.workers)) != nil {
		return nil
	}
	scheme, _, _ := strings.Cut(p.api, "://")
	api, admin := scheme+"://"+loopback(p.front.Addr()), "http://"+loopback(p.front.AdminAddr())
	_, err := fmt.Fprintf(p.stderr, tryIt, len(p.simulated.workers), api, admin, p.nats)
	return err
}

// busName says which event bus is used.
func busName(c natsConfig) string {
	if c.URL == "" {
		return "embedded NATS"
	}
	return "external NATS"
}

// ready waits until so many workers take requests and their KV events are followed.
func (p *parts) ready(ctx context.Context, workers int) error {
	for {
		followed := 0
		for _, f := range p.consumer.Status() {
			if f.State == events.FeedComplete {
				followed++
			}
		}
		if ready, _ := p.fleet.Ready(); ready && followed >= workers {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// loopback returns the address under which this machine reaches a listener.
func loopback(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return a.String()
}

const tryIt = `
warmroute is ready: %[1]d simulated workers, %[4]s, OpenAI API on %[2]s/v1

A chat, twice: the second finds its prefix cached (usage.prompt_tokens_details).
  curl -si %[2]s/v1/chat/completions -H 'Content-Type: application/json' -H 'X-Warmroute-Explain: 1' \
    -d '{"model":"sim","max_tokens":24,"messages":[{"role":"user","content":"'"$(seq -s ' ' 400)"'"}]}'
A stream:
  curl -sN %[2]s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"sim","max_tokens":24,"stream":true,"messages":[{"role":"user","content":"Tell me a story."}]}'
Why did it go there, and what does each worker hold?
  curl -s %[3]s/debug/route
  curl -s %[3]s/debug/workers
Metrics: %[3]s/metrics    Stop: Ctrl-C

`

func busConfig(c natsConfig, log *slog.Logger) events.BusConfig {
	return events.BusConfig{
		URL: c.URL, Listen: c.Listen,
		CA: c.CA, Cert: c.Cert, Key: c.Key, InsecureSkipVerify: c.InsecureSkipVerify,
		User: c.User, Password: c.Password, Token: c.Token,
		Name: "warmroute " + versionString(), Logger: log,
	}
}
