package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
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

// loadModel loads what --model-path names, for the verbs that have no other place.
func loadModel(ctx context.Context, ref string, cfg tokenizerConfig, log *slog.Logger) (*prompt.Model, error) {
	dir, err := findModel(cfg, log)(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("--model-path: %w", err)
	}
	m, err := prompt.LoadModel(dir)
	if err != nil {
		return nil, fmt.Errorf("--model-path: %w", err)
	}
	return m, nil
}
