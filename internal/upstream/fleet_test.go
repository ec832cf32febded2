package upstream

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/events"
	"github.com/warmroute/warmroute/router/kv"
)

// pathServer answers each path with fixed JSON and counts the questions.
type pathServer struct {
	*httptest.Server
	mu    sync.Mutex
	paths map[string]string // "/props" → body, or "503" and the like
	asked map[string]int
	last  map[string]string // last body
}

func servePaths(t *testing.T, paths map[string]string) *pathServer {
	s := &pathServer{paths: paths, asked: map[string]int{}, last: map[string]string{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked[r.URL.Path]++
		s.last[r.URL.Path] = string(body)
		answer, ok := s.paths[r.URL.Path]
		var code int
		if _, err := fmt.Sscan(answer, &code); !ok || err == nil {
			w.WriteHeader(max(code, 404*b2i(!ok)))
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return s
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *pathServer) set(path, answer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths[path] = answer
}

func (s *pathServer) count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[path]
}

func (s *pathServer) sent(path string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[path]
}

const (
	vllmModels  = `{"object":"list","data":[{"id":"m","owned_by":"vllm","root":"/models/m","parent":null,"max_model_len":8192},{"id":"tuned","owned_by":"vllm","parent":"m"}]}`
	vllmMetrics = `# HELP vllm:cache_config_info Information
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="%s",engine="0",gpu_memory_utilization="0.9",num_cpu_blocks="None",num_gpu_blocks="27001"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="%[1]s",engine="1",num_cpu_blocks="7",num_gpu_blocks="27001"} 1.0
vllm:num_requests_running{engine="0"} 0.0
`
	sglangInfo = `{"version":"0.5.23","page_size":1,"dp_size":2,"max_total_num_tokens":300000,"max_running_requests":64,"enable_cache_report":false,"tokenizer_path":"m",
"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":1,"dp_size":2},"internal_states":[{}]}`
	llamaProps = `{"default_generation_settings":{"n_ctx":4096},"total_slots":4,"build_info":"b7000","chat_template":"x"}`
)

// TestProbe_ReadsWhetherAnEngineDrafts: one that does computes the last block of a cached
// prefix again.
func TestProbe_ReadsWhetherAnEngineDrafts(t *testing.T) {
	f := func(name string, paths map[string]string, want bool) {
		t.Helper()
		s := servePaths(t, paths)
		fleet := &Fleet{}
		fleet.metrics, _ = newMetrics(nil)
		fleet.cfg.setDefaults()
		w, err := fleet.newWorker(WorkerConfig{URL: s.URL}, false)
		if err != nil {
			t.Fatal(err)
		}
		defer w.pool.close()
		facts, err := w.probe(context.Background())
		if err != nil || facts.drafts != want {
			t.Errorf("%s: %+v, %v", name, facts, err)
		}
	}
	vllm := func(metrics string) map[string]string {
		return map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.33.0"}`, "/metrics": fmt.Sprintf(vllmMetrics, "True") + metrics}
	}
	f("vllm", vllm(""), false)
	f("vllm with drafts", vllm("# TYPE vllm:spec_decode_num_drafts_total counter\nvllm:spec_decode_num_drafts_total{engine=\"0\"} 0.0\n"), true)
	sglang := func(more string) map[string]string {
		return map[string]string{"/v1/models": vllmModels, "/server_info": strings.Replace(sglangInfo, "{", "{"+more, 1)}
	}
	f("sglang", sglang(`"speculative_algorithm":null,`), false)
	f("sglang with drafts", sglang(`"speculative_algorithm":"EAGLE3",`), true)
}

func TestProbe_RecognisesTheEngine(t *testing.T) {
	f := func(name string, paths map[string]string, cfg WorkerConfig, want string, wantFlags ...string) {
		t.Helper()
		s := servePaths(t, paths)
		cfg.URL = s.URL
		fleet := &Fleet{}
		fleet.metrics, _ = newMetrics(nil)
		fleet.cfg.setDefaults()
		w, err := fleet.newWorker(cfg, false)
		if err != nil {
			t.Fatal(err)
		}
		defer w.pool.close()
		facts, err := w.probe(context.Background())
		got := ""
		if err != nil {
			got = strings.ReplaceAll(err.Error(), s.URL, "URL")
		} else {
			got = fmt.Sprintf("%s %s models=%d block=%d capacity=%d seqs=%d ranks=%d %s", facts.engine, facts.version,
				len(facts.models), facts.blockSize, facts.capacityTokens, facts.maxNumSeqs, facts.ranks, facts.health)
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
			return
		}
		if err == nil && len(facts.flags) != len(wantFlags) {
			t.Errorf("%s: flags %q", name, facts.flags)
			return
		}
		for i, flag := range wantFlags {
			if !strings.Contains(facts.flags[i], flag) {
				t.Errorf("%s: flag %q lacks %q", name, facts.flags[i], flag)
			}
		}
	}
	f("vllm", map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.33.0"}`, "/metrics": fmt.Sprintf(vllmMetrics, "True")},
		WorkerConfig{}, "vllm 0.33.0 models=2 block=16 capacity=432016 seqs=0 ranks=2 /health")
	f("vllm without prefix caching", map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.33.0"}`, "/metrics": fmt.Sprintf(vllmMetrics, "False")},
		WorkerConfig{Events: "tcp://x:1"}, "vllm 0.33.0 models=2 block=16 capacity=432016 seqs=0 ranks=2 /health", "--enable-prefix-caching", "replay_endpoint")
	f("tensorrt has a version too", map[string]string{"/v1/models": `{"data":[{"id":"m"}]}`, "/version": `{"version":"1.3"}`, "/metrics": `[]`},
		WorkerConfig{}, "openai  models=1 block=0 capacity=0 seqs=0 ranks=0 /v1/models")
	f("sglang", map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"sglang"}]}`, "/server_info": sglangInfo},
		WorkerConfig{}, "sglang 0.5.23 models=1 block=1 capacity=300000 seqs=64 ranks=2 /server_info", "--page-size", "--enable-cache-report", "replay_endpoint")
	f("old sglang", map[string]string{"/v1/models": `{"data":[{"id":"m"}]}`, "/get_server_info": `{"page_size":16,"max_total_num_tokens":1000}`},
		WorkerConfig{}, "sglang  models=1 block=16 capacity=1000 seqs=0 ranks=0 /get_server_info")
	f("llama.cpp", map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"llamacpp"}]}`, "/props": llamaProps},
		WorkerConfig{}, "llamacpp b7000 models=1 block=0 capacity=16384 seqs=4 ranks=0 /health")
	f("anything", map[string]string{"/v1/models": `{"data":[{"id":"m"}]}`},
		WorkerConfig{}, "openai  models=1 block=0 capacity=0 seqs=0 ranks=0 /v1/models")
	f("configured otherwise", map[string]string{"/v1/models": `{"data":[{"id":"m"}]}`},
		WorkerConfig{ID: "w", Engine: "vllm"}, `worker w: it does not answer like engine "vllm": correct or remove its engine key`)
	f("needs a key", map[string]string{"/v1/models": "401"}, WorkerConfig{ID: "w"}, "worker w: /v1/models answers 401: set its api_key")
	f("no API", map[string]string{"/v1/models": "{}"}, WorkerConfig{ID: "w"}, "worker w: /v1/models lists no model: is URL the root of an OpenAI API?")
}

func TestProbe_ReadsReportedLoad(t *testing.T) {
	f := func(metrics, want string) {
		t.Helper()
		got := "none"
		if l := readLoad([]byte(metrics)); l != nil {
			got = fmt.Sprintf("%d running, %d waiting", l.Running, l.Waiting)
		}
		if got != want {
			t.Errorf("%q: %s, want %s", metrics, got, want)
		}
	}
	f("", "none")
	f("vllm:num_requests_running", "none")
	f("# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine=\"0\"} 3.0\nvllm:num_requests_running{engine=\"1\"} 4.0\n", "7 running, 0 waiting")
	f("vllm:num_requests_waiting 2\nvllm:num_requests_waiting_by_reason{reason=\"capacity\"} 2\n", "0 running, 2 waiting")
	f("vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\n", "none")
}

func TestProbe_ForARelay(t *testing.T) {
	s := servePaths(t, map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.33.0"}`, "/metrics": fmt.Sprintf(vllmMetrics, "True")})
	info, err := Probe(context.Background(), WorkerConfig{URL: s.URL, MaxNumSeqs: 99})
	if err != nil {
		t.Fatal(err)
	}
	if info.Engine != "vllm" || info.CapacityTokens != 432016 || info.MaxNumSeqs != 99 || len(info.Models) != 2 || info.Models[1].Parent != "m" {
		t.Errorf("%+v", info)
	}
	s.Close()
	if _, err := Probe(context.Background(), WorkerConfig{URL: s.URL}); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("unreachable: %v", err)
	}
}

// route asks the router once and gives the booking back.
func route(r *router.Router, model string) (worker string, err error) {
	l, err := r.Route(context.Background(), &router.Request{Model: model, PinRank: -1})
	if err != nil {
		return "", err
	}
	l.Done(router.Outcome{})
	return l.Worker().ID, nil
}

func TestFleet_WorkerGoesAndComesBack(t *testing.T) {
	s := servePaths(t, map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.33.0"}`, "/metrics": fmt.Sprintf(vllmMetrics, "True"), "/health": "{}"})
	r := newRouter()
	f, logs := startFleet(t, FleetConfig{Router: r, Workers: []WorkerConfig{{ID: "w", URL: s.URL}}})
	eventually(t, "the worker takes requests", func() bool { w, _ := route(r, "tuned"); return w == "w" })
	if ready, why := f.Ready(); !ready || len(why) != 0 {
		t.Errorf("ready=%v %q", ready, why)
	}
	s.set("/health", "503")
	eventually(t, "the worker is out", func() bool { _, err := route(r, "m"); return errors.Is(err, router.ErrNoWorkers) })
	if ready, why := f.Ready(); ready || len(why) != 1 || !strings.Contains(why[0], "/health answers 503") || strings.Count(why[0], "worker ") != 1 {
		t.Errorf("ready=%v %q", ready, why)
	}
	s.set("/health", "{}")
	eventually(t, "the worker is back", func() bool { w, _ := route(r, "m"); return w == "w" })
	if w := f.Worker("w"); strings.Contains(logs.String(), "--kv-events-config") {
		t.Errorf("a missing feed is reported before a relay could announce it:\n%s", logs)
	} else {
		w.reportMissing(time.Now().Add(feedGrace))
		w.reportMissing(time.Now().Add(feedGrace))
	}
	got := logs.String()
	if n := strings.Count(got, "worker sends no KV events"); n != 1 {
		t.Errorf("the missing feed is logged %d times", n)
	}
	for _, want := range []string{"worker found", "worker is unreachable or unwell", "worker is healthy", "--kv-events-config"} {
		if strings.Count(got, want) < 1 {
			t.Errorf("log lacks %q:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "worker is unreachable or unwell"); n != 1 {
		t.Errorf("the outage is logged %d times", n)
	}
}

// TestFleet_HealthyMeansRoutable: who sees a healthy worker, as a readiness check does,
// may send a request at once, so the router must know first.
func TestFleet_HealthyMeansRoutable(t *testing.T) {
	w := lone(t, "http://127.0.0.1:1", Timeouts{})
	w.f.publishing.Lock() // the router cannot be told now
	told := make(chan struct{})
	go func() { defer close(told); w.setHealth(true, "") }()
	for from := time.Now(); time.Since(from) < 20*time.Millisecond; runtime.Gosched() {
		if ready, _ := w.f.Ready(); ready {
			t.Error("ready before the router knows")
			break
		}
	}
	w.f.publishing.Unlock()
	<-told
	if ready, _ := w.f.Ready(); !ready {
		t.Error("not ready")
	}
	if s := w.f.cfg.Router.Status(); len(s) != 1 || !s[0].Healthy {
		t.Errorf("the router says %+v", s)
	}
}

func TestFleet_UnreachableWorkerIsOneLine(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	_ = l.Close()
	f, logs := startFleet(t, FleetConfig{Workers: []WorkerConfig{{ID: "w", URL: url}}})
	eventually(t, "three failed checks", func() bool {
		return strings.Contains(logs.String(), "unreachable") && gathered(t, f.metrics.probeErrors) >= 3
	})
	if n := strings.Count(logs.String(), "\n"); n != 1 {
		t.Errorf("%d lines:\n%s", n, logs)
	}
	if s := f.Status()[0]; s.Healthy || !strings.Contains(s.Reason, "connection refused") {
		t.Errorf("%+v", s)
	}
}

// TestFleet_DeadWorkerIsNotHammered: a check that cannot connect asks for no other check.
func TestFleet_DeadWorkerIsNotHammered(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	_ = l.Close()
	f, _ := startFleet(t, FleetConfig{Workers: []WorkerConfig{{ID: "w", URL: url}}, Probe: time.Minute})
	start := time.Now()
	eventually(t, "a failed check", func() bool { return gathered(t, f.metrics.probeErrors) >= 1 })
	eventually(t, "time for many more", func() bool { return time.Since(start) > 100*time.Millisecond })
	if n := gathered(t, f.metrics.probeErrors); n > 1 && time.Since(start) < 4*time.Second {
		t.Errorf("%v checks in %v, want one in 5 s", n, time.Since(start))
	}
}

func gathered(t *testing.T, c prometheus.Collector) (sum float64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	if err := reg.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// TestFleet_SGLangIsNotMadeToGenerate: its /health runs a generation.
func TestFleet_SGLangIsNotMadeToGenerate(t *testing.T) {
	s := servePaths(t, map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"sglang"}]}`, "/server_info": sglangInfo, "/health": "{}"})
	f, _ := startFleet(t, FleetConfig{Workers: []WorkerConfig{{ID: "w", URL: s.URL}}, Probe: 5 * time.Millisecond})
	eventually(t, "five checks", func() bool { return s.count("/server_info") >= 5 })
	if n := s.count("/health"); n != 0 {
		t.Errorf("/health was asked %d times", n)
	}
	status := f.Status()[0]
	if status.Ranks != 2 || len(status.Feeds) != 2 || status.Feeds[1].State != events.FeedNone || status.Feeds[1].Reason == "" {
		t.Errorf("%+v", status)
	}
}

func TestFleet_ConnectFailureCountsAtOnce(t *testing.T) {
	s := servePaths(t, map[string]string{"/v1/models": `{"data":[{"id":"m"}]}`})
	r := newRouter()
	f, _ := startFleet(t, FleetConfig{Router: r, Workers: []WorkerConfig{{ID: "w", URL: s.URL}}, Probe: time.Minute})
	eventually(t, "the worker takes requests", func() bool { w, _ := route(r, "m"); return w == "w" })
	s.CloseClientConnections()
	s.Close()
	_, err := f.Worker("w").Do(context.Background(), post("x"))
	var e *Error
	if !errors.As(err, &e) || e.Phase != PhaseConnect {
		t.Fatal(err)
	}
	if _, err := route(r, "m"); !errors.Is(err, router.ErrNoWorkers) {
		t.Errorf("right after a refused connect: %v", err)
	}
}

func TestFleet_ReloadLeavesStreamsAlone(t *testing.T) {
	goOn := make(chan struct{})
	serve := func(_ int, c net.Conn, br *bufio.Reader) {
		for {
			r, _, err := readRequest(br)
			if err != nil {
				return
			}
			if r.URL.Path != "/v1/chat/completions" {
				reply(c, `{"data":[{"id":"m"}]}`)
				continue
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
			<-goOn
			_, _ = io.WriteString(c, "1\r\nb\r\n0\r\n\r\n")
		}
	}
	a, b := serveScript(t, serve), serveScript(t, serve)
	r := newRouter()
	f, _ := startFleet(t, FleetConfig{Router: r, Workers: []WorkerConfig{{ID: "a", URL: a.url()}, {ID: "b", URL: b.url()}}})
	eventually(t, "both are healthy", func() bool { s := f.Status(); return s[0].Healthy && s[1].Healthy })
	wa, wb := f.Worker("a"), f.Worker("b")
	stream, err := wb.Do(context.Background(), post(""))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SetWorkers([]WorkerConfig{{ID: "a", URL: a.url()}}); err != nil {
		t.Fatal(err)
	}
	if f.Worker("a") != wa || f.Worker("b") != nil {
		t.Error("the reload did more than remove b")
	}
	close(goOn)
	if got, err := io.ReadAll(stream); string(got) != "ab" || err != nil {
		t.Errorf("the removed worker's stream: %q, %v", got, err)
	}
	_ = stream.Close()
	if open, _ := wb.pool.stats(); open != 0 {
		eventually(t, "the removed worker's connections close", func() bool { open, _ := wb.pool.stats(); return open == 0 })
	}
	// A changed entry keeps the health that is known of its URL.
	if err := f.SetWorkers([]WorkerConfig{{ID: "a", URL: a.url() + "/", MaxInflight: 3}}); err != nil {
		t.Fatal(err)
	}
	if w := f.Worker("a"); w == wa || !w.isHealthy() {
		t.Error("a changed entry took the worker out")
	}
	if err := f.SetWorkers([]WorkerConfig{{URL: a.url()}, {URL: a.url() + "/v1"}}); err == nil || !strings.Contains(err.Error(), "workers[1]") {
		t.Errorf("one URL twice: %v", err)
	}
}

func TestFleet_AnnouncedWorkersNeedAllowance(t *testing.T) {
	s := servePaths(t, map[string]string{"/v1/models": `{"data":[{"id":"m"}]}`})
	static := servePaths(t, map[string]string{"/v1/models": `{"data":[{"id":"s"}]}`})
	r := newRouter()
	f, logs := startFleet(t, FleetConfig{Router: r, Workers: []WorkerConfig{{ID: "static", URL: static.URL}}, Allow: []string{"127.0.0.0/8", "gpu7"}})
	hear := func(a *events.Announcement) (string, bool) {
		id, ok := f.Resolve(a)
		f.OnAnnouncement(a, ok)
		return id, ok
	}
	check := func(name string, a *events.Announcement, wantID string, want bool) {
		t.Helper()
		if id, ok := hear(a); ok != want || ok && id != wantID {
			t.Errorf("%s: joined to %q, %v", name, id, ok)
		}
	}
	check("by id", &events.Announcement{Worker: "static", URL: "http://elsewhere:1"}, "static", true)
	check("by url", &events.Announcement{Worker: "other name", URL: strings.ToUpper(static.URL) + "/"}, "static", true)
	check("address in the list", &events.Announcement{Worker: "new", URL: s.URL}, "new", true)
	check("name in the list", &events.Announcement{Worker: "g", URL: "http://GPU7:8000"}, "g", true)
	check("neither", &events.Announcement{Worker: "evil", URL: "http://10.0.0.1:8000"}, "", false)
	check("a name that resolves to an allowed address", &events.Announcement{Worker: "evil2", URL: "http://localhost:8000"}, "", false)
	check("no URL", &events.Announcement{Worker: "evil3"}, "", false)
	check("again", &events.Announcement{Worker: "evil", URL: "http://10.0.0.1:8000"}, "", false)

	eventually(t, "the announced worker takes requests", func() bool { w, _ := route(r, "m"); return w == "new" })
	if u := f.Unjoined(); len(u) != 3 || u[0].Worker != "evil" || !strings.Contains(u[0].Reason, "allow_announced") {
		t.Errorf("%+v", u)
	}
	if n := strings.Count(logs.String(), "KV events of an unknown worker"); n != 3 {
		t.Errorf("%d lines about unknown workers:\n%s", n, logs)
	}
	f.OnAnnouncement(&events.Announcement{Worker: "new", URL: s.URL, Farewell: true}, true)
	eventually(t, "it is gone after its farewell", func() bool { _, err := route(r, "m"); return err != nil })
	// Silence ends the other one, and what is known of strangers.
	f.forget(time.Now().Add(announcementLife + time.Second))
	if f.Worker("g") != nil || f.Worker("static") == nil || len(f.Unjoined()) != 0 {
		t.Error("after 15 s of silence:", f.Status(), f.Unjoined())
	}
}

func TestFleet_FeedsReachTheRouter(t *testing.T) {
	s := servePaths(t, map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.33.0"}`, "/metrics": fmt.Sprintf(vllmMetrics, "True"), "/health": "{}"})
	r := newRouter()
	f, logs := startFleet(t, FleetConfig{Router: r, Workers: []WorkerConfig{{ID: "w", URL: s.URL, Ranks: 1}}})
	coverage := func() string { return r.Status()[0].Coverage }
	eventually(t, "the worker is known", func() bool { return len(r.Status()[0].Models) == 2 })
	eventually(t, "its missing feed has a reason", func() bool { return strings.Contains(r.Status()[0].CoverageReason, "--kv-events-config") })
	for state, want := range map[events.FeedState]string{
		events.FeedComplete: router.FeedComplete, events.FeedPartial: router.FeedPartial, events.FeedResyncing: router.FeedStale,
		events.FeedStale: router.FeedStale, events.FeedGone: router.FeedNone,
	} {
		f.OnFeed(events.FeedStatus{Rank: kv.WorkerRank{ID: "w"}, State: state, BlockSize: 32, Reason: "why"})
		if got := coverage(); got != want || r.Status()[0].BlockSize != 32 {
			t.Errorf("%s: the router has %s, block size %d", state, got, r.Status()[0].BlockSize)
		}
	}
	f.OnFeed(events.FeedStatus{Rank: kv.WorkerRank{ID: "nobody"}, State: events.FeedComplete})

	// What passes at once is not worth a line; what stays is told once.
	w := f.Worker("w")
	lines := func(want int) {
		t.Helper()
		if n := strings.Count(logs.String(), "KV event feed"); n != want {
			t.Errorf("%d lines about feeds, want %d:\n%s", n, want, logs)
		}
	}
	feed := func(state events.FeedState, reason string) {
		f.OnFeed(events.FeedStatus{Rank: kv.WorkerRank{ID: "w"}, State: state, Reason: reason})
	}
	feed(events.FeedPartial, "not connected yet")
	w.reportFeeds(time.Now())
	lines(0)
	feed(events.FeedComplete, "")
	w.reportFeeds(time.Now().Add(feedGrace))
	lines(1)
	feed(events.FeedStale, "silent")
	w.reportFeeds(time.Now().Add(feedGrace))
	feed(events.FeedStale, "silent")
	w.reportFeeds(time.Now().Add(2 * feedGrace))
	lines(2)
}

func TestObserveUsage_NamesTheFlagAfterProof(t *testing.T) {
	s := servePaths(t, map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.33.0"}`, "/metrics": fmt.Sprintf(vllmMetrics, "True"), "/health": "{}"})
	f, logs := startFleet(t, FleetConfig{Workers: []WorkerConfig{{ID: "w", URL: s.URL}}})
	eventually(t, "the worker is known", func() bool { return f.Status()[0].Healthy })
	w := f.Worker("w")
	for range 100 {
		w.ObserveUsage(false, 0) // nothing was cached: SGLang would not say so either
	}
	if len(f.Status()[0].Fixes) != 0 {
		t.Errorf("%q", f.Status()[0].Fixes)
	}
	for range 20 {
		w.ObserveUsage(false, 512)
	}
	if fixes := f.Status()[0].Fixes; len(fixes) != 1 || !strings.Contains(fixes[0], "--enable-prompt-tokens-details") {
		t.Errorf("%q", fixes)
	}
	if n := strings.Count(logs.String(), "--enable-prompt-tokens-details"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	w.ObserveUsage(true, 512)
	if len(f.Status()[0].Fixes) != 0 {
		t.Error("the fix stays although the worker reports")
	}
}

func TestTokenize_FallsFromWayToWay(t *testing.T) {
	paths := map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.33.0"}`, "/metrics": fmt.Sprintf(vllmMetrics, "True"), "/health": "{}",
		"/v1/chat/completions/render": `{"token_ids":[1,2,3,4],"features":{"mm_placeholders":{"image":[{"offset":3,"length":1},{"offset":2,"length":1}]}}}`,
		"/tokenize":                   `{"tokens":[7,8],"count":2}`}
	s := servePaths(t, paths)
	f, _ := startFleet(t, FleetConfig{Workers: []WorkerConfig{{ID: "w", URL: s.URL}}})
	eventually(t, "the worker is known", func() bool { return f.Status()[0].Healthy })
	chat := []byte(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
	ask := func(kind openai.Kind) string {
		tokens, err := f.Tokenize(context.Background(), "m", kind, chat)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(tokens.IDs, tokens.Prefix)
	}
	if got := ask(openai.Chat); got != "[1 2 3 4] 2" || s.sent("/v1/chat/completions/render") != string(chat) {
		t.Errorf("render: %s", got)
	}
	s.set("/v1/chat/completions/render", "500")
	if got := ask(openai.Chat); !strings.Contains(got, "answers 500") {
		t.Errorf("a broken prompt: %s", got)
	}
	s.set("/v1/chat/completions/render", "404")
	before := s.count("/v1/chat/completions/render")
	for range 3 {
		if got := ask(openai.Chat); got != "[7 8] 0" {
			t.Errorf("tokenize: %s", got)
		}
	}
	if n := s.count("/v1/chat/completions/render") - before; n != 1 {
		t.Errorf("the missing endpoint was asked %d times", n)
	}
	s.set("/tokenize", "404")
	for range 2 {
		if got := ask(openai.Chat); !strings.Contains(got, "no tokenizer endpoint") && !strings.Contains(got, "/tokenize answers 404") {
			t.Errorf("nothing left: %s", got)
		}
	}
	if got := f.Status()[0].Tokens; !strings.Contains(got, "chat: by text") {
		t.Errorf("status: %s", got)
	}
	if got := ask(openai.Completions); !strings.Contains(got, "404") {
		t.Errorf("completions: %s", got)
	}
	if _, err := f.Tokenize(context.Background(), "unknown", openai.Chat, chat); !errors.Is(err, errNoTokenizer) {
		t.Errorf("unknown model: %v", err)
	}
}

func TestTokenize_LlamaCPP(t *testing.T) {
	s := servePaths(t, map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"llamacpp"}]}`, "/props": llamaProps, "/health": "{}",
		"/apply-template": `{"prompt":"<user>\"hi\"\n"}`, "/tokenize": `{"tokens":[5,6]}`})
	f, _ := startFleet(t, FleetConfig{Workers: []WorkerConfig{{ID: "w", URL: s.URL}}})
	eventually(t, "the worker is known", func() bool { return f.Status()[0].Healthy })
	for kind, body := range map[openai.Kind]string{
		openai.Chat:        `{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
		openai.Completions: `{"model":"m","prompt":"<user>\"hi\"\n"}`,
	} {
		tokens, err := f.Tokenize(context.Background(), "m", kind, []byte(body))
		var sent struct {
			Content      string
			AddSpecial   bool `json:"add_special"`
			ParseSpecial bool `json:"parse_special"`
		}
		_ = json.Unmarshal([]byte(s.sent("/tokenize")), &sent)
		if err != nil || fmt.Sprint(tokens.IDs) != "[5 6]" || sent.Content != "<user>\"hi\"\n" || !sent.AddSpecial || !sent.ParseSpecial {
			t.Errorf("%v: %v %v, sent %+v", kind, tokens, err, sent)
		}
	}
}

// startSim runs a simulated engine until the test ends.
func startSim(t *testing.T, cfg sim.Config) *sim.Server {
	t.Helper()
	s, err := sim.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestFleet_BothPersonalities: the simulated engines are found, tokenize, and their events
// reach a relay of this process; SGLang's without being configured.
func TestFleet_BothPersonalities(t *testing.T) {
	for _, like := range []sim.Personality{sim.VLLM, sim.SGLang} {
		t.Run(fmt.Sprint(like), func(t *testing.T) {
			s := startSim(t, sim.Config{Like: like, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", DPRanks: 2,
				Engine: sim.EngineConfig{BlockSize: 16, SpeedUp: 1000}})
			bus, err := events.OpenBus(events.BusConfig{})
			if err != nil {
				t.Fatal(err)
			}
			defer bus.Close()
			cfg := WorkerConfig{ID: "w", URL: s.URL()}
			if like == sim.VLLM {
				cfg.Events, cfg.Replay = s.EventsEndpoint(0), s.ReplayEndpoint(0)
			}
			f, logs := startFleet(t, FleetConfig{Workers: []WorkerConfig{cfg}, Bus: bus, Prefix: "warmroute", Cluster: "default"})
			eventually(t, "the worker is found", func() bool { return f.Status()[0].Healthy })
			status := f.Status()[0]
			if status.Engine != fmt.Sprint(like) || status.Ranks != 2 || status.BlockSize != 16 || status.CapacityTokens == 0 {
				t.Errorf("%+v", status)
			}
			eventually(t, "a relay reads its events", func() bool { return strings.Contains(logs.String(), "reading KV events") })
			tokens, err := f.Tokenize(context.Background(), "sim", openai.Chat, []byte(`{"model":"sim","messages":[{"role":"user","content":"hello"}]}`))
			if err != nil || len(tokens.IDs) == 0 {
				t.Errorf("tokenize: %v %v", tokens, err)
			}
		})
	}
}

// TestFleet_AdvertisedEventsWithExternalNATS: beside relays that share their state over
// an external server only configured events are read here.
func TestFleet_AdvertisedEventsWithExternalNATS(t *testing.T) {
	s := startSim(t, sim.Config{Like: sim.SGLang, Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0",
		Engine: sim.EngineConfig{BlockSize: 16, SpeedUp: 1000}})
	open := func(cfg events.BusConfig) *events.Bus {
		bus, err := events.OpenBus(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(bus.Close)
		return bus
	}
	server := open(events.BusConfig{Listen: "127.0.0.1:0"})
	bus := open(events.BusConfig{URL: "nats://" + server.Addr()})
	f, logs := startFleet(t, FleetConfig{Bus: bus, Prefix: "warmroute", Cluster: "default", Workers: []WorkerConfig{
		{ID: "advertised", URL: s.URL()},
		{ID: "explicit", URL: strings.Replace(s.URL(), "127.0.0.1", "localhost", 1), Events: s.EventsEndpoint(0), Replay: s.ReplayEndpoint(0)},
	}})
	eventually(t, "configured events are read", func() bool { return strings.Contains(logs.String(), `"reading KV events" worker=explicit`) })
	eventually(t, "both are healthy", func() bool { s := f.Status(); return s[0].Healthy && s[1].Healthy })
	w := f.Worker("advertised")
	if cfg := w.relayConfig(w.known()); cfg.Events != "" || strings.Contains(logs.String(), `"reading KV events" worker=advertised`) {
		t.Errorf("a relay of %q would shadow a shared one:\n%s", cfg.Events, logs)
	}
	if reason := f.Status()[0].Feeds[0].Reason; !strings.Contains(reason, "warmroute relay") {
		t.Errorf("reason %q", reason)
	}
}

func TestConfig_ValidateNamesTheKey(t *testing.T) {
	f := func(cfg WorkerConfig, want string) {
		t.Helper()
		err := cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	f(WorkerConfig{}, "http://host:8000")
	f(WorkerConfig{URL: "gpu1:8000"}, "http://host:8000")
	f(WorkerConfig{URL: "ftp://gpu1"}, "http://host:8000")
	f(WorkerConfig{URL: "http://user:secret@gpu1"}, "api_key")
	f(WorkerConfig{URL: "http://gpu1?x=1"}, "query")
	f(WorkerConfig{URL: "http://gpu1:80000"}, "port 80000")
	f(WorkerConfig{URL: "http://gpu1", Engine: "tgi"}, "engine")
	f(WorkerConfig{URL: "http://gpu1", Events: "gpu1:5557"}, "events")
	f(WorkerConfig{URL: "http://gpu1", Replay: "tcp://gpu1:5657"}, "without events")
	f(WorkerConfig{URL: "http://gpu1", Ranks: -1}, "ranks")
	f(WorkerConfig{URL: "http://gpu1", MaxNumSeqs: -1}, "negative")
	f(WorkerConfig{URL: "https://gpu1", CA: "/does/not/exist"}, "ca:")
	f(WorkerConfig{URL: "http://gpu1", APIKey: "a\nb"}, "api_key")
	if _, err := NewFleet(FleetConfig{Router: newRouter(), Allow: []string{"10.0.0.0/99"}}); err == nil || !strings.Contains(err.Error(), "allow_announced") {
		t.Errorf("bad CIDR: %v", err)
	}
	for url, want := range map[string]string{
		"http://GPU1:80/": "http://gpu1", "https://gpu1:443/v1/": "https://gpu1", "http://gpu1:8000/llm/v1": "http://gpu1:8000/llm", "http://[::1]:80": "http://[::1]",
	} {
		if b, err := parseBaseURL(url); err != nil || b.url != want {
			t.Errorf("%s: %q, %v", url, b.url, err)
		}
	}
}
