package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmroute/warmroute/bench"
	"github.com/warmroute/warmroute/bench/report"
)

// benchFlags are the flags that bench and bench ab share. The names up to --seed are
// those of Dynamo's multiturn_bench.
type benchFlags struct {
	cfg         bench.Config
	meanDelay   int // milliseconds
	stagger     time.Duration
	headers     []string
	speculative bool
	output      string
	verbose     bool
}

// staggerAuto is the --stagger that nobody gave: the mean delay.
const staggerAuto = time.Duration(-1)

func (b *benchFlags) bind(f *pflag.FlagSet) {
	c := &b.cfg
	f.StringVar(&c.URL, "url", "http://localhost:8000", "base `URL` of an OpenAI endpoint, with or without /v1")
	f.StringVar(&c.Model, "model", "", "served model; default: the only one in /v1/models")
	f.IntVar(&c.Users, "num-users", 10, "conversations, all open at once")
	f.IntVar(&c.Turns, "num-turns", 5, "turns of each conversation")
	f.IntVar(&c.UserTokens, "num-user-tokens", 128, "about the tokens of each user message")
	f.IntVar(&c.MaxCompletionTokens, "max-completion-tokens", 1000, "most tokens of each answer")
	f.BoolVar(&c.IgnoreEOS, "ignore-eos", true, "answers of exactly that length; --ignore-eos=false for endpoints without this field")
	f.IntVar(&b.meanDelay, "mean-delay-ms", 5000, "mean think time before each turn but the first, exponential")
	f.BoolVar(&b.speculative, "speculative-prefill", false, "hint with each turn that the next one should be warmed; =false says no, absent says nothing")
	f.StringVar(&b.output, "output", "", "JSON `file` for the results; - for stdout")
	f.BoolVarP(&b.verbose, "verbose", "v", false, "a line for each turn")
	f.Uint64Var(&c.Seed, "seed", 42, "seed of texts and think times")

	f.DurationVar(&b.stagger, "stagger", staggerAuto, "time over which the users start; 0 is a burst; default: the mean think time")
	f.Lookup("stagger").DefValue = "0s" // shown as no default
	f.StringVar(&c.APIKey, "api-key", "", "bearer token; better WARMROUTE_API_KEY, which no process list shows")
	f.StringArrayVar(&b.headers, "header", nil, "`Name:value` sent with each request; may be given more than once")
	f.StringVar(&c.ExtraBody, "extra-body", "", "`JSON` object merged into each request; null removes a field")
	f.StringVar(&c.Salt, "salt", "", "text that opens each conversation; default: drawn, so that no run finds another's cache")
	f.StringVar(&c.SessionHeader, "session-header", "X-Session-ID", "header with the conversation's id; - sends none")
	f.BoolVar(&c.EchoReasoning, "echo-reasoning", false, "send reasoning back in the history")
	f.IntVar(&c.ToolSteps, "tool-steps", 0, "tool calls in each turn: an agent's loop; TTFT is that of the turn's first request")
	f.DurationVar(&c.ToolDelay, "tool-delay", 500*time.Millisecond, "what a tool takes to answer")
	f.DurationVar(&c.Timeout, "timeout", 5*time.Minute, "longest turn")
}

// config checks what bench.Config cannot and completes it.
func (b *benchFlags) config() (bench.Config, error) {
	c := b.cfg
	c.Version = versionString()
	c.MeanDelay = time.Duration(b.meanDelay) * time.Millisecond
	c.Stagger = b.stagger
	if c.Stagger == staggerAuto {
		c.Stagger = max(c.MeanDelay, 0)
	}
	for _, h := range b.headers {
		name, value, ok := strings.Cut(h, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return c, errors.New("--header: give Name:value")
		}
		if c.Header == nil {
			c.Header = http.Header{}
		}
		c.Header.Add(name, strings.TrimSpace(value))
	}
	return c, nil
}

func newBench() *cobra.Command {
	var flags benchFlags
	var ping bool
	bind := func(b *benchFlags, ping *bool, f *pflag.FlagSet) {
		b.bind(f)
		f.BoolVar(ping, "ping", false, "smoke test: one user, one turn of about 50 tokens")
	}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure an OpenAI endpoint with multi-turn conversations",
		Long: `bench plays multi-turn conversations with think time (closed loop) against any
OpenAI endpoint and reports TTFT, first visible output, ITL and E2E per turn. TTFT runs
from before the write to the first token of any kind. Each conversation carries the
answers that really came; a failed turn ends it and is counted. Ctrl-C reports what was
measured until then.

Comparing a baseline and --speculative-prefill: use bench ab, which interleaves both and
says whether they differ; bench compare prints the ratios of two --output files.`,
		Example: `  warmroute bench --ping
  warmroute bench --url http://localhost:8000 --num-users 10 --num-turns 5 \
    --num-user-tokens 128 --max-completion-tokens 256 --mean-delay-ms 5000 \
    --output baseline.json --verbose
  warmroute bench --url http://localhost:8000 --num-users 10 --num-turns 5 \
    --num-user-tokens 128 --max-completion-tokens 256 --mean-delay-ms 5000 \
    --speculative-prefill --output specprefill.json --verbose
  warmroute bench compare baseline.json specprefill.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return &usageError{fmt.Errorf("unexpected argument %q: bench takes flags, or the subcommands ab and compare (see warmroute bench --help)", args[0])}
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			var b benchFlags
			var ping bool
			bound := pflag.NewFlagSet("", pflag.ContinueOnError)
			bind(&b, &ping, bound)
			if err := overlay(cmd.Flags(), bound, lookupEnv); err != nil {
				return &usageError{err}
			}
			cfg, err := b.config()
			if err == nil && ping {
				err = pingAlone(cmd.Flags())
			}
			if err == nil {
				if ping {
					cfg.Ping()
					b.verbose = true
				}
				err = cfg.Validate()
			}
			if err != nil {
				return &usageError{err}
			}
			_, env := lookupEnv(envName("speculative-prefill"))
			switch {
			case b.speculative:
				cfg.Hint = bench.HintOn
			case env || cmd.Flags().Changed("speculative-prefill"):
				cfg.Hint = bench.HintOff
			}
			return runBench(cmd, &b, cfg)
		},
	}
	bind(&flags, &ping, cmd.Flags())
	cmd.AddCommand(newBenchAB(), newBenchCompare())
	return cmd
}

// pingAlone refuses flags that --ping would override.
func pingAlone(f *pflag.FlagSet) error {
	var given []string
	for _, name := range []string{"num-users", "num-turns", "num-user-tokens", "max-completion-tokens", "mean-delay-ms", "stagger"} {
		if f.Changed(name) {
			given = append(given, "--"+name)
		}
	}
	if len(given) == 0 {
		return nil
	}
	return fmt.Errorf("--ping is one user and one turn of about 50 tokens, and would ignore %s: give one or the other", strings.Join(given, ", "))
}

func runBench(cmd *cobra.Command, b *benchFlags, cfg bench.Config) error {
	out, err := openResult(b.output)
	if err != nil {
		return &usageError{err}
	}
	defer out.discard()
	warnVariables(cmd, func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), "warmroute: "+line) })
	p := newProgress(cmd.ErrOrStderr(), cfg.Turns, cfg.Users*cfg.Turns*(1+cfg.ToolSteps), b.verbose)
	cfg.OnTurn = p.turn
	p.start()
	r, err := bench.Run(cmd.Context(), cfg)
	p.stop()
	if err != nil {
		return err
	}
	if err := out.write(cmd, r.WriteText, r.WriteJSON); err != nil {
		return err
	}
	switch {
	case r.Interrupted:
		return fmt.Errorf("interrupted after %d of %d turns", r.Successful+r.Failed, r.Planned)
	case r.Successful == 0:
		return fmt.Errorf("none of %d turns was answered: %s", r.Requests, firstFailure(r))
	}
	return nil
}

func firstFailure(r *report.Run) string {
	for _, q := range r.Records {
		if !q.OK {
			return q.Failure + ": " + q.Error
		}
	}
	return "see above"
}

// result is where the JSON goes. The file is made before the run, so that a wrong path
// does not cost one, and takes its name when it is complete.
type result struct {
	path string // "" for no file
	temp *os.File
}

func openResult(path string) (*result, error) {
	if path == "" || path == "-" {
		return &result{path: path}, nil
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("--output %s: not a regular file", path)
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("--output %s: there is no directory %s", path, dir)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("--output %s: %s is no directory", path, dir)
	}
	temp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, fmt.Errorf("--output %s: %w", path, cause(err))
	}
	return &result{path: path, temp: temp}, nil
}

// cause is an error of the file system without the name of the temporary file.
func cause(err error) error {
	switch e := err.(type) {
	case *fs.PathError:
		return e.Err
	case *os.LinkError:
		return e.Err
	}
	return err
}

// write prints the report and keeps the file.
func (o *result) write(cmd *cobra.Command, text, js func(io.Writer) error) error {
	if o.path == "-" {
		if err := text(cmd.ErrOrStderr()); err != nil {
			return err
		}
		return js(cmd.OutOrStdout())
	}
	if err := text(cmd.OutOrStdout()); err != nil {
		return err
	}
	if o.temp == nil {
		return nil
	}
	err := js(o.temp)
	if err == nil {
		err = o.temp.Chmod(0o644)
	}
	if e := o.temp.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(o.temp.Name(), o.path)
	}
	if err != nil {
		return fmt.Errorf("--output %s: %w", o.path, cause(err))
	}
	o.temp = nil
	return nil
}

// discard removes an unfinished file.
func (o *result) discard() {
	if o.temp != nil {
		o.temp.Close()
		os.Remove(o.temp.Name())
	}
}

func newBenchCompare() *cobra.Command {
	return &cobra.Command{
		Use:   "compare baseline.json treatment.json",
		Short: "Print the ratios of two result files, turn by turn",
		Long: `compare reads two files of bench --output, computes their tables again from the raw
turns and prints the ratio of each. It refuses files of different seeds, workloads or
failure rates. It gives no verdict: for one, use bench ab.`,
		Example: "  warmroute bench compare baseline.json specprefill.json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return &usageError{fmt.Errorf("compare takes two files of warmroute bench --output, and got %d", len(args))}
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var runs [2]*report.Run
			for i, path := range args {
				f, err := os.Open(path)
				if err != nil {
					return &usageError{err}
				}
				runs[i], err = report.ReadRun(f)
				f.Close()
				var syntax *json.SyntaxError
				switch {
				case errors.As(err, &syntax):
					return &usageError{fmt.Errorf("%s, byte %d: %w", path, syntax.Offset, err)}
				case err != nil:
					return &usageError{fmt.Errorf("%s: %w", path, err)}
				}
			}
			return report.Compare(cmd.OutOrStdout(), args[0], args[1], runs[0], runs[1])
		},
	}
}
