package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/proxy"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

func newServe() *cobra.Command {
	var path string
	flags := defaultConfig() // only to parse into; loadConfig merges
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the proxy",
		Long: `serve runs the proxy: an OpenAI endpoint on --listen and metrics and /debug on
--admin. Settings come from flags, then WARMROUTE_* variables (a flag's name in upper
case, - as _), then --config, then defaults. SIGHUP or a change of the file reloads the
workers. SIGTERM drains; a second signal exits at once.`,
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
			cfg, err := loadConfig(path, cmd.Flags())
			if err != nil {
				return &usageError{err}
			}
			return serve(cmd.Context(), cfg, reloader{path: path, given: cmd.Flags()}, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "YAML `file`; deploy/warmroute.yaml is the reference")
	flags.bind(cmd.Flags())
	return cmd
}

// serve wires the packages and runs them until ctx ends: streams drain first, then the
// feed and the fleet stop, then the bus closes.
func serve(ctx context.Context, cfg config, reload reloader, stderr io.Writer) error {
	log := cfg.Log.logger(stderr)
	simulated, err := startSimulated(cfg.Simulate, log)
	if err != nil {
		return err
	}
	cfg.Workers = append(cfg.Workers, simulated.workers...)

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	bus, err := events.OpenBus(busConfig(cfg.NATS, log))
	if err != nil {
		return err
	}
	defer bus.Close()

	var numbers kv.Workers
	indexes := index.NewSet(index.Config{
		MaxBytes:         int64(cfg.Index.MaxBytes),
		ApproximateBytes: int64(cfg.Index.ApproximateBytes),
		ApproximateTTL:   time.Duration(cfg.Index.ApproximateTTL),
	})
	registry.MustRegister(index.NewCollector(indexes))

	var consumer *events.Consumer
	rt := router.New(router.Config{
		Mode:        router.Mode(cfg.Routing.Mode),
		MaxInflight: cfg.Routing.MaxInflight,
		Index:       indexes,
		Workers:     &numbers,
		OnStaleHits: func(r kv.WorkerRank) { consumer.Resync(r, "stale_hits") },
		Registerer:  registry,
		Logger:      log,
	})
	fleet, err := upstream.NewFleet(upstream.FleetConfig{
		Workers:  upstreamWorkers(cfg.Workers),
		Allow:    cfg.Allow,
		Router:   rt,
		Bus:      bus,
		Prefix:   cfg.NATS.Prefix,
		Cluster:  cfg.NATS.Cluster,
		StateDir: cfg.StateDir,
		Timeouts: upstream.Timeouts{
			Connect:   time.Duration(cfg.Limits.ConnectTimeout),
			FirstByte: time.Duration(cfg.Limits.FirstByteTimeout),
			Idle:      time.Duration(cfg.Limits.IdleTimeout),
		},
		Logger:     log,
		Registerer: registry,
	})
	if err != nil {
		return &usageError{err}
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
		return err
	}
	front, err := proxy.New(proxy.Config{
		Listen:       cfg.Listen,
		Admin:        cfg.Admin,
		Router:       rt,
		Fleet:        fleet,
		Prompt:       prompt.New(prompt.Config{Deadline: time.Duration(cfg.Limits.TokenizeTimeout), Registerer: registry}),
		Bus:          bus,
		Consumer:     consumer,
		Aliases:      cfg.Aliases,
		MaxBodyBytes: int(cfg.Limits.MaxBody),
		Retries:      cfg.Routing.Retries,
		Grace:        time.Duration(cfg.Limits.Grace),
		Registerer:   registry,
		Gatherer:     registry,
		Logger:       log,
		Version:      versionString(),
	})
	if err != nil {
		return err
	}
	return runServe(ctx, parts{front: front, fleet: fleet, consumer: consumer, simulated: simulated, reload: reload, log: log})
}

// parts are the running halves of serve.
type parts struct {
	front     *proxy.Server
	fleet     *upstream.Fleet
	consumer  *events.Consumer
	simulated *simulated
	reload    reloader
	log       *slog.Logger
}

// runServe runs the front until ctx ends and everything behind it until the front has
// drained.
func runServe(ctx context.Context, p parts) error {
	back, stopBack := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBack()
	g, back := errgroup.WithContext(back)
	g.Go(func() error { return p.consumer.Run(back) })
	g.Go(func() error { return p.fleet.Run(back) })
	g.Go(func() error { return p.simulated.run(back) })
	g.Go(func() error {
		return p.reload.run(back, p.log, func(c config) error {
			return p.fleet.SetWorkers(upstreamWorkers(append(c.Workers, p.simulated.workers...)))
		})
	})
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

func busConfig(c natsConfig, log *slog.Logger) events.BusConfig {
	return events.BusConfig{
		URL: c.URL, Listen: c.Listen,
		CA: c.CA, Cert: c.Cert, Key: c.Key, InsecureSkipVerify: c.InsecureSkipVerify,
		User: c.User, Password: c.Password, Token: c.Token,
		Name: "warmroute " + versionString(), Logger: log,
	}
}

func upstreamWorkers(list []workerConfig) []upstream.WorkerConfig {
	out := make([]upstream.WorkerConfig, len(list))
	for i, w := range list {
		out[i] = upstream.WorkerConfig{
			ID: w.ID, URL: w.URL, APIKey: w.APIKey, Engine: w.Engine,
			Events: w.Events, Replay: w.Replay, Topic: w.Topic, Ranks: w.Ranks,
			MaxInflight: w.MaxInflight, CapacityTokens: w.CapacityTokens, MaxNumSeqs: w.MaxNumSeqs, BlockSize: w.BlockSize,
			CA: w.CA, InsecureSkipVerify: w.InsecureSkipVerify,
		}
	}
	return out
}
