package upstream

import (
	"context"
	"strings"
	"time"

	"github.com/warmroute/warmroute/router/events"
)

// runRelay keeps an in-process relay beside a worker whose KV events this proxy reads
// itself: where events is configured, or where SGLang tells its endpoint. The relay feeds
// only this proxy, through the embedded server. With an external NATS server only a
// configured one is read: relays that all proxies share announce the others, and a relay
// here, which attaches later than they did, would shadow them.
func (w *Worker) runRelay(ctx context.Context) {
	if w.f.cfg.Bus == nil || w.announced {
		return // an announced worker has a relay elsewhere: it announced it
	}
	// At once when the worker is found: what an engine without a replay socket sends
	// before that is lost.
	select {
	case <-ctx.Done():
		return
	case <-w.found:
	}
	timer := time.NewTicker(w.f.cfg.Probe)
	defer timer.Stop()
	for ctx.Err() == nil {
		facts := w.known()
		if cfg := w.relayConfig(facts); cfg.Events != "" {
			w.relay(ctx, cfg, facts)
		}
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
}

// relayConfig says which relay the worker needs; Events is empty where it needs none.
func (w *Worker) relayConfig(facts *facts) events.RelayConfig {
	c := events.RelayConfig{
		Worker: w.id, URL: w.base.url, RelayID: "in-process-" + w.id,
		Events: w.cfg.Events, Replay: w.cfg.Replay, Topic: w.cfg.Topic, Ranks: w.ranks(facts),
		StateDir: w.f.cfg.StateDir, Conn: w.f.cfg.Bus.Local(), Prefix: w.f.cfg.Prefix, Cluster: w.f.cfg.Cluster,
		Logger: w.f.cfg.Logger, Registerer: w.f.cfg.Registerer,
	}
	if c.Events == "" && facts.advert != nil {
		endpoint, reason := facts.advert.endpoint(w.base)
		if endpoint == "" {
			w.reportAdvert(reason)
			return c
		}
		c.Events, c.Topic = endpoint, facts.advert.Topic
		if facts.advert.Ranks > 0 && w.cfg.Ranks == 0 {
			c.Ranks = min(facts.advert.Ranks, maxRanks)
		}
	}
	// vLLM connects instead of binding where its endpoint has no wildcard: then we bind.
	c.Bind = strings.Contains(c.Events, "*")
	return c
}

// relay runs one relay until ctx ends, it fails, or the worker needs another one.
func (w *Worker) relay(ctx context.Context, cfg events.RelayConfig, facts *facts) {
	r, err := events.NewRelay(cfg)
	if err != nil {
		w.reportAdvert("relay: " + err.Error())
		return
	}
	r.SetInfo(facts.info(w.cfg))
	w.setRelay(r)
	defer w.setRelay(nil)
	w.f.cfg.Logger.Info("reading KV events", "worker", w.id, "events", cfg.Events, "replay", cfg.Replay, "ranks", cfg.Ranks)

	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Run(rctx) }() // waited for below, on every path
	timer := time.NewTicker(w.f.cfg.Probe)
	defer timer.Stop()
	for {
		select {
		case err := <-done:
			if err != nil && ctx.Err() == nil {
				w.f.cfg.Logger.Warn("relay ended, it is started again", "worker", w.id, "reason", err)
			}
			return
		case <-timer.C:
			if next := w.relayConfig(w.known()); next != cfg {
				cancel()
				<-done
				return
			}
		}
	}
}

func (w *Worker) setRelay(r *events.Relay) {
	w.mu.Lock()
	w.mu.relay = r
	w.mu.Unlock()
}

// reportAdvert logs once why advertised or configured events are not read.
func (w *Worker) reportAdvert(reason string) {
	w.mu.Lock()
	report := !w.mu.silent
	w.mu.silent = true
	w.mu.Unlock()
	if report {
		w.f.cfg.Logger.Warn("KV events are not read", "worker", w.id, "reason", reason)
	}
}
