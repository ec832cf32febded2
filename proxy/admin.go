package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
	"github.com/warmroute/warmroute/router/kv"
)

// adminHandler serves the operator's side. It is meant for a private address.
func (s *Server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET "+pathHealth, func(w http.ResponseWriter, _ *http.Request) {
		sendJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET "+pathReady, func(w http.ResponseWriter, _ *http.Request) {
		status, report := s.readiness()
		sendJSON(w, status, report)
	})
	mux.HandleFunc("GET /debug/workers", s.debugWorkers)
	mux.HandleFunc("GET /debug/route", s.debugRoute)
	mux.HandleFunc("POST /debug/route", s.debugExplain)
	mux.HandleFunc("GET /debug/prefill", s.debugPrefill)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "warmroute "+s.cfg.Version+"\n\n/metrics\n/readyz\n/debug/workers\n/debug/route (GET: last decisions, POST a request body: explain it without sending it; ?text for a table)\n/debug/prefill\n/debug/pprof/\n")
	})
	return mux
}

func sendJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the reader may have left
}

// readiness is the body of /readyz.
type readiness struct {
	Status  string   `json:"status"` // ready, degraded, unready or draining
	Reasons []string `json:"reasons,omitempty"`
}

// readiness says whether requests can be served. Degraded still is ready: what is wrong
// makes routing less exact, or takes a worker out.
func (s *Server) readiness() (status int, r readiness) {
	ready, reasons := s.cfg.Fleet.Ready()
	if b := s.cfg.Bus; b != nil && !b.Connected() {
		reasons = append(reasons, "NATS is not connected: routing uses the last known KV events")
	}
	for _, w := range s.cfg.Router.Status() {
		if w.Warming && w.Rank == 0 {
			reasons = append(reasons, fmt.Sprintf("worker %s is warming: its cache is filled before it takes requests", w.Worker))
		}
	}
	if c := s.cfg.Consumer; c != nil {
		for _, f := range c.Status() {
			if f.State == events.FeedStale || f.State == events.FeedResyncing {
				reasons = append(reasons, fmt.Sprintf("KV events of %s are %v: %s", f.Rank, f.State, f.Reason))
			}
		}
	}
	switch {
	case s.draining.Load():
		return http.StatusServiceUnavailable, readiness{"draining", reasons}
	case !ready:
		return http.StatusServiceUnavailable, readiness{"unready", reasons}
	case len(reasons) > 0:
		return http.StatusOK, readiness{"degraded", reasons}
	}
	return http.StatusOK, readiness{Status: "ready"}
}

// debugWorkers shows every worker as the fleet, the router and the event feed see it.
func (s *Server) debugWorkers(w http.ResponseWriter, _ *http.Request) {
	v := struct {
		Version  string                  `json:"version"`
		Workers  []upstream.WorkerStatus `json:"workers"`
		Unjoined []upstream.Unjoined     `json:"unjoined_feeds"`
		Routing  []router.WorkerStatus   `json:"routing"` // one a rank
		Queue    router.QueueStatus      `json:"queue"`
		Feeds    []events.FeedStatus     `json:"feeds"`
		Peers    []events.PeerStatus     `json:"peers,omitempty"` // other proxies
	}{
		Version: s.cfg.Version, Workers: s.cfg.Fleet.Status(), Unjoined: s.cfg.Fleet.Unjoined(),
		Routing: s.cfg.Router.Status(), Queue: s.cfg.Router.Queue(),
	}
	if s.cfg.Consumer != nil {
		v.Feeds = s.cfg.Consumer.Status()
	}
	if s.cfg.Peers != nil {
		v.Peers = s.cfg.Peers.Status()
	}
	sendJSON(w, http.StatusOK, v)
}

// debugPrefill shows what warming did and whether it paid.
func (s *Server) debugPrefill(w http.ResponseWriter, _ *http.Request) {
	if s.cfg.Prefill == nil {
		sendJSON(w, http.StatusOK, map[string]string{"status": "off"})
		return
	}
	sendJSON(w, http.StatusOK, s.cfg.Prefill.Debug())
}

// debugRoute shows the last decisions, newest first.
func (s *Server) debugRoute(w http.ResponseWriter, r *http.Request) {
	decisions := s.cfg.Router.Decisions()
	if r.URL.Query().Has("text") {
		for _, d := range decisions {
			fmt.Fprintf(w, "#%s %s\n%s\n\n", d.ID, d.Time.Format("15:04:05.000"), d.Explain())
		}
		return
	}
	sendJSON(w, http.StatusOK, decisions)
}

// debugExplain tells where a posted request body would go. Nothing is sent, booked or
// counted.
func (s *Server) debugExplain(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(s.cfg.MaxBodyBytes)))
	if err != nil {
		sendFault(w, faultTooLarge(s.cfg.MaxBodyBytes))
		return
	}
	kind := openai.Chat
	if r.URL.Query().Get("endpoint") == "completions" {
		kind = openai.Completions
	}
	var req openai.Request
	if err := openai.ParseRequest(kind, body, &req); err != nil {
		sendFault(w, faultRequest(err))
		return
	}
	if model, ok := s.cfg.Aliases[req.Model]; ok && model != req.Model {
		body = openai.Rewrite(nil, body, &req, openai.Edit{Model: model})
		if err := openai.ParseRequest(kind, body, &req); err != nil {
			sendFault(w, faultRequest(err))
			return
		}
	}
	ns := kv.Namespace{Salt: req.CacheSalt}
	if s.cfg.Fleet.LoRA(req.Model) {
		ns.LoRA = req.Model
	}
	p := s.cfg.Prompt.Build(r.Context(), &req, body, s.cfg.Fleet.Tokenizer(req.Model, kind), ns, req.Model)
	d, err := s.cfg.Router.Preview(&router.Request{
		Model: req.Model, Prompt: p, MaxTokens: req.MaxTokens, OutputTokensHint: req.OutputTokensHint,
		FirstTurn: req.FirstTurn, Stream: req.Stream, PinRank: -1, Priority: req.Priority,
	})
	if err != nil {
		sendFault(w, faultRoute(err, req.Model, s.modelNames(nil)))
		return
	}
	if r.URL.Query().Has("text") {
		fmt.Fprintln(w, d.Explain())
		return
	}
	sendJSON(w, http.StatusOK, d)
}

func sendFault(w http.ResponseWriter, f *fault) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.status)
	_, _ = w.Write(f.body(nil))
}
