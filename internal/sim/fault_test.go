package sim

import (
	"bufio"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// slowChat is a request that runs for hours of engine time.
const slowChat = `{"model":"sim","messages":[{"role":"user","content":"count"}],"max_tokens":100000,"ignore_eos":true}`

func setFaults(t *testing.T, s *Server, body string) {
	t.Helper()
	if r := post(t, s, "/fault", body); r.status != 204 {
		t.Fatalf("fault %s: %d %s", body, r.status, r.raw)
	}
}

// rawChat sends a request on a connection of its own and returns the connection.
func rawChat(t *testing.T, s *Server, body string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\n"
	req := head + "Content-Length: " + itoa(len(body)) + "\r\n\r\n" + body
	if _, err := io.WriteString(c, req); err != nil {
		t.Fatal(err)
	}
	return c
}

func itoa(n int) string {
	b := appendIDs(nil, []uint32{uint32(n)})
	return string(b[1 : len(b)-1])
}

// TestFault_ClientDisconnectAborts: a client that goes ends its sequence, streaming or
// not, before the first byte and in mid-stream.
func TestFault_ClientDisconnectAborts(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Server) {
		f := func(name, body string, tokens uint64) {
			t.Helper()
			aborted, before := s.Stats(0).Aborted, s.Stats(0).GeneratedTokens
			c := rawChat(t, s, body)
			if !eventually(5*time.Second, func() bool {
				st := s.Stats(0)
				return st.Running+st.Waiting == 1 && st.GeneratedTokens >= before+tokens
			}) {
				t.Fatalf("%s: not running: %+v", name, s.Stats(0))
			}
			_ = c.Close()
			if !eventually(2*time.Second, func() bool { st := s.Stats(0); return st.Aborted == aborted+1 && st.Running == 0 }) {
				t.Errorf("%s: still there: %+v", name, s.Stats(0))
			}
			if st := s.Stats(0); st.Running != 0 || st.UsedBlocks != 0 {
				t.Errorf("%s: %+v", name, st)
			}
		}
		stream := strings.Replace(slowChat, "{", `{"stream":true,`, 1)
		f("whole", slowChat, 5)
		f("mid-stream", stream, 5)
	})
}

func TestFault_ClientIsWatchedBeforeTheFirstToken(t *testing.T) {
	both(t, Config{Faults: Faults{Slow: 1e5}}, func(t *testing.T, s *Server) {
		for _, body := range []string{slowChat, strings.Replace(slowChat, "{", `{"stream":true,`, 1)} {
			c := rawChat(t, s, body)
			if !eventually(5*time.Second, func() bool { return s.ranks[0].liveCount() == 1 }) {
				t.Fatal("not running")
			}
			_ = c.Close()
			// The engine is in the middle of a very long step; the client's end is noted.
			if !eventually(2*time.Second, func() bool { return s.ranks[0].liveCount() == 0 }) {
				t.Error("the request is still served")
			}
		}
		setFaults(t, s, "{}")
		if !eventually(2*time.Second, func() bool { return s.Stats(0).Aborted == 2 }) {
			t.Errorf("the long step does not end with the fault: %+v", s.Stats(0))
		}
	})
}

func (r *rank) liveCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.live)
}

func TestFault_StatusWithHealthGood(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Server) {
		setFaults(t, s, `{"status":429,"retry_after":7}`)
		r := post(t, s, "/v1/chat/completions", hello)
		if r.status != 429 || r.header.Get("Retry-After") != "7" || !strings.Contains(r.raw, "injected") {
			t.Errorf("%d %v %s", r.status, r.header, r.raw)
		}
		if r := get(t, s, "/health"); r.status != 200 {
			t.Errorf("health: %d", r.status)
		}
		setFaults(t, s, `{"health_status":503}`)
		if r := get(t, s, "/health"); r.status != 503 {
			t.Errorf("health: %d", r.status)
		}
		if r := post(t, s, "/v1/chat/completions", hello); r.status != 200 {
			t.Errorf("after the fault: %d", r.status)
		}
		for body, want := range map[string]string{`{"rate":2}`: "rate", `{"status":200}`: "status", `{"slow":-1}`: "slow", `x`: "fault"} {
			if r := post(t, s, "/fault", body); r.status != 400 || !strings.Contains(r.raw, want) {
				t.Errorf("%s: %d %s", body, r.status, r.raw)
			}
		}
	})
}

func TestFault_RateStrikesSome(t *testing.T) {
	s := start(t, Config{Faults: Faults{Rate: 0.5, Status: 500}})
	bad := 0
	for range 40 {
		if post(t, s, "/v1/completions", `{"prompt":"x","max_tokens":1}`).status == 500 {
			bad++
		}
	}
	if bad < 8 || bad > 32 {
		t.Errorf("%d of 40 fail at rate 0.5", bad)
	}
}

func TestFault_StreamDiesWithoutItsEnd(t *testing.T) {
	both(t, Config{Faults: Faults{DieAfter: 3}}, func(t *testing.T, s *Server) {
		resp, err := client.Post(s.URL()+"/v1/chat/completions", "application/json", strings.NewReader(strings.Replace(hello, "{", `{"stream":true,`, 1)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		events, err := readSSE(resp.Body)
		if !errors.Is(err, io.ErrUnexpectedEOF) || len(events) < 2 || strings.Contains(strings.Join(events, ""), "[DONE]") {
			t.Errorf("%d events, then %v", len(events), err)
		}
		if !eventually(2*time.Second, func() bool { return s.Stats(0).Running == 0 }) {
			t.Error("the sequence goes on")
		}
	})
}

func TestFault_Hangs(t *testing.T) {
	s := start(t, Config{})
	stream := strings.Replace(hello, "{", `{"stream":true,`, 1)
	setFaults(t, s, `{"hang_headers":true}`)
	c := rawChat(t, s, hello)
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); n != 0 || !isTimeout(err) {
		t.Errorf("hang before headers: %d bytes, %v", n, err)
	}
	_ = c.Close()

	setFaults(t, s, `{"hang_after":2}`)
	c = rawChat(t, s, stream)
	_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	b, err := io.ReadAll(c)
	if !isTimeout(err) || !strings.Contains(string(b), "content") || strings.Contains(string(b), "[DONE]") {
		t.Errorf("hang in mid-stream: %v after %s", err, b)
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestFault_ResetBeforeAnyByte(t *testing.T) {
	s := start(t, Config{Faults: Faults{Reset: true}})
	if resp, err := client.Post(s.URL()+"/v1/chat/completions", "application/json", strings.NewReader(hello)); err == nil {
		resp.Body.Close()
		t.Errorf("status %d", resp.StatusCode)
	}
}

// TestFault_RestartIsANewProcess: streams break, the cache is empty, the same address
// serves again.
func TestFault_RestartIsANewProcess(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Server) {
		ask := `{"prompt":"` + strings.Repeat("remember this ", 20) + `"}`
		post(t, s, "/v1/completions", ask)
		resp, err := client.Post(s.URL()+"/v1/chat/completions", "application/json", strings.NewReader(strings.Replace(slowChat, "{", `{"stream":true,`, 1)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if err := s.SetFaults(Faults{Restart: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("a stream survives the restart")
		}
		r := post(t, s, "/v1/completions", ask)
		if n := num(dig(r.json, "usage.prompt_tokens_details.cached_tokens")); n > 0 {
			t.Errorf("%d tokens cached after the restart", n)
		}
		if st := s.Stats(0); st.Finished != 1 || st.Running != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestFault_CrashIsDownForAWhile(t *testing.T) {
	s := start(t, Config{})
	setFaults(t, s, `{"crash":true,"down_ms":150}`)
	if resp, err := client.Get(s.URL() + "/health"); err == nil {
		resp.Body.Close()
		t.Errorf("health is %d while down", resp.StatusCode)
	}
	if r := s.faults.Load(); r.Crash || r.DownMillis != 0 {
		t.Errorf("what happens once is shown: %+v", r)
	}
	if !eventually(3*time.Second, func() bool {
		resp, err := client.Get(s.URL() + "/health")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}) {
		t.Error("does not come back")
	}
}

func TestServer_RefusesBeyondItsQueue(t *testing.T) {
	s := start(t, Config{MaxQueue: 2, Faults: Faults{Slow: 1e5}})
	for range 2 {
		rawChat(t, s, slowChat)
	}
	if !eventually(5*time.Second, func() bool { return s.ranks[0].liveCount() == 2 }) {
		t.Fatal("queue is not full")
	}
	r := post(t, s, "/v1/chat/completions", hello)
	if r.status != 503 || r.header.Get("Retry-After") != "1" {
		t.Errorf("%d %s", r.status, r.raw)
	}
	if m := get(t, s, "/metrics").raw; !strings.Contains(m, "sim:requests_refused_total 1") {
		t.Error("the refusal is not counted")
	}
}

func TestServer_GraceLetsRequestsFinish(t *testing.T) {
	cfg := Config{Grace: 10 * time.Second, Engine: EngineConfig{SpeedUp: 10}}
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- s.Run(contextOf(stop)) }()
	answers := make(chan int, 1)
	go func() {
		resp, err := client.Post(s.URL()+"/v1/chat/completions", "application/json", strings.NewReader(strings.Replace(hello, "40", "200", 1)))
		if err != nil {
			answers <- 0
			return
		}
		defer resp.Body.Close()
		if _, err := io.ReadAll(resp.Body); err != nil {
			answers <- -1
			return
		}
		answers <- resp.StatusCode
	}()
	if !eventually(5*time.Second, func() bool { return s.Stats(0).Running == 1 }) {
		t.Fatal("not running")
	}
	close(stop)
	if got := <-answers; got != 200 {
		t.Errorf("answer %d", got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNewServer_NamesWhatIsWrong(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	f := func(cfg Config, want string) {
		t.Helper()
		if _, err := NewServer(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	f(Config{Listen: busy.Addr().String()}, "--listen "+busy.Addr().String()+": ")
	f(Config{Like: "other"}, "vllm or sglang")
	f(Config{Template: "other"}, "plain or thinking")
	f(Config{Layout: "other"}, "layout")
	f(Config{Events: "nats://x:1"}, "tcp://host:port")
	f(Config{Events: "tcp://x:99999"}, "port")
	f(Config{Replay: "tcp://x:1"}, "events")
	f(Config{DPRanks: -1}, "dp ranks")
	f(Config{Engine: EngineConfig{BlockSize: -1}}, "block size")
	f(Config{Engine: EngineConfig{CapacityTokens: 8}}, "capacity")
	f(Config{Engine: EngineConfig{SpeedUp: math.NaN()}}, "speed-up")
	f(Config{Faults: Faults{Rate: 3}}, "rate")
	f(Config{Faults: Faults{Slow: 1e300}}, "slow")
	if _, err := ParseProfile("cubic"); err == nil || !strings.Contains(err.Error(), "polynomial") {
		t.Error(err)
	}
}
