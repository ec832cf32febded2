package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/internal/sim"
)

// bindWorker declares the flags of the simulated worker. model is where its tokenizer is.
func bindWorker(c *sim.Config, model *string, f *pflag.FlagSet) {
	f.StringVar(model, "model-path", "", "`directory or Hugging Face id` of a real tokenizer and chat template; empty uses a toy one of four bytes a token")
	f.Var(&profileFlag{c: c, name: "linear"}, "profile", "time model: linear, or polynomial as NVIDIA Dynamo's mocker")
	f.StringVar(&c.Listen, "listen", "127.0.0.1:8100", "HTTP address")
	f.StringVar((*string)(&c.Like), "like", string(sim.VLLM), "engine whose wires are spoken: vllm or sglang")
	f.StringVar(&c.AdvertiseModel, "model", "", "served `name`; default: sim, or the name of --model-path")
	f.StringSliceVar(&c.Adapters, "lora", nil, "names of LoRA adapters")
	f.StringVar(&c.APIKey, "api-key", "", "bearer token that is demanded under /v1")
	f.StringVar(&c.Events, "events", "", "ZMQ `endpoint` for KV events, e.g. tcp://127.0.0.1:5557; rank r is port + r")
	f.StringVar(&c.Replay, "replay", "", "ZMQ `endpoint` of the replay socket")
	f.StringVar(&c.Topic, "topic", "", "topic of the events")
	f.StringVar(&c.Layout, "layout", "", "layout of the events: "+strings.Join(layoutNames(), ", "))
	f.IntVar(&c.DPRanks, "ranks", 1, "data-parallel ranks")
	f.StringVar(&c.Template, "template", "plain", "chat template: plain or thinking (strips reasoning from history)")
	f.IntVar(&c.ReplyTokens, "reply-tokens", 128, "typical length of a reply")
	f.IntVar(&c.ReasoningTokens, "reasoning-tokens", 64, "typical length of reasoning with the thinking template")
	f.BoolVar(&c.HideCached, "hide-cached", false, "leave cached_tokens out of usage, as engines without the reporting flag do")
	f.BoolVar(&c.NoTokenize, "no-tokenize", false, "offer no tokenizer endpoints")
	f.BoolVar(&c.NoRender, "no-render", false, "offer no render endpoints, as older vLLM")
	f.Uint64Var(&c.Seed, "seed", 1, "seed of replies and block hashes")
	f.IntVar(&c.Engine.BlockSize, "block-size", 64, "tokens of a KV block")
	f.IntVar(&c.Engine.CapacityTokens, "capacity-tokens", 400_000, "KV tokens of one rank")
	f.IntVar(&c.Engine.MaxNumSeqs, "max-num-seqs", 128, "sequences that run at once")
	f.IntVar(&c.Engine.ChunkTokens, "chunk-tokens", 2048, "prefill tokens of one step")
	f.Float64Var(&c.Engine.SpeedUp, "speed-up", 1, "divides every simulated time")
	f.DurationVar(&c.Grace, "grace", 0, "time that requests have to finish after SIGTERM")
}

// profileFlag sets the engine's time model by name.
type profileFlag struct {
	c    *sim.Config
	name string
}

func (p *profileFlag) Type() string   { return "string" }
func (p *profileFlag) String() string { return p.name }

// Set takes the name of a profile.
func (p *profileFlag) Set(name string) error {
	profile, err := sim.ParseProfile(name)
	if err == nil {
		p.c.Engine.Profile, p.name = profile, name
	}
	return err
}

func layoutNames() []string {
	var names []string
	for _, l := range kvwire.Layouts() {
		names = append(names, l.String())
	}
	return names
}

func newWorker() *cobra.Command {
	var flags sim.Config
	logFlags := logConfig{Level: "info", Format: "text"}
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run a simulated engine, no GPU",
		Long: `worker runs a simulated vLLM or SGLang: a paged KV cache with prefix caching,
continuous batching with chunked prefill, the engine's HTTP surface and its KV events
over ZMQ. The linear profile prefills 8,000 tokens a second and takes 8 ms a step.
POST /fault breaks it on purpose (errors, hangs, broken streams, lost events, restart).`,
		Example: `  warmroute worker --listen 127.0.0.1:8100 --events tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5657
  warmroute worker --like sglang --listen 127.0.0.1:8101 --events tcp://127.0.0.1:5558 --template thinking`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var cfg sim.Config
			var model string
			log := logConfig{Level: "info", Format: "text"}
			bound := pflag.NewFlagSet("", pflag.ContinueOnError)
			bindWorker(&cfg, &model, bound)
			bindLog(bound, &log)
			if err := overlay(cmd.Flags(), bound, lookupEnv); err != nil {
				return &usageError{err}
			}
			if err := log.validate(); err != nil {
				return &usageError{err}
			}
			if err := cfg.Validate(); err != nil {
				return &usageError{err}
			}
			if err := validAddress("--listen", cfg.Listen); err != nil {
				return &usageError{err}
			}
			if err := validModelPath("--model-path", model); err != nil {
				return &usageError{err}
			}
			logger := log.logger(cmd.ErrOrStderr())
			warnVariables(cmd, func(line string) { logger.Warn(line) })
			if model != "" {
				if cfg.AdvertiseModel == "" {
					cfg.AdvertiseModel = servedName(model)
				}
				var err error
				if cfg.Model, err = loadModel(cmd.Context(), model, tokenizerConfig{}, logger); err != nil {
					return &usageError{err}
				}
			}
			w, err := sim.NewServer(cfg)
			if err != nil {
				return err
			}
			logger.Info("simulated worker serves", "url", w.URL(), "like", string(cfg.Like), "model", cmp.Or(cfg.AdvertiseModel, "sim"), "events", cfg.Events, "replay", cfg.Replay)
			return w.Run(cmd.Context())
		},
	}
	bindWorker(&flags, new(string), cmd.Flags())
	bindLog(cmd.Flags(), &logFlags)
	return cmd
}

// simulated are the workers of `serve --simulate` and of the demo, in this process but on real sockets.
type simulated struct {
	servers []*sim.Server
	workers []workerConfig
}

// ports are the first ports of simulated workers; worker i uses each plus i. The zero
// value takes free ones.
type ports struct{ http, events, replay int }

// simPorts are the ports of the design.
var simPorts = ports{http: 8100, events: 5557, replay: 5657}

// startSimulated binds n simulated workers; run serves them.
func startSimulated(n int, first ports) (*simulated, error) {
	s := &simulated{}
	for i := range n {
		at := func(port int) string {
			if port != 0 {
				port += i
			}
			return fmt.Sprintf("127.0.0.1:%d", port)
		}
		server, err := sim.NewServer(sim.Config{
			Listen: at(first.http),
			Events: "tcp://" + at(first.events),
			Replay: "tcp://" + at(first.replay),
			Seed:   uint64(i + 1),
		})
		if err != nil {
			s.release()
			return nil, fmt.Errorf("simulated worker %d: %w", i+1, err)
		}
		s.add(server)
	}
	return s, nil
}

// release gives back the ports of workers that will not be served.
func (s *simulated) release() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.run(ended) // it only closes what was bound
}

// add takes a bound worker into the fleet.
func (s *simulated) add(server *sim.Server) {
	s.servers = append(s.servers, server)
	s.workers = append(s.workers, workerConfig{
		ID: fmt.Sprintf("sim%d", len(s.servers)), URL: server.URL(),
		Events: server.EventsEndpoint(0), Replay: server.ReplayEndpoint(0),
	})
}

// run serves the simulated workers until ctx ends.
func (s *simulated) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, server := range s.servers {
		g.Go(func() error { return server.Run(ctx) })
	}
	return g.Wait()
}
