package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/pflag"
)

// reloadAfter is how long after a change in its directory the file is read: editors and
// ConfigMap updates touch it several times. A later change does not put it off, so a busy
// directory cannot.
const reloadAfter = 200 * time.Millisecond

// reloader reads the configuration again on SIGHUP and when the file changes. The
// directory is watched, not the file, because both editors and Kubernetes replace it.
type reloader struct {
	path  string
	given *pflag.FlagSet
	last  []byte // content that is in force

	settings string // what needs a restart, as it is in force; "" compares nothing
}

// settings returns everything in c but what is reloaded, in a form that can be compared.
func settings(c config) string {
	c.Workers = nil
	return fmt.Sprintf("%+v", c)
}

// newReloader notes the file's content; it is called before the configuration is read,
// so that no change in between is missed.
func newReloader(path string, given *pflag.FlagSet) reloader {
	last, _ := os.ReadFile(path) // loadConfig reports the error
	return reloader{path: path, given: given, last: last}
}

// run calls apply with each new valid configuration until ctx ends. An invalid one is
// reported and the running configuration stays.
func (r reloader) run(ctx context.Context, log *slog.Logger, apply func(config) error) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	var changed chan fsnotify.Event
	var missed chan error // by the watcher: it waits until they are taken
	if r.path != "" {
		watcher, err := fsnotify.NewWatcher()
		if err == nil {
			err = watcher.Add(filepath.Dir(r.path))
			defer watcher.Close()
		}
		if err != nil {
			log.Warn("config file is not watched; reload with SIGHUP", "file", r.path, "error", err)
		} else {
			changed, missed = watcher.Events, watcher.Errors
		}
	}
	last := r.last
	due := time.NewTimer(reloadAfter)
	defer due.Stop()
	pending := true // due will fire
	touched := func() {
		if !pending {
			pending = true
			due.Reset(reloadAfter)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			touched()
			continue
		case <-missed:
			touched()
			continue
		case <-due.C:
			pending = false
			raw, err := os.ReadFile(r.path)
			if r.path == "" || err != nil || string(raw) == string(last) {
				continue
			}
			last = raw
		case <-hup:
			last, _ = os.ReadFile(r.path)
		}
		cfg, err := loadConfig(r.path, r.given)
		if err == nil {
			err = apply(cfg)
		}
		if err != nil {
			log.Error("reload refused, the running configuration stays", "file", r.path, "error", err)
			continue
		}
		if again := settings(cfg); r.settings != "" && again != r.settings {
			log.Warn("only workers are reloaded: the other changes need a restart", "file", r.path)
		}
		log.Info("workers reloaded", "file", r.path, "workers", len(cfg.Workers))
	}
}
