package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/hub"
	"github.com/warmroute/warmroute/internal/prompt"
)

// modelPaths are the configured places of tokenizer files, as prompt.ModelsConfig wants
// them.
func modelPaths(cfg tokenizerConfig) map[string]string {
	paths := maps.Clone(cfg.Models)
	if paths == nil {
		paths = map[string]string{}
	}
	if cfg.Path != "" {
		paths["*"] = cfg.Path
	}
	return paths
}

// validate refuses places of tokenizer files that are not on this machine and cannot be
// ids: nothing will mend them while the proxy runs.
func (c *tokenizerConfig) validate() error {
	if err := validModelPath("tokenizer.path (--model-path)", c.Path); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		if err := validModelPath("tokenizer.models."+name, c.Models[name]); err != nil {
			return err
		}
	}
	return nil
}

// validModelPath takes a directory, a Hugging Face id and "". A relative path of two parts
// has the form of an id: what of both it is shows once it is looked for.
func validModelPath(setting, ref string) error {
	if ref == "" {
		return nil
	}
	info, err := os.Stat(ref)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("%s: %q is a file: give the directory that holds tokenizer.json", setting, ref)
	case validHubID(ref):
		return nil
	}
	return fmt.Errorf("%s: %q is no directory on this machine and no Hugging Face id such as org/name", setting, ref)
}

// fetchTimeout bounds the download of one model's tokenizer files, about 20 MB.
const fetchTimeout = 3 * time.Minute

// findModel returns what finds the files of a directory or a Hugging Face id. A worker's
// own path is of use where it exists on this machine too.
func findModel(cfg tokenizerConfig, log *slog.Logger) func(context.Context, string) (string, error) {
	h := hub.New(hub.Config{Offline: cfg.Offline, Notice: func(line string) { log.Warn(line) }})
	return func(ctx context.Context, ref string) (string, error) {
		if info, err := os.Stat(ref); err == nil && info.IsDir() {
			return ref, nil
		}
		if !strings.Contains(ref, "/") || !h.Looks(ref) {
			return "", fmt.Errorf("%q is no directory on this machine and no Hugging Face id such as org/name", ref)
		}
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		return h.Dir(ctx, ref, "")
	}
}

// servedName is the name of a model that nobody named: the id, or the directory's.
func servedName(ref string) string {
	if validHubID(ref) {
		return ref
	}
	if dir, err := filepath.Abs(ref); err == nil {
		return filepath.Base(dir)
	}
	return ref
}

// validHubID tells whether ref is an id and no directory here.
func validHubID(ref string) bool {
	_, err := os.Stat(ref)
	return err != nil && strings.Contains(ref, "/") && hub.New(hub.Config{}).Looks(ref)
}

// loadModel loads what --model-path names, for the verbs that have no other place.
func loadModel(ctx context.Context, ref string, cfg tokenizerConfig, log *slog.Logger) (*prompt.Model, error) {
	dir, err := findModel(cfg, log)(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("--model-path: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil { // others may be told, who are elsewhere
		return nil, fmt.Errorf("--model-path: %w", err)
	}
	m, err := prompt.LoadModel(dir)
	if err != nil {
		return nil, fmt.Errorf("--model-path: %w", err)
	}
	return m, nil
}
