package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/warmroute/warmroute/bench"
	"github.com/warmroute/warmroute/bench/report"
	"github.com/warmroute/warmroute/internal/sim"
)

// The demo's parameters are fixed, so that its result is one that others can repeat.
const (
	demoWorkers         = 4 // of each part
	demoUsers           = 8
	demoTurns           = 4
	demoPairs           = 3
	demoUserTokens      = 100
	demoReasoningTokens = 300
	demoVisibleTokens   = 1000
	demoPrefillRate     = 8000 // tokens per second
	demoITL             = 2 * time.Millisecond
	demoThink           = 1500 * time.Millisecond
	demoSettle          = 300 * time.Millisecond
	// demoSeed draws think times whose longest sum over a conversation is short, so that
	// a block does not wait for one slow reader.
	demoSeed = 1521
)

// demoParts are the two fleets of the demo, alike but for the chat template.
var demoParts = []struct{ template, title string }{
	{"thinking", "workers whose template strips reasoning from the history: the engine has the reply cached behind reasoning that the next prompt lacks"},
	{"plain", "workers with a plain template: the engine has the reply cached already, so there is nothing to warm"},
}

func newDemo() *cobra.Command {
	var verbose bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show in two minutes what speculative prefill gains, and where it gains nothing",
		Long: fmt.Sprintf(`demo starts two fleets of %d simulated workers, each behind a proxy of its own, all in
this process and on real sockets: NATS, KV events, HTTP. It then runs "bench ab" against
both: %d pairs of blocks with %d users of %d turns each, with and without speculative
prefill. No GPU and no network are needed.`, demoWorkers, demoPairs, demoUsers, demoTurns),
		Example: "  warmroute demo",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), verbose)
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the proxies' logs")
	return cmd
}

// demo runs both parts beside each other and prints their comparisons.
func demo(ctx context.Context, out, progress io.Writer, verbose bool) error {
	fmt.Fprintf(out, `Speculative prefill, on against off, in interleaved blocks.
  each part   %d simulated workers behind one proxy, NATS embedded, KV events over ZMQ
  engine      %d tokens/s prefill, %v between tokens
  workload    %d users x %d turns, %d user tokens, about %d tokens of reasoning where the
              template has it, %d tokens to read, %v mean think time, %d pairs of blocks

`, demoWorkers, demoPrefillRate, demoITL, demoUsers, demoTurns, demoUserTokens, demoReasoningTokens, demoVisibleTokens, demoThink, demoPairs)
	logs := io.Discard
	if verbose {
		logs = progress
	}
	results := make([]*report.AB, len(demoParts))
	started := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for i, part := range demoParts {
		g.Go(func() error {
			x, err := demoPart(ctx, part.template, demoITL, demoWorkload(part.template), logs, func(block, of int, treatment bool) {
				arm := "off"
				if treatment {
					arm = "on"
				}
				fmt.Fprintf(progress, "%4.0f s  %-8s block %d of %d, speculative prefill %s\n", time.Since(started).Seconds(), part.template, block+1, of, arm)
			})
			results[i] = x
			if err != nil {
				return fmt.Errorf("%s part: %w", part.template, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, part := range demoParts {
		fmt.Fprintf(out, "\n%s\n%s\n\n", strings.ToUpper(part.template[:1])+part.template[1:]+": "+part.title, strings.Repeat("-", 78))
		if err := results[i].WriteText(out); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "\nThe demo took %.0f s.\n", time.Since(started).Seconds())
	for i, part := range demoParts {
		fmt.Fprintf(out, "  %-8s  %s\n", part.template, results[i].Sentence())
	}
	return nil
}

// demoPart runs one fleet and the bench against it.
func demoPart(ctx context.Context, template string, itl time.Duration, work bench.ABConfig, logs io.Writer, onBlock func(i, of int, treatment bool)) (*report.AB, error) {
	fleet := &simulated{}
	for i := range demoWorkers {
		w, err := sim.NewServer(sim.Config{
			Template: template, ReasoningTokens: demoReasoningTokens, ReplyTokens: demoVisibleTokens,
			Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Seed: uint64(i + 1),
			Engine: sim.EngineConfig{Profile: sim.LinearProfile{
				PrefillRate: demoPrefillRate, Base: itl, PerSeq: time.Nanosecond, PerKVToken: time.Nanosecond,
			}},
		})
		if err != nil {
			return nil, err
		}
		fleet.add(w)
	}
	cfg := defaultConfig()
	cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Prefill.Holdout = 0 // the blocks are the comparison
	cfg.Limits.Grace = 0
	registry := prometheus.NewRegistry()
	p, err := newParts(cfg, fleet, registry, registry, logs)
	if err != nil {
		return nil, err
	}
	p.quiet = true
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- p.run(ctx, reloader{}) }() // read below, on every path
	work.OnBlock = onBlock
	x, err := demoBench(ctx, p, work)
	stop()
	if e := <-served; err == nil {
		err = e
	}
	return x, err
}

// demoBench compares the two arms once the fleet is ready.
func demoBench(ctx context.Context, p *parts, work bench.ABConfig) (*report.AB, error) {
	if err := p.ready(ctx, demoWorkers); err != nil {
		return nil, err
	}
	work.URL = "http://" + p.front.Addr().String()
	work.MetricsURL = "http://" + p.front.AdminAddr().String() + "/metrics"
	return bench.AB(ctx, work)
}

// demoWorkload is what the users of one part do.
func demoWorkload(template string) bench.ABConfig {
	tokens := demoVisibleTokens
	if template == "thinking" {
		tokens += demoReasoningTokens
	}
	return bench.ABConfig{
		Config: bench.Config{
			Users: demoUsers, Turns: demoTurns, UserTokens: demoUserTokens,
			MaxCompletionTokens: tokens, MeanDelay: demoThink, IgnoreEOS: true, Seed: demoSeed, Version: versionString(),
		},
		Pairs: demoPairs, Settle: demoSettle,
	}
}
