package testcluster_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// tries bounds the ports that are tried for one process.
const tries = 5

// natsServer is a NATS server as a process.
type natsServer struct {
	*process
	port int
}

func startNATS(t testing.TB, args ...string) *natsServer {
	t.Helper()
	for range tries {
		port := freePort(t)
		n := &natsServer{port: port, process: newProcess(t, "nats-"+strconv.Itoa(port), "nats-server",
			append([]string{"-a", "127.0.0.1", "-p", strconv.Itoa(port)}, args...)...)}
		n.start()
		if n.ready(n.accepts) == nil {
			return n
		}
	}
	t.Fatal(errPortTaken)
	return nil
}

func (n *natsServer) url() string { return "nats://127.0.0.1:" + strconv.Itoa(n.port) }

// accepts tells whether the server takes connections.
func (n *natsServer) accepts() error {
	c, err := net.DialTimeout("tcp", "127.0.0.1:"+strconv.Itoa(n.port), time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// wires says which event sockets a worker has.
type wires int

const (
	noEvents wires = iota
	eventsOnly
	eventsAndReplay
)

// liveWorker is a simulated engine as a process.
type liveWorker struct {
	*process
	id             string
	url            string
	events, replay string // ZMQ endpoints of rank 0; "" for none
	ranks          int
	sglang         bool
}

func startWorker(t testing.TB, id string, w wires, args ...string) *liveWorker {
	t.Helper()
	for range tries {
		lw := newWorker(t, id, w, args...)
		lw.start()
		if lw.ready(lw.answers) == nil {
			return lw
		}
	}
	t.Fatal(errPortTaken)
	return nil
}

// newWorker describes a worker that is not started.
func newWorker(t testing.TB, id string, w wires, args ...string) *liveWorker {
	t.Helper()
	listen := "127.0.0.1:" + strconv.Itoa(freePort(t))
	ranks := 1
	if i := slices.Index(args, "--ranks"); i >= 0 {
		ranks, _ = strconv.Atoi(args[i+1])
	}
	lw := &liveWorker{id: id, ranks: ranks, url: "http://" + listen, sglang: slices.Contains(args, "sglang")}
	all := []string{"worker", "--listen", listen}
	if w >= eventsOnly {
		lw.events = "tcp://127.0.0.1:" + strconv.Itoa(freePorts(t, ranks))
		all = append(all, "--events", lw.events)
	}
	if w == eventsAndReplay {
		lw.replay = "tcp://127.0.0.1:" + strconv.Itoa(freePorts(t, ranks))
		all = append(all, "--replay", lw.replay)
	}
	lw.process = newProcess(t, "worker-"+id, "warmroute", append(all, args...)...)
	return lw
}

func (w *liveWorker) answers() error { return getOK(w.url + "/v1/models") }

// flag is the worker as --worker takes it: with its events, so that the proxy reads
// them itself, or without, so that a relay does.
func (w *liveWorker) flag(inProcess bool) string {
	f := w.url + ",id=" + w.id + ",ranks=" + strconv.Itoa(w.ranks)
	if inProcess && w.events != "" {
		f += ",events=" + w.events
		if w.replay != "" {
			f += ",replay=" + w.replay
		}
	}
	return f
}

// cache is what a worker says that its prefix cache holds.
type cache struct {
	Ranks []struct {
		Rank      int      `json:"rank"`
		BlockSize int      `json:"block_size"`
		Blocks    int      `json:"blocks"`
		Sequences []string `json:"sequences"`
	} `json:"ranks"`
}

// truth is the content of one rank's prefix cache.
type truth struct {
	blockSize int
	holds     map[kv.SequenceHash]bool
}

// truth asks the engine, not the events, what its first rank holds.
func (w *liveWorker) truth(t testing.TB) truth { return w.truthOf(t, 0) }

func (w *liveWorker) truthOf(t testing.TB, rank int) truth {
	t.Helper()
	var c cache
	getJSON(t, w.url+"/cache", &c)
	if len(c.Ranks) <= rank {
		t.Fatalf("%s: /cache shows no rank %d", w.id, rank)
	}
	r := c.Ranks[rank]
	out := truth{blockSize: r.BlockSize, holds: map[kv.SequenceHash]bool{}}
	for _, s := range r.Sequences {
		h, err := strconv.ParseUint(s, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		out.holds[kv.SequenceHash(h)] = true
	}
	if len(out.holds) != r.Blocks {
		t.Fatalf("%s: /cache counts %d blocks and names %d", w.id, r.Blocks, len(out.holds))
	}
	return out
}

// overlap is how many blocks of the prompt the engine holds from its start on.
func (tr truth) overlap(tokens []uint32) int {
	p := kv.Prompt{Tokens: tokens}
	chain := p.Chain(tr.blockSize)
	for i, h := range chain {
		if !tr.holds[h] {
			return i
		}
	}
	return len(chain)
}

// tokens asks the worker for the token ids of a chat's prompt.
func (w *liveWorker) tokens(t testing.TB, body []byte) []uint32 {
	t.Helper()
	path := "/tokenize"
	if w.sglang {
		path = "/v1/tokenize"
	}
	var out struct {
		Tokens []uint32 `json:"tokens"`
	}
	postJSON(t, w.url+path, body, &out)
	return out.Tokens
}

// running returns the requests that the engine works on.
func (w *liveWorker) running() (float64, error) {
	m, err := readMetrics(w.url + "/metrics")
	if err != nil {
		return 0, err
	}
	if w.sglang {
		return m.sum("sglang:num_running_reqs") + m.sum("sglang:num_queue_reqs"), nil
	}
	return m.sum("vllm:num_requests_running") + m.sum("vllm:num_requests_waiting"), nil
}

// startRelay runs a relay beside the worker.
func startRelay(t testing.TB, w *liveWorker, n *natsServer, args ...string) *process {
	t.Helper()
	all := []string{"relay", "--id", w.id, "--url", w.url, "--nats", n.url(), "--events", w.events, "--ranks", strconv.Itoa(w.ranks)}
	if w.replay != "" {
		all = append(all, "--replay", w.replay)
	}
	p := newProcess(t, "relay-"+w.id, "warmroute", append(all, args...)...)
	p.start()
	return p
}

// liveProxy is a proxy as a process.
type liveProxy struct {
	*process
	url, admin string
}

func startProxy(t testing.TB, name string, args ...string) *liveProxy {
	t.Helper()
	for range tries {
		p := newProxy(t, name, args...)
		p.start()
		if p.ready(p.lives) == nil {
			return p
		}
	}
	t.Fatal(errPortTaken)
	return nil
}

// newProxy describes a proxy that is not started. It waits long for tokens, so that a
// busy machine does not turn tokens into text.
func newProxy(t testing.TB, name string, args ...string) *liveProxy {
	t.Helper()
	listen, admin := "127.0.0.1:"+strconv.Itoa(freePort(t)), "127.0.0.1:"+strconv.Itoa(freePort(t))
	all := append([]string{"serve", "--listen", listen, "--admin", admin, "--tokenize-timeout", "5s", "--grace", "5s"}, args...)
	return &liveProxy{process: newProcess(t, name, "warmroute", all...), url: "http://" + listen, admin: "http://" + admin}
}

func (p *liveProxy) lives() error { return getOK(p.admin + "/healthz") }

// readyz returns the status, its word and its reasons.
func (p *liveProxy) readyz() (code int, status string, reasons []string, err error) {
	resp, err := http.Get(p.admin + "/readyz")
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	var r struct {
		Status  string   `json:"status"`
		Reasons []string `json:"reasons"`
	}
	err = json.NewDecoder(resp.Body).Decode(&r)
	return resp.StatusCode, r.Status, r.Reasons, err
}

// isReady is an error unless nothing at all is wrong.
func (p *liveProxy) isReady() error {
	code, status, reasons, err := p.readyz()
	if err == nil && (code != 200 || status != "ready") {
		err = fmt.Errorf("%s: readyz is %d %s %q", p.name, code, status, reasons)
	}
	return err
}

// feedView is one feed as /debug/workers shows it.
type feedView struct {
	State  string `json:"state"`
	Reason string `json:"reason"`
	Blocks int    `json:"blocks"`
	Seq    uint64 `json:"seq"`
}

// workersView is /debug/workers.
type workersView struct {
	Workers []struct {
		ID      string     `json:"id"`
		Healthy bool       `json:"healthy"`
		Engine  string     `json:"engine"`
		Tokens  string     `json:"tokens"`
		Feeds   []feedView `json:"feeds"`
		Fixes   []string   `json:"fixes"`
	} `json:"workers"`
	Routing []struct {
		Worker     string `json:"worker"`
		Rank       int    `json:"rank"`
		Coverage   string `json:"coverage"`
		Inflight   int    `json:"inflight"`
		HeldBlocks struct {
			GPU int `json:"gpu"`
		} `json:"held_blocks"`
	} `json:"routing"`
}

func (p *liveProxy) workers() (v workersView, err error) {
	b, err := get(p.admin + "/debug/workers")
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	return v, err
}

// feed returns the feed of a worker's first rank.
func (p *liveProxy) feed(id string) (feedView, error) {
	v, err := p.workers()
	if err != nil {
		return feedView{}, err
	}
	for _, w := range v.Workers {
		if w.ID == id && len(w.Feeds) > 0 {
			return w.Feeds[0], nil
		}
	}
	return feedView{}, fmt.Errorf("%s does not show worker %s", p.name, id)
}

// knows is an error unless the proxy has each worker's feed in that state.
func (p *liveProxy) knows(state string, workers ...*liveWorker) error {
	for _, w := range workers {
		f, err := p.feed(w.id)
		if err != nil {
			return err
		}
		if f.State != state {
			return fmt.Errorf("%s: feed of %s is %s, not %s: %s", p.name, w.id, f.State, state, f.Reason)
		}
	}
	return nil
}

// decision is the answer of POST /debug/route.
type decision struct {
	Worker       string `json:"worker"`
	Reason       string `json:"reason"`
	PromptSource string `json:"prompt_source"`
	SourceReason string `json:"prompt_source_reason"`
	PromptTokens int    `json:"prompt_tokens"`
	Rank         int    `json:"rank"`
	Candidates   []struct {
		Worker        string `json:"worker"`
		Rank          int    `json:"rank"`
		OverlapBlocks int    `json:"overlap_blocks"`
		OverlapFrom   string `json:"overlap_from"`
	} `json:"candidates"`
}

// overlap returns the blocks that the proxy credits to a worker.
func (d *decision) overlap(worker string) int {
	for _, c := range d.Candidates {
		if c.Worker == worker {
			return c.OverlapBlocks
		}
	}
	return -1
}

func (p *liveProxy) explain(body []byte) (d decision, err error) {
	resp, err := http.Post(p.admin+"/debug/route", "application/json", bytes.NewReader(body))
	if err != nil {
		return d, err
	}
	b, err := readOK(resp)
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	return d, err
}

// equals compares what the proxy believes of the workers with what their engines hold:
// the number of blocks, and for each prompt the overlap of every worker.
func (p *liveProxy) equals(t testing.TB, workers []*liveWorker, prompts [][]byte) error {
	t.Helper()
	v, err := p.workers()
	if err != nil {
		return err
	}
	truths := make([]truth, len(workers))
	for i, w := range workers {
		truths[i] = w.truth(t)
		held := -1
		for _, r := range v.Routing {
			if r.Worker == w.id {
				held = r.HeldBlocks.GPU
			}
		}
		if held != len(truths[i].holds) {
			return fmt.Errorf("%s: index has %d blocks of %s, which holds %d", p.name, held, w.id, len(truths[i].holds))
		}
	}
	for _, body := range prompts {
		d, err := p.explain(body)
		if err != nil {
			return err
		}
		tokens := workers[0].tokens(t, body)
		for i, w := range workers {
			if got, want := d.overlap(w.id), truths[i].overlap(tokens); got != want {
				return fmt.Errorf("%s: credits %d blocks of a prompt of %d tokens to %s, which holds %d", p.name, got, len(tokens), w.id, want)
			}
		}
	}
	return nil
}

// metrics are series by name and labels as they are written.
type metrics map[string]float64

func (p *liveProxy) metrics() (metrics, error) { return readMetrics(p.admin + "/metrics") }

func readMetrics(url string) (metrics, error) {
	b, err := get(url)
	if err != nil {
		return nil, err
	}
	m := metrics{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			m[line[:i]] = v
		}
	}
	return m, nil
}

// sum adds up the series of a name.
func (m metrics) sum(name string) (total float64) {
	for k, v := range m {
		if k == name || strings.HasPrefix(k, name+"{") {
			total += v
		}
	}
	return total
}

var quickClient = &http.Client{Timeout: 10 * time.Second}

func get(url string) ([]byte, error) {
	resp, err := quickClient.Get(url)
	if err != nil {
		return nil, err
	}
	return readOK(resp)
}

func readOK(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", resp.Request.Method, resp.Request.URL, resp.Status, b)
	}
	return b, err
}

func getOK(url string) error { _, err := get(url); return err }

func getJSON(t testing.TB, url string, to any) {
	t.Helper()
	b, err := get(url)
	if err == nil {
		err = json.Unmarshal(b, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func postJSON(t testing.TB, url string, body []byte, to any) {
	t.Helper()
	resp, err := quickClient.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	b, err := readOK(resp)
	if err == nil {
		err = json.Unmarshal(b, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}
