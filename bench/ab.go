package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/warmroute/warmroute/bench/report"
)

// ABConfig describes an A/B run: Config's plan, played in pairs of blocks. Config.Hint is
// set by AB.
type ABConfig struct {
	Config
	// Pairs of blocks; default 5, at least report.MinPairs.
	Pairs int
	// AA plays the baseline in both arms: the verdict must be "no detectable difference".
	AA bool
	// Settle is the pause between blocks, in which warm-ups end; default 1 s. Where
	// MetricsURL shows warm-ups in flight, AB waits for them too, at most 10 s.
	Settle time.Duration
	// ProbeRate is how many probes a second run beside each block, at constant times: one
	// short message, a few tokens, never warmed, each a conversation of its own. Their TTFT
	// shows what the treatment costs others. 0 sends none.
	ProbeRate float64
	// MetricsURL is the proxy's /metrics; "" reads none.
	MetricsURL string
	// OnBlock, where set, hears of each block before it starts: its number from 0, the
	// number of all, and whether it has the treatment.
	OnBlock func(i, of int, treatment bool)
}

// DefaultPairs is the planned size of an A/B run: with 3 % noise from block to block, 100
// conversations a block and a change of 10 %, 95 of 100 runs see it.
const DefaultPairs = 5

// settleMax bounds the wait for warm-ups between blocks.
const settleMax = 10 * time.Second

func (c *ABConfig) withDefaults() {
	if c.Pairs == 0 {
		c.Pairs = DefaultPairs
	}
	if c.Settle == 0 {
		c.Settle = time.Second
	}
}

// Validate names the first setting that makes no sense, as the command line spells it.
func (c *ABConfig) Validate() error {
	d := *c
	d.withDefaults()
	if d.Pairs < report.MinPairs || d.Pairs > 1000 {
		return fmt.Errorf("--pairs %d: an interval needs at least %d (and at most 1000)", d.Pairs, report.MinPairs)
	}
	if d.Turns < 2 {
		return fmt.Errorf("--num-turns %d: the headline is TTFT of turns ≥ 2, so conversations need at least 2", d.Turns)
	}
	if d.Settle < 0 {
		return fmt.Errorf("--settle %s: must not be negative", d.Settle)
	}
	if d.ProbeRate < 0 || d.ProbeRate > maxProbeRate {
		return fmt.Errorf("--probe-rate %g: 0 (none) to %d a second", d.ProbeRate, maxProbeRate)
	}
	if d.MetricsURL != "" && !strings.HasPrefix(d.MetricsURL, "http://") && !strings.HasPrefix(d.MetricsURL, "https://") {
		return fmt.Errorf("--metrics-url %q: give a URL such as http://127.0.0.1:8001/metrics", d.MetricsURL)
	}
	if err := d.Config.Validate(); err != nil {
		return err
	}
	if n := 2 * d.Pairs * d.Users * d.Turns; n > maxTurns {
		return fmt.Errorf("--pairs %d: %d turns in all, and more than %d do not fit into memory", d.Pairs, n, maxTurns)
	}
	return nil
}

// treatmentFirst tells whether the pair runs B before A. The order ABBA BAAB … gives
// both arms the same mean position and cancels a drift that is linear or quadratic.
func treatmentFirst(pair int) bool {
	return pair%4 == 1 || pair%4 == 2
}

// AB plays the plan in interleaved blocks and judges them. When ctx ends early it judges
// the complete pairs.
func AB(ctx context.Context, cfg ABConfig) (*report.AB, error) {
	cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Hint = HintOff
	a, err := newClient(&cfg.Config)
	if err != nil {
		return nil, err
	}
	defer a.close()
	treated := cfg.Config
	if !cfg.AA {
		treated.Hint = HintOn
	}
	b, err := newClient(&treated)
	if err != nil {
		return nil, err
	}
	defer b.close()
	probes, err := newProbes(&cfg)
	if err != nil {
		return nil, err
	}
	defer probes.close()
	model, err := a.model(ctx)
	if err != nil {
		return nil, err
	}
	if cfg.Salt == "" {
		cfg.Salt = freshSalt()
	}
	counters := &scraper{url: cfg.MetricsURL, transport: cfg.Transport}
	switch found, err := counters.read(ctx); {
	case err != nil:
		return nil, fmt.Errorf("--metrics-url: %w", err)
	case cfg.MetricsURL != "" && len(found) == 0:
		return nil, fmt.Errorf("--metrics-url %s shows no %s* series: give the admin address of warmroute serve, such as http://127.0.0.1:8001/metrics", cfg.MetricsURL, metricsPrefix)
	}
	p := newPlan(&cfg.Config)
	out := &report.AB{
		Version: cfg.Version, URL: cfg.base(), Model: model, Started: time.Now().UTC(),
		Workload: cfg.workload(p), AA: cfg.AA, Pairs: cfg.Pairs, ProbeRate: cfg.ProbeRate,
	}
	now := cfg.now()
	start := now()
	for i := range 2 * cfg.Pairs {
		pair, treatment := i/2, (i%2 == 0) == treatmentFirst(i/2)
		if cfg.OnBlock != nil {
			cfg.OnBlock(i, 2*cfg.Pairs, treatment)
		}
		c := a
		if treatment {
			c = b
		}
		before, errBefore := counters.read(ctx)
		at := now().Sub(start)
		salt := blockSalt(cfg.Salt, pair, treatment)
		asked := probes.start(ctx, model, salt)
		run := c.run(ctx, p, model, salt)
		probed := asked()
		if i < 2*cfg.Pairs-1 || cfg.MetricsURL != "" {
			counters.settle(ctx, cfg.Settle)
		}
		after, errAfter := counters.read(ctx)
		block := report.Block{
			Pair: pair, Treatment: treatment, Salt: salt, Start: report.Micros(at), Duration: run.Duration,
			Interrupted: run.Interrupted, Cancelled: run.Cancelled, ClockErrors: run.ClockErrors, Records: run.Records, Probes: probed,
		}
		if errBefore == nil && errAfter == nil {
			block.Counters = growth(before, after)
		}
		out.Blocks = append(out.Blocks, block)
		if ctx.Err() != nil {
			break
		}
	}
	out.Duration = report.Micros(now().Sub(start))
	out.Interrupted = ctx.Err() != nil
	out.Judge()
	return out, nil
}
