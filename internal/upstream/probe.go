package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/router/events"
)

// maxProbeBytes bounds the answer of a probe; vLLM's /metrics is the largest.
const maxProbeBytes = 8 << 20

// probeTimeout bounds one request of a probe. SGLang's /server_info waits for the
// scheduler, which may be in a long step.
const probeTimeout = 25 * time.Second

// facts are what a worker told about itself.
type facts struct {
	engine  string
	version string
	models  []ModelInfo

	capacityTokens int // of one rank
	maxNumSeqs     int
	drafts         bool // decodes with drafts (vLLM does not say of which kind)
	blockSize      int
	ranks          int
	health         string // path of the health check
	load           *ReportedLoad

	advert *kvAdvert // SGLang: where it publishes its KV events; nil with an external NATS server
	flags  []string  // what to change at the engine, and why
}

// kvAdvert is the kv_events object of SGLang's /server_info.
type kvAdvert struct {
	Publisher string `json:"publisher"`
	Host      string `json:"endpoint_host"`
	Port      int    `json:"endpoint_port_base"`
	Topic     string `json:"topic"`
	BlockSize int    `json:"block_size"`
	Ranks     int    `json:"dp_size"`
}

// endpoint returns the ZMQ endpoint to connect to, or why there is none. Only the worker's
// own host is taken: a worker must not make us connect elsewhere.
func (a *kvAdvert) endpoint(base baseURL) (endpoint, reason string) {
	if a.Publisher != "zmq" || a.Port <= 0 {
		return "", "it publishes no KV events over ZMQ"
	}
	own, _, _ := net.SplitHostPort(base.addr)
	switch a.Host {
	case "", "*", "0.0.0.0", "::", "[::]", own:
		return "tcp://" + net.JoinHostPort(own, strconv.Itoa(a.Port)), ""
	}
	return "", fmt.Sprintf("it advertises KV events on %s, which is not its own host %s: set events: tcp://%s:%d if that is right", a.Host, own, a.Host, a.Port)
}

// Probe asks a worker what it is and serves, for a relay beside it.
func Probe(ctx context.Context, cfg WorkerConfig) (events.WorkerInfo, error) {
	if err := cfg.Validate(); err != nil {
		return events.WorkerInfo{}, err
	}
	m, _ := newMetrics(nil)
	f := &Fleet{metrics: m}
	f.cfg.setDefaults()
	w, err := f.newWorker(cfg, false)
	if err != nil {
		return events.WorkerInfo{}, err
	}
	defer w.pool.close()
	facts, err := w.probe(ctx)
	if err != nil {
		return events.WorkerInfo{}, err
	}
	return facts.info(&cfg), nil
}

// info returns the facts with the configured ones on top.
func (f *facts) info(cfg *WorkerConfig) events.WorkerInfo {
	i := events.WorkerInfo{
		Engine:         f.engine,
		CapacityTokens: first(cfg.CapacityTokens, f.capacityTokens),
		MaxNumSeqs:     first(cfg.MaxNumSeqs, f.maxNumSeqs),
		BlockSize:      first(cfg.BlockSize, f.blockSize),
	}
	for _, m := range f.models {
		i.Models = append(i.Models, events.ModelInfo{ID: m.ID, Parent: m.Parent})
	}
	return i
}

// first returns the first value that is not 0.
func first(values ...int) int {
	for _, v := range values {
		if v != 0 {
			return v
		}
	}
	return 0
}

// probe asks the worker for everything: models, engine, capacity.
func (w *Worker) probe(ctx context.Context) (*facts, error) {
	f := &facts{health: "/v1/models"}
	cfg := w.cfg
	code, body, err := w.fetch(ctx, fasthttp.MethodGet, "/v1/models", nil)
	if err != nil {
		return nil, err
	}
	if err := checkStatus(w.id, "/v1/models", code); err != nil {
		return nil, err
	}
	var list struct {
		Data []ModelInfo `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil || len(list.Data) == 0 {
		return nil, fmt.Errorf("worker %s: /v1/models lists no model: is %s the root of an OpenAI API?", w.id, w.base.url)
	}
	f.models = list.Data

	engine := cfg.Engine
	if engine == "" {
		engine = f.models[0].OwnedBy
	}
	// The engine's own name is tried first, then the others: owned_by is set freely by some.
	for _, name := range []string{engine, EngineVLLM, EngineSGLang, EngineLlamaCPP} {
		ok := false
		switch name {
		case EngineVLLM:
			ok, err = w.probeVLLM(ctx, f)
		case EngineSGLang:
			ok, err = w.probeSGLang(ctx, f)
		case EngineLlamaCPP:
			ok, err = w.probeLlamaCPP(ctx, f)
		case EngineOpenAI:
			ok = cfg.Engine == EngineOpenAI
		}
		if err != nil {
			return nil, err
		}
		if ok {
			f.engine = name
			break
		}
		if name == cfg.Engine && name != "" {
			return nil, fmt.Errorf("worker %s: it does not answer like engine %q: correct or remove its engine key", w.id, name)
		}
	}
	if f.engine == "" {
		f.engine = EngineOpenAI
	}
	f.diagnose(cfg)
	return f, nil
}

func checkStatus(id, path string, code int) error {
	switch {
	case code == fasthttp.StatusOK:
		return nil
	case code == fasthttp.StatusUnauthorized || code == fasthttp.StatusForbidden:
		return fmt.Errorf("worker %s: %s answers %d: set its api_key", id, path, code)
	}
	return fmt.Errorf("worker %s: %s answers %d", id, path, code)
}

// probeVLLM recognises vLLM by its metrics and reads its KV cache from them.
func (w *Worker) probeVLLM(ctx context.Context, f *facts) (bool, error) {
	code, body, err := w.fetch(ctx, fasthttp.MethodGet, "/version", nil)
	if err != nil {
		return false, err
	}
	var version struct {
		Version string `json:"version"`
	}
	if code != fasthttp.StatusOK || json.Unmarshal(body, &version) != nil || version.Version == "" {
		return false, nil
	}
	code, body, err = w.fetch(ctx, fasthttp.MethodGet, "/metrics", nil)
	if err != nil {
		return false, err
	}
	if code != fasthttp.StatusOK || !bytes.Contains(body, []byte("vllm:")) {
		return false, nil // TensorRT-LLM has a /version too
	}
	f.version, f.health = version.Version, "/health"
	f.load = readLoad(body)
	f.drafts = bytes.Contains(body, []byte("\nvllm:spec_decode_num_drafts"))
	prefixCaching := true
	for line := range bytes.Lines(body) {
		labels, ok := bytes.CutPrefix(line, []byte("vllm:cache_config_info{"))
		if !ok {
			continue
		}
		f.ranks++
		blocks, _ := strconv.Atoi(label(labels, "num_gpu_blocks"))
		f.blockSize, _ = strconv.Atoi(label(labels, "block_size"))
		f.capacityTokens = blocks * f.blockSize
		f.maxNumSeqs, _ = strconv.Atoi(label(labels, "max_num_seqs"))
		prefixCaching = label(labels, "enable_prefix_caching") != "False"
	}
	if !prefixCaching {
		f.flags = append(f.flags, vllmCachingFlag)
	}
	return true, nil
}

// ReportedLoad is what an engine last said of its own load, all ranks together. It is for
// people: the router's cost rests on its bookings, which are never half a minute old.
type ReportedLoad struct {
	Running int       `json:"running"` // sequences
	Waiting int       `json:"waiting"`
	At      time.Time `json:"at"`
}

// readLoad reads it from vLLM's metrics; nil where they do not tell.
func readLoad(metrics []byte) *ReportedLoad {
	l, told := ReportedLoad{At: time.Now()}, false
	for line := range bytes.Lines(metrics) {
		for _, g := range []struct {
			name string
			sum  *int
		}{{"vllm:num_requests_running", &l.Running}, {"vllm:num_requests_waiting", &l.Waiting}} {
			rest, ok := bytes.CutPrefix(line, []byte(g.name))
			if !ok || len(rest) == 0 || rest[0] != '{' && rest[0] != ' ' {
				continue // …_by_reason counts the same again
			}
			v, err := strconv.ParseFloat(string(bytes.TrimSpace(rest[bytes.LastIndexByte(rest, ' ')+1:])), 64)
			if err == nil && v >= 0 && v < 1e9 {
				*g.sum, told = *g.sum+int(v), true
			}
		}
	}
	if !told {
		return nil
	}
	return &l
}

// label returns the value of one label in the text format of Prometheus, "" if absent.
func label(labels []byte, name string) string {
	for rest := labels; ; {
		i := bytes.Index(rest, []byte(name+`="`))
		if i < 0 {
			return ""
		}
		value := rest[i+len(name)+2:]
		if i == 0 || rest[i-1] == ',' || rest[i-1] == '{' {
			v, _, _ := strings.Cut(string(value), `"`)
			return v
		}
		rest = value
	}
}

// probeSGLang recognises SGLang by its server info.
func (w *Worker) probeSGLang(ctx context.Context, f *facts) (bool, error) {
	for _, path := range []string{"/server_info", "/get_server_info"} {
		code, body, err := w.fetch(ctx, fasthttp.MethodGet, path, nil)
		if err != nil {
			return false, err
		}
		var info struct {
			Version           string    `json:"version"`
			PageSize          int       `json:"page_size"`
			DPSize            int       `json:"dp_size"`
			MaxTotalNumTokens int       `json:"max_total_num_tokens"`
			MaxRunning        int       `json:"max_running_requests"`
			EnableCacheReport *bool     `json:"enable_cache_report"`
			DisableRadix      bool      `json:"disable_radix_cache"`
			KVEvents          *kvAdvert `json:"kv_events"`
			TokenizerPath     string    `json:"tokenizer_path"`
			Drafts            string    `json:"speculative_algorithm"`
		}
		// vLLM's development mode has a /server_info without these.
		if code != fasthttp.StatusOK || json.Unmarshal(body, &info) != nil || info.MaxTotalNumTokens == 0 && info.PageSize == 0 {
			continue
		}
		f.version, f.health = info.Version, path
		f.capacityTokens, f.maxNumSeqs = info.MaxTotalNumTokens, info.MaxRunning
		f.blockSize, f.ranks, f.drafts = info.PageSize, info.DPSize, info.Drafts != ""
		for i := range f.models { // their root is the served name
			f.models[i].Root = info.TokenizerPath
		}
		if b := w.f.cfg.Bus; b == nil || b.External() == nil {
			f.advert = info.KVEvents
		}
		if info.DisableRadix {
			f.flags = append(f.flags, sglangRadixFlag)
		}
		if info.PageSize == 1 {
			f.flags = append(f.flags, sglangPageFlag)
		}
		if info.EnableCacheReport != nil && !*info.EnableCacheReport {
			f.flags = append(f.flags, cacheReportFlag[EngineSGLang])
		}
		return true, nil
	}
	return false, nil
}

// probeLlamaCPP recognises llama.cpp's server by its properties.
func (w *Worker) probeLlamaCPP(ctx context.Context, f *facts) (bool, error) {
	code, body, err := w.fetch(ctx, fasthttp.MethodGet, "/props", nil)
	if err != nil {
		return false, err
	}
	var props struct {
		Slots    int    `json:"total_slots"`
		Build    string `json:"build_info"`
		Defaults struct {
			Context int `json:"n_ctx"` // of one slot
		} `json:"default_generation_settings"`
	}
	if code != fasthttp.StatusOK || json.Unmarshal(body, &props) != nil || props.Slots == 0 {
		return false, nil
	}
	f.version, f.health = props.Build, "/health"
	f.maxNumSeqs = props.Slots
	f.capacityTokens = props.Slots * props.Defaults.Context
	return true, nil
}

// fetch makes one small exchange with the worker and returns the whole answer.
func (w *Worker) fetch(ctx context.Context, method, path string, body []byte) (code int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req := Request{Method: method, Path: path, Header: jsonHeader, Body: body, FirstByte: probeTimeout}
	resp, err := w.Do(ctx, &req)
	if err != nil {
		return 0, nil, probeError(w.id, path, err)
	}
	defer resp.Close()
	var whole bytes.Buffer
	if n := resp.ContentLength(); n > 0 {
		whole.Grow(int(min(n, maxProbeBytes)) + bytes.MinRead)
	}
	if _, err = whole.ReadFrom(io.LimitReader(resp, maxProbeBytes+1)); err != nil {
		return 0, nil, probeError(w.id, path, err)
	}
	answer = whole.Bytes()
	if len(answer) > maxProbeBytes {
		return 0, nil, fmt.Errorf("worker %s: %s answers more than %d MiB", w.id, path, maxProbeBytes>>20)
	}
	return resp.Header.StatusCode(), answer, nil
}

// probeError names the path where the deadline of a probe passed.
func probeError(id, path string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("worker %s: no answer from %s in time: %w", id, path, err)
	}
	return err
}

var jsonHeader = []byte("Content-Type: application/json\r\nAccept: */*\r\nUser-Agent: warmroute\r\n")
