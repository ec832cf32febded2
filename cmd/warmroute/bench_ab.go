package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmroute/warmroute/bench"
	"github.com/warmroute/warmroute/bench/report"
)

// abFlags are the flags of bench ab.
type abFlags struct {
	benchFlags
	ab bench.ABConfig
}

func (a *abFlags) bind(f *pflag.FlagSet) {
	a.benchFlags.bind(f)
	spec := f.Lookup("speculative-prefill")
	spec.Usage = "the treatment of arm B: hint with each turn that the next one should be warmed"
	spec.DefValue = "true"
	a.speculative = true
	f.Lookup("output").Usage = "JSON `file` for verdict and raw turns; - for stdout"
	f.IntVar(&a.ab.Pairs, "pairs", bench.DefaultPairs, fmt.Sprintf("pairs of blocks, at least %d; each block plays the whole workload", report.MinPairs))
	f.BoolVar(&a.ab.AA, "aa", false, "both arms off: measures the noise, and must show no difference")
	f.DurationVar(&a.ab.Settle, "settle", time.Second, "pause between blocks, in which warm-ups end")
	f.Float64Var(&a.ab.ProbeRate, "probe-rate", 1, "short requests of strangers a second beside each block, for what warm-ups cost others; 0 sends none")
	f.StringVar(&a.ab.MetricsURL, "metrics-url", "", "the proxy's metrics `URL`, http://127.0.0.1:8001/metrics, for what warm-ups cost")
}

func newBenchAB() *cobra.Command {
	var flags abFlags
	cmd := &cobra.Command{
		Use:   "ab",
		Short: "Compare speculative prefill off and on, and say whether they differ",
		Long: `ab plays the workload in pairs of blocks, one without (A) and one with (B) speculative
prefill, in the order ABBA BAAB and so on. All blocks have the same lengths and think
times, and texts of their own, so that none finds another's cache. The headline, fixed in
advance, is the p50 TTFT of turns 2 and later. The verdict is one of: better, worse, no
detectable difference (with the smallest one that would have been seen), not comparable
(with the reason).

Exit code 0: a verdict, whichever; 1: not comparable, or an --aa that differs.`,
		Example: `  warmroute bench ab --speculative-prefill --metrics-url http://127.0.0.1:8001/metrics
  warmroute bench ab --aa --pairs 10 --num-users 20`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var a abFlags
			bound := pflag.NewFlagSet("", pflag.ContinueOnError)
			a.bind(bound)
			err := overlay(cmd.Flags(), bound, lookupEnv)
			if err == nil {
				a.ab.Config, err = a.config()
			}
			if err == nil {
				err = a.ab.Validate()
			}
			if err == nil && !a.speculative && !a.ab.AA {
				err = errors.New("--speculative-prefill=false leaves nothing to compare: use --aa to compare the baseline with itself")
			}
			if err != nil {
				return &usageError{err}
			}
			return runAB(cmd, &a)
		},
	}
	flags.bind(cmd.Flags())
	return cmd
}

func runAB(cmd *cobra.Command, a *abFlags) error {
	out, err := openResult(a.output)
	if err != nil {
		return &usageError{err}
	}
	defer out.discard()
	warnVariables(cmd, func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), "warmroute: "+line) })
	cfg := a.ab
	p := newProgress(cmd.ErrOrStderr(), cfg.Turns, 2*cfg.Pairs*cfg.Users*cfg.Turns*(1+cfg.ToolSteps), a.verbose)
	cfg.OnTurn = p.turn
	cfg.OnBlock = p.block
	p.start()
	x, err := bench.AB(cmd.Context(), cfg)
	p.stop()
	if err != nil {
		return err
	}
	if err := out.write(cmd, x.WriteText, x.WriteJSON); err != nil {
		return err
	}
	switch r := &x.Result; {
	case r.Verdict == report.NotComparable:
		return errors.New(x.Sentence())
	case x.Interrupted:
		return fmt.Errorf("interrupted: the verdict rests on %d of %d pairs", r.Headline.Pairs, x.Pairs)
	case x.AA && r.Verdict != report.NoDifference:
		return errors.New("the A/A run differs: 1 in 20 does by chance; if it happens again, something in the set-up favours one arm")
	}
	return nil
}
