package testcluster_test

import (
	"net"
	"slices"
	"strconv"
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
