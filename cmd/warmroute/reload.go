package main

import (
	"context"
	"crypto/sha256"
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

// reloader reads the configuration again on SIGHUP and when its file changes, or one that
// it names. Directories are watched, not files, because both editors and Kubernetes replace
// those.
type reloader struct {
	path  string
	given *pflag.FlagSet
	last  string   // content that is in force
	files []string // beside path: keys and certificates

	settings string // what needs a restart, as it is in force; "" compares nothing
}

// settings returns everything in c but what is reloaded, in a form that can be compared.
func settings(c config) string {
	c.Workers, c.Auth, c.TLS = nil, authConfig{}, tlsConfig{}
	return fmt.Sprintf("%+v", c)
}

// newReloader notes the file's content; it is called before the configuration is read,
// so that no change in between is missed.
func newReloader(path string, given *pflag.FlagSet) reloader {
	return reloader{path: path, given: given, last: read(path)} // loadConfig reports errors
}

// follow takes over the configuration that is to be in force, before the files that it
// names are read.
func (r *reloader) follow(c config) {
	r.settings = settings(c)
	r.files = c.files()
	for _, f := range r.files {
		r.last += read(f)
	}
}

// content is that of all files.
func (r *reloader) content() string {
	all := read(r.path)
	for _, f := range r.files {
		all += read(f)
	}
	return all
}

// names returns the files that are followed.
func (r *reloader) names() (out []string) {
	if r.path != "" {
		out = append(out, r.path)
	}
	return append(out, r.files...)
}

// read returns what stands for the content of a file, "" where it cannot be read: a file
// that goes away and comes back as it was has not changed.
func read(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(raw)
	return string(sum[:])
}

// watch adds the directories of all files to a watcher.
func (r *reloader) watch(w *fsnotify.Watcher, log *slog.Logger) {
	for _, f := range r.names() {
		if err := w.Add(filepath.Dir(f)); err != nil {
			log.Warn("file is not watched; reload with SIGHUP", "file", f, "error", err)
		}
	}
}

// run calls apply with each new valid configuration until ctx ends. An invalid one is
// reported and the running configuration stays.
func (r reloader) run(ctx context.Context, log *slog.Logger, apply func(config) error) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)

	var changed chan fsnotify.Event
	var missed chan error // by the watcher: it waits until they are taken
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("files are not watched; reload with SIGHUP", "error", err)
	} else {
		defer watcher.Close()
		changed, missed = watcher.Events, watcher.Errors
		r.watch(watcher, log)
	}
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
			now := r.content()
			if now == r.last || r.absent() {
				continue
			}
			r.last = now
		case <-hup:
			r.last = r.content()
		}
		cfg, err := loadConfig(r.path, r.given)
		if err == nil {
			r.adopt(cfg, watcher, log)
			err = apply(cfg)
		}
		if err != nil {
			log.Error("reload refused, the running configuration stays", "files", r.names(), "error", err)
			continue
		}
		if again := settings(cfg); r.settings != "" && again != r.settings {
			log.Warn("only workers, API keys and certificates are reloaded: the other changes need a restart", "files", r.names())
		}
		log.Info("configuration reloaded", "files", r.names(), "workers", len(cfg.Workers))
	}
}

// absent tells whether a file is away for the moment, as while an editor replaces it.
func (r *reloader) absent() bool {
	for _, f := range r.names() {
		if read(f) == "" {
			return true
		}
	}
	return false
}

// adopt follows the files that a configuration names, before they are read.
func (r *reloader) adopt(c config, watcher *fsnotify.Watcher, log *slog.Logger) {
	r.files = c.files()
	r.last = r.content()
	if watcher != nil {
		r.watch(watcher, log)
	}
}
