package testcluster_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"sync"
)

// chaosID begins the request ids of the chaos test's clients; warm-ups have ids of their
// own.
const chaosID = "chaos-"

// exchange is one generation request that reached a worker whole.
type exchange struct {
	worker string
	status int    // 0 while there is no answer
	body   string // of the answer, without chunks
	whole  bool   // the answer reached its end
}

// tap reads along on the links to the workers: which requests reached them, and what they
// answered, byte for byte.
type tap struct {
	*taps
	worker string
}

// taps are what all of them saw, by request id.
type taps struct {
	mu   sync.Mutex
	seen map[string][]*exchange
}

// of returns the exchanges of an id.
func (t *taps) of(id string) (out []exchange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.seen[id] {
		out = append(out, *e)
	}
	return out
}

// forget drops the answers of an id, which are large; their number stays.
func (t *taps) forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.seen[id] {
		e.body = ""
	}
}

// tapped is one direction as a tap sees it; the zero value sees nothing.
type tapped struct{ *io.PipeWriter }

func (w tapped) see(b []byte) {
	if w.PipeWriter != nil {
		_, _ = w.Write(b) // fails once the tap has given up on the connection
	}
}

func (w tapped) end() {
	if w.PipeWriter != nil {
		_ = w.Close()
	}
}

// follow reads along on one connection until it ends.
func (t *tap) follow(wg *sync.WaitGroup) (there, back tapped) {
	requests, toWorker := io.Pipe()
	answers, toProxy := io.Pipe()
	wg.Go(func() {
		defer requests.Close()
		defer answers.Close()
		from, to := bufio.NewReader(requests), bufio.NewReader(answers)
		for t.one(from, to) {
		}
	})
	return tapped{toWorker}, tapped{toProxy}
}

// one reads a request and its answer. It returns false at the end of the connection.
func (t *tap) one(from, to *bufio.Reader) bool {
	q, err := http.ReadRequest(from)
	if err != nil {
		return false
	}
	if _, err := io.Copy(io.Discard, q.Body); err != nil {
		return false
	}
	e := &exchange{worker: t.worker}
	if id := q.Header.Get("X-Request-Id"); strings.HasPrefix(id, chaosID) && strings.HasSuffix(q.URL.Path, "completions") {
		t.mu.Lock()
		t.seen[id] = append(t.seen[id], e)
		t.mu.Unlock()
	}
	resp, err := http.ReadResponse(to, q)
	if err != nil {
		return false
	}
	t.mu.Lock()
	e.status = resp.StatusCode
	t.mu.Unlock()
	body, err := io.ReadAll(resp.Body)
	t.mu.Lock()
	e.body, e.whole = string(body), err == nil
	t.mu.Unlock()
	return err == nil && !resp.Close
}

// generations returns for the id with the most how many requests reached workers, and how
// many of these were not refused with a status that stands for "not begun".
func (t *taps) generations() (asked, worked int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, all := range t.seen {
		n := 0
		for _, e := range all {
			if e.status != 502 && e.status != 503 && e.status != 504 {
				n++
			}
		}
		asked, worked = max(asked, len(all)), max(worked, n)
	}
	return asked, worked
}
