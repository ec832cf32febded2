package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/upstream"
)

// doctorConfig is what `doctor` can be told.
type doctorConfig struct {
	Events, Replay string // for workers that name none; {host} is the worker's
	APIKey         string // likewise
	Tokens         tokenizerConfig
	NoGenerate     bool
	JSON           bool
}

func newDoctor() *cobra.Command {
	var cfg doctorConfig
	cmd := &cobra.Command{
		Use:   "doctor URL[,key=value…]…",
		Short: "Check workers and name the engine flag that each lacks",
		Long: `doctor checks each worker as the proxy would use it: engine and version, model, block
size, prefix caching, KV events and their replay, token ids (equal on all workers of a
model, and equal to those that the proxy makes itself where it finds the model's files),
cached tokens in usage, life of idle connections. One line a check: ok, warn or FAIL, with
the engine's flag that mends it. It exits with 1 if a check failed.

Unless --no-generate is given, it sends each worker one request twice, with the same
prompt of four blocks (at least 256 words) and max_tokens=1: an endpoint that bills
bills these. Workers are written as for serve --worker.`,
		Example: `  warmroute doctor http://gpu1:8000 http://gpu2:8000 --events 'tcp://{host}:5557' --replay 'tcp://{host}:5657'
  warmroute doctor http://gpu1:8000,events=tcp://gpu1:5557 --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if key, ok := lookupEnv("WARMROUTE_API_KEY"); ok && cfg.APIKey == "" {
				cfg.APIKey = key
			}
			workers, err := cfg.workers(args)
			if err != nil {
				return &usageError{err}
			}
			if err := cfg.Tokens.validate(); err != nil {
				return &usageError{err}
			}
			log := logConfig{Level: "warn", Format: "text"}
			return doctor(cmd.Context(), workers, cfg, log.logger(cmd.ErrOrStderr()), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Events, "events", "", "ZMQ `endpoint` of KV events of workers that name none; {host} stands for the worker's host")
	f.StringVar(&cfg.Replay, "replay", "", "ZMQ `endpoint` of their replay sockets, likewise")
	f.StringVar(&cfg.APIKey, "api-key", "", "API key of workers that name none; better WARMROUTE_API_KEY")
	f.StringVar(&cfg.Tokens.Path, "model-path", "", "`directory or Hugging Face id` with the tokenizer and chat template of every worker's model; empty takes what each worker names at /v1/models")
	f.BoolVar(&cfg.Tokens.Offline, "offline", false, "take tokenizer files from disk only")
	f.BoolVar(&cfg.NoGenerate, "no-generate", false, "send no request that makes an engine generate")
	f.BoolVar(&cfg.JSON, "json", false, "print JSON")
	return cmd
}

// workers reads the arguments and fills in what the flags say for all of them.
func (c *doctorConfig) workers(args []string) ([]workerConfig, error) {
	if len(args) == 0 {
		return nil, errors.New("no worker is given: warmroute doctor http://host:8000")
	}
	if c.Replay != "" && c.Events == "" {
		return nil, errors.New("--replay is given without --events")
	}
	var list []workerConfig
	for _, arg := range args {
		w, err := parseWorker(arg)
		if err != nil {
			return nil, err
		}
		if w.Events == "" && w.Replay == "" {
			host := ""
			if u, err := url.Parse(w.URL); err == nil {
				host = u.Hostname()
			}
			if net.ParseIP(host) != nil && strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			w.Events = strings.ReplaceAll(c.Events, "{host}", host)
			w.Replay = strings.ReplaceAll(c.Replay, "{host}", host)
		}
		if w.APIKey == "" {
			w.APIKey = c.APIKey
		}
		if err := w.Validate(); err != nil {
			return nil, err
		}
		list = append(list, w)
	}
	return list, nil
}

// doctor checks the workers, prints what it found and fails if a check did.
func doctor(ctx context.Context, workers []workerConfig, cfg doctorConfig, log *slog.Logger, out io.Writer) error {
	list, err := upstream.Doctor(ctx, workers, upstream.DoctorConfig{
		Generate: !cfg.NoGenerate,
		Models:   prompt.ModelsConfig{Paths: modelPaths(cfg.Tokens), Find: findModel(cfg.Tokens, log)},
	})
	if err != nil {
		return err
	}
	if cfg.JSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		if err := e.Encode(list); err != nil {
			return err
		}
	} else {
		printDiagnoses(out, list)
	}
	failed := 0
	for i := range list {
		if list[i].Failed() {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d workers failed a check", failed, len(list))
	}
	return nil
}

// printDiagnoses prints one line a check.
func printDiagnoses(out io.Writer, list []upstream.Diagnosis) {
	for i := range list {
		d := &list[i]
		if i > 0 {
			fmt.Fprintln(out)
		}
		if fmt.Fprint(out, d.Worker); d.Worker != d.URL {
			fmt.Fprint(out, " at ", d.URL)
		}
		fmt.Fprintln(out)
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, f := range d.Findings {
			result := f.Result
			if result == upstream.CheckFail {
				result = "FAIL"
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\n", result, f.Check, f.Text)
		}
		_ = t.Flush() // as good as the writes above
	}
}
