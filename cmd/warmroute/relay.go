package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/router/events"
)

// relayConfig is what `relay` can be told.
type relayConfig struct {
	Worker   workerConfig
	NATS     natsConfig
	RelayID  string
	StateDir string
	Bind     bool
	Metrics  string
	Log      logConfig
}

func newRelay() *cobra.Command {
	bind := func(c *relayConfig, f *pflag.FlagSet) {
		f.StringVar(&c.Worker.ID, "id", c.Worker.ID, "worker id, as the proxies know it; default: the URL")
		f.StringVar(&c.Worker.URL, "url", c.Worker.URL, "the worker's base `URL`, as the proxies reach it")
		f.StringVar(&c.Worker.APIKey, "api-key", c.Worker.APIKey, "the worker's API key; better WARMROUTE_API_KEY")
		f.StringVar(&c.Worker.Events, "events", c.Worker.Events, "ZMQ `endpoint` of rank 0's KV events; rank r is port + r")
		f.StringVar(&c.Worker.Replay, "replay", c.Worker.Replay, "ZMQ `endpoint` of rank 0's replay socket; makes coverage complete")
		f.StringVar(&c.Worker.Topic, "topic", c.Worker.Topic, "ZMQ topic filter")
		f.IntVar(&c.Worker.Ranks, "ranks", c.Worker.Ranks, "data-parallel ranks")
		f.BoolVar(&c.Bind, "bind", c.Bind, "bind --events instead of connecting, for an engine whose endpoint has no *")
		f.StringVar(&c.NATS.URL, "nats", c.NATS.URL, "`URL` of the NATS server that the proxies use")
		f.StringVar(&c.NATS.Cluster, "nats-cluster", c.NATS.Cluster, "name of the cluster in NATS subjects")
		f.StringVar(&c.NATS.Prefix, "nats-prefix", c.NATS.Prefix, "first part of NATS subjects")
		bindNATSCredentials(f, &c.NATS)
		f.StringVar(&c.RelayID, "relay-id", c.RelayID, "stable name of this relay; default: <host name>/<id>")
		f.StringVar(&c.StateDir, "state-dir", c.StateDir, "`directory` for the hash map, so that a restart stays exact")
		f.StringVar(&c.Metrics, "metrics", c.Metrics, "address of /metrics; empty opens none")
		bindLog(f, &c.Log)
	}
	defaults := func() relayConfig {
		return relayConfig{Worker: workerConfig{Ranks: 1}, NATS: natsConfig{Cluster: "default", Prefix: "warmroute"}, Log: logConfig{Level: "info", Format: "text"}}
	}
	flags := defaults()
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Carry one engine's KV events onto NATS",
		Long: `relay sits beside one engine, reads its KV events over ZMQ and publishes them, as
ordered net changes in our hashes, on the NATS server that the proxies share.`,
		Example: `  warmroute relay --nats nats://nats:4222 --id gpu1 --url http://gpu1:8000 \
    --events tcp://gpu1:5557 --replay tcp://gpu1:5657 --state-dir /var/lib/warmroute`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := defaults()
			bound := pflag.NewFlagSet("", pflag.ContinueOnError)
			bind(&cfg, bound)
			if err := overlay(cmd.Flags(), bound, lookupEnv); err != nil {
				return &usageError{err}
			}
			if err := cfg.validate(); err != nil {
				return &usageError{err}
			}
			log := cfg.Log.logger(cmd.ErrOrStderr())
			warnVariables(cmd, func(line string) { log.Warn(line) })
			return relay(cmd.Context(), cfg, log)
		},
	}
	bind(&flags, cmd.Flags())
	return cmd
}

func (c *relayConfig) validate() error {
	if c.NATS.URL == "" {
		return errors.New("--nats is missing: give the URL of the NATS server that the proxies use, e.g. nats://host:4222")
	}
	if c.Worker.Events == "" {
		return errors.New("--events is missing: give the engine's KV event endpoint, e.g. tcp://host:5557")
	}
	if err := c.Worker.Validate(); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	if c.Metrics != "" {
		if err := validAddress("--metrics", c.Metrics); err != nil {
			return err
		}
	}
	return c.Log.validate()
}

// infoPeriod is how often a relay asks its worker for what it announces.
const infoPeriod = 10 * time.Second

// relay runs one relay until ctx ends.
func relay(ctx context.Context, cfg relayConfig, log *slog.Logger) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := makeStateDir(cfg.StateDir); err != nil {
		return err
	}
	bus, err := events.OpenBus(busConfig(cfg.NATS, log))
	if err != nil {
		return err
	}
	defer bus.Close()
	worker := cfg.Worker
	if worker.ID == "" {
		worker.ID = worker.URL
	}
	r, err := events.NewRelay(events.RelayConfig{
		Worker: worker.ID, URL: worker.URL, RelayID: cfg.RelayID,
		Events: worker.Events, Replay: worker.Replay, Topic: worker.Topic, Ranks: worker.Ranks, Bind: cfg.Bind,
		StateDir: cfg.StateDir, Conn: bus.External(), Prefix: cfg.NATS.Prefix, Cluster: cfg.NATS.Cluster,
		Logger: log, Registerer: registry,
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return followInfo(ctx, r, worker, log) })
	if cfg.Metrics != "" {
		ln, err := net.Listen("tcp", cfg.Metrics)
		if err != nil {
			return fmt.Errorf("--metrics: %w", err)
		}
		g.Go(func() error { return serveMetrics(ctx, ln, registry) })
	}
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// followInfo tells the relay what its worker serves, and again when that changes.
func followInfo(ctx context.Context, r *events.Relay, w upstream.WorkerConfig, log *slog.Logger) error {
	unreachable := false
	for {
		info, err := upstream.Probe(ctx, w)
		switch {
		case err == nil:
			r.SetInfo(info)
			unreachable = false
		case !unreachable && ctx.Err() == nil:
			log.Warn("worker does not answer; its models are announced once it does", "worker", w.ID, "url", w.URL, "error", err)
			unreachable = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(infoPeriod):
		}
	}
}

// serveMetrics answers /metrics on ln until ctx ends.
func serveMetrics(ctx context.Context, ln net.Listener, gather prometheus.Gatherer) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(gather, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
