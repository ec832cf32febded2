package sim

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// client has no keep-alive pool that outlives a test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}

// TestMain fails when a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if code == 0 && !eventually(5*time.Second, func() bool { return runtime.NumGoroutine() <= before }) {
		buf := make([]byte, 1<<20)
		fmt.Printf("goroutines are left:\n%s\n", buf[:runtime.Stack(buf, true)])
		code = 1
	}
	os.Exit(code)
}

// eventually polls until ok or the deadline.
func eventually(d time.Duration, ok func() bool) bool {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(d); ; <-tick.C {
		if ok() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// start runs a worker until the test ends. Its engine is fast unless cfg says
// otherwise.
func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	if cfg.Engine.SpeedUp == 0 {
		cfg.Engine.SpeedUp = 100
	}
	if cfg.Engine.BlockSize == 0 {
		cfg.Engine.BlockSize = 16
	}
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Run does not return")
		}
	})
	return s
}

// reply is a decoded HTTP answer.
type httpReply struct {
	status int
	header http.Header
	raw    string
	json   map[string]any
}

func call(t *testing.T, method, url, body string, headers ...string) httpReply {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	r := httpReply{status: resp.StatusCode, header: resp.Header, raw: string(b)}
	_ = json.Unmarshal(b, &r.json)
	return r
}

func post(t *testing.T, s *Server, path, body string, headers ...string) httpReply {
	t.Helper()
	return call(t, "POST", s.URL()+path, body, headers...)
}

func get(t *testing.T, s *Server, path string) httpReply {
	t.Helper()
	return call(t, "GET", s.URL()+path, "")
}

// dig walks objects by key and lists by number: dig(v, "choices.0.message.content").
func dig(v any, path string) any {
	for _, key := range strings.Split(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[key]
		case []any:
			var i int
			if _, err := fmt.Sscan(key, &i); err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func num(v any) int {
	f, ok := v.(float64)
	if !ok {
		return -1
	}
	return int(f)
}

// sse posts a streaming request and returns its events' data.
func sse(t *testing.T, s *Server, path, body string) (events []string) {
	t.Helper()
	resp, err := client.Post(s.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("status %d, %s: %s", resp.StatusCode, resp.Header.Get("Content-Type"), b)
	}
	events, err = readSSE(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func readSSE(r io.Reader) (events []string, err error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<22)
	for sc.Scan() {
		if line, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
			events = append(events, line)
		} else if sc.Text() != "" {
			return events, fmt.Errorf("line %q is no event", sc.Text())
		}
	}
	return events, sc.Err()
}

func parse(t *testing.T, data string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return v
}

// talk is a conversation with one worker.
type talk struct {
	t        *testing.T
	s        *Server
	messages []map[string]any
	extra    map[string]any // further fields of each request
}

// turn sends a user message and takes the answer into the history.
func (k *talk) turn(text string) map[string]any {
	k.t.Helper()
	k.messages = append(k.messages, map[string]any{"role": "user", "content": text})
	body := map[string]any{"model": "sim", "messages": k.messages}
	for name, v := range k.extra {
		body[name] = v
	}
	b, _ := json.Marshal(body)
	r := post(k.t, k.s, "/v1/chat/completions", string(b))
	if r.status != 200 {
		k.t.Fatalf("status %d: %s", r.status, r.raw)
	}
	m := dig(r.json, "choices.0.message").(map[string]any)
	k.messages = append(k.messages, map[string]any{"role": "assistant", "content": m["content"]})
	return r.json
}

// contextOf ends when stop is closed.
func contextOf(stop <-chan struct{}) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-stop
		cancel()
	}()
	return ctx
}
