// Command warmroute is a KV-aware routing proxy in front of OpenAI-compatible
// inference workers, with the tools around it.
//
//	flags ─┐
//	env   ─┼─▶ config ─▶ serve  ─▶ proxy · router · events
//	file  ─┘             relay  ─▶ one engine's KV events onto NATS
//	                     worker ─▶ a simulated engine, no GPU
//	                     bench  ─▶ multi-turn sessions against any OpenAI endpoint
//	                     demo   ─▶ all of it in one process, compared
//	                     doctor ─▶ what each worker lacks, and the flag that mends it
//
// It is the only package that knows flags, environment variables and YAML: it binds
// them into the Config structs of the other packages, wires those together, and owns
// the order in which they start and stop. Each verb is one file.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes: what a script may rely on.
const (
	exitOK    = 0
	exitError = 1 // something failed while running
	exitUsage = 2 // the command line, environment or file is wrong
)

// usageError marks an error of the caller: it exits with exitUsage and points to
// --help.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func main() { os.Exit(run(os.Args[1:])) }

// run executes one command line and returns the exit code.
func run(args []string) int {
	ctx, stop := signalContext()
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(root.ErrOrStderr(), "warmroute: %v\n", err)
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}

// sameSignal is how long a repeated signal counts as the first: supervisors and terminals
// often signal both a process and its group.
const sameSignal = 20 * time.Millisecond

// signalContext returns a context that the first SIGINT or SIGTERM cancels; a second
// signal ends the process at once.
func signalContext() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	// Owned by the returned cancel func, which ends it.
	go func() {
		select {
		case <-signals:
		case <-done:
			return
		}
		cancel()
		first := time.Now()
		for {
			select {
			case s := <-signals:
				if time.Since(first) < sameSignal {
					continue
				}
				fmt.Fprintf(os.Stderr, "warmroute: second signal (%v), exiting without draining\n", s)
				os.Exit(exitError)
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel()
		close(done)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "warmroute",
		Short: "KV-aware routing proxy for OpenAI-compatible inference workers",
		Long: `warmroute stands in front of vLLM, SGLang and other OpenAI-compatible workers and
sends each request where its first token comes soonest, because it knows, block by
block, which worker holds which prefix in its KV cache.`,
		Example: `  # Two simulated workers and an endpoint on :8000, nothing else needed.
  warmroute serve --simulate 2

  # Two vLLM replicas that publish KV events.
  warmroute serve \
    --worker http://gpu1:8000,events=tcp://gpu1:5557,replay=tcp://gpu1:5657 \
    --worker http://gpu2:8000,events=tcp://gpu2:5557,replay=tcp://gpu2:5657`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			msg := fmt.Sprintf("unknown command %q", args[0])
			if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
				msg += fmt.Sprintf(", did you mean %s?", strings.Join(like, " or "))
			}
			return &usageError{errors.New(msg + " (see warmroute --help)")}
		},
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:                    versionString(),
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var invalid *pflag.InvalidValueError
		if errors.As(err, &invalid) {
			// pflag repeats the value, which may hold a credential.
			err = fmt.Errorf("--%s: %w", invalid.GetFlag().Name, badValue(invalid.GetFlag(), invalid.GetValue(), invalid.Unwrap()))
		}
		return &usageError{fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())}
	})
	root.AddCommand(newServe(), newRelay(), newWorker(), newBench(), newDemo(), newDoctor(), newTokenize(), newVersion())
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}

// noArgs refuses positional arguments with a message that shows the likely mistake.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &usageError{fmt.Errorf("unexpected argument %q: %s takes flags only (see %s --help)", args[0], cmd.CommandPath(), cmd.CommandPath())}
}
