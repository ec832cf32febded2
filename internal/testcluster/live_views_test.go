package testcluster_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

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
		Peers *struct {
			Inflight int `json:"inflight"`
			KVTokens int `json:"kv_tokens"`
		} `json:"peers"`
	} `json:"routing"`
	Peers []struct {
		Proxy string `json:"proxy"`
	} `json:"peers"`
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
