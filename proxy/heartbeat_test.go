package proxy

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/upstream"
)

// timed delivers each piece of a stream at its time after the start.
type timed struct {
	pieces []string
	at     []time.Duration
	start  time.Time
}

func (s *timed) await(d time.Duration) bool {
	left := time.Duration(0)
	if len(s.pieces) > 0 {
		left = s.at[0] - time.Since(s.start)
	}
	if left > d {
		time.Sleep(d)
		return false
	}
	time.Sleep(left)
	return true
}

func (s *timed) Read(p []byte) (int, error) {
	if len(s.pieces) == 0 {
		return 0, io.EOF
	}
	s.await(time.Hour)
	n := copy(p, s.pieces[0])
	if s.pieces[0] = s.pieces[0][n:]; s.pieces[0] == "" {
		s.pieces, s.at = s.pieces[1:], s.at[1:]
	}
	return n, nil
}

// beating relays the pieces with a heartbeat after 10 s and returns what came out.
func beating(t *testing.T, cut bool, s *timed) (out string, a *account) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s.start = time.Now()
		var r *relay
		r, a = newTestRelay(s, cut)
		r.beat, r.await, r.beats = 10*time.Second, s.await, prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
		var b strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			b.Write(buf[:n])
			if err != nil {
				break
			}
		}
		r.close()
		out = b.String()
	})
	return out, a
}

const beat = ": heartbeat\n\n"

func TestHeartbeat_OnlyBetweenEvents(t *testing.T) {
	half := len(delta("b")) / 2
	at := func(seconds ...int) (out []time.Duration) {
		for _, s := range seconds {
			out = append(out, time.Duration(s)*time.Second)
		}
		return out
	}
	crlf := strings.ReplaceAll(delta("a"), "\n", "\r\n")
	for _, q := range []struct {
		name   string
		pieces []string
		at     []time.Duration
		want   string
		held   string // where an event that is not whole is held back
	}{
		{"no silence", []string{delta("a"), delta("b"), doneEnd}, at(0, 9, 18), delta("a") + delta("b") + doneEnd, ""},
		{"before each event", []string{delta("a"), delta("b"), doneEnd}, at(0, 25, 36), delta("a") + beat + beat + delta("b") + beat + doneEnd, ""},
		{"within an event", []string{delta("a"), delta("b")[:half], delta("b")[half:], doneEnd}, at(0, 1, 100, 112), delta("a") + delta("b") + beat + doneEnd,
			delta("a") + strings.Repeat(beat, 9) + delta("b") + beat + doneEnd},
		{"within the line end", []string{delta("a")[:len(delta("a"))-1], "\n" + doneEnd}, at(0, 100), delta("a") + doneEnd,
			strings.Repeat(beat, 9) + delta("a") + doneEnd},
		{"after [DONE]", []string{delta("a"), doneEnd, ""}, at(0, 1, 100), delta("a") + doneEnd, ""},
		{"crlf", []string{crlf, doneEnd}, at(0, 11), crlf + beat + doneEnd, ""},
		{"after a comment of the worker's", []string{": ping\n\n", doneEnd}, at(0, 11), ": ping\n\n" + beat + doneEnd, ""},
	} {
		for _, cut := range []bool{false, true} {
			got, a := beating(t, cut, &timed{pieces: slices.Clone(q.pieces), at: slices.Clone(q.at)})
			want := q.want
			if cut && q.held != "" {
				want = q.held
			}
			if got != want {
				t.Errorf("%s, cut=%v:\ngot  %q\nwant %q", q.name, cut, got, want)
			}
			if a.done != 1 {
				t.Errorf("%s, cut=%v: %+v", q.name, cut, a)
			}
		}
	}
	got, _ := beating(t, true, &timed{pieces: []string{delta("a"), usage, doneEnd}, at: at(0, 11, 22)})
	if want := delta("a") + beat + beat + doneEnd; got != want {
		t.Errorf("with a frame cut out:\ngot  %q\nwant %q", got, want)
	}
}

// TestHeartbeat_TheRestIsByteExact: without the heartbeats a stream in random pieces at
// random times is what it was.
func TestHeartbeat_TheRestIsByteExact(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for name, s := range streams {
		for _, cut := range []bool{false, true} {
			want := s.in
			if cut && s.out != "" {
				want = s.out
			}
			src := &timed{pieces: cutting(rng, s.in, 1+rng.IntN(400))}
			at := time.Duration(0)
			for range src.pieces {
				at += time.Duration(rng.ExpFloat64() * float64(8*time.Second))
				src.at = append(src.at, at)
			}
			got, _ := beating(t, cut, src)
			if strings.ReplaceAll(got, beat, "") != want {
				t.Fatalf("seed %d, %s, cut=%v:\ngot  %.400q\nwant %.400q", seed, name, cut, got, want)
			}
		}
	}
}

// TestHeartbeat_OverSockets: in real time, with chunks that end where the silence begins, and
// the idle limit of the worker goes on beneath the heartbeats.
func TestHeartbeat_OverSockets(t *testing.T) {
	goOn := make(chan struct{})
	w := startWorker(t, func(c *call) bool {
		c.sse()
		c.chunk(delta("a"))
		if c.n > 1 {
			c.gone()
			return false
		}
		await(goOn)
		c.write("11\r\ndata: {\"x\"") // a chunk that stops within its event
		await(goOn)
		c.write(":12345}\r\n2\r\n\n\n\r\n")
		await(goOn)
		c.chunk(doneEnd)
		await(goOn)
		c.end()
		return true
	})
	const every = 20 * time.Millisecond
	r := newRig(t, setup{limits: upstream.Timeouts{Idle: 10 * every}, proxy: Config{Heartbeat: every}}, w)
	c := r.dial()
	_, _ = io.WriteString(c, request(pathChat, "", streamBody))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := func(s string) {
		t.Helper()
		got := make([]byte, len(s))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != s {
			t.Fatalf("%q, %v, want %q", got, err, s)
		}
	}
	want(delta("a") + beat + beat)
	goOn <- struct{}{}
	close(goOn)
	all, err := io.ReadAll(resp.Body)
	got := strings.ReplaceAll(string(all), beat, "")
	if err != nil || got != "data: {\"x\":12345}\n\n"+doneEnd || strings.Contains(string(all), "[DONE]\n\n:") {
		t.Errorf("%q %v", all, err)
	}
	_ = c.Close()

	c = r.dial()
	_, _ = io.WriteString(c, request(pathChat, "", streamBody))
	_, got, err = readResponse(bufio.NewReader(c))
	if n := strings.Count(got, beat); n < 5 || n > 10 || err == nil || !strings.Contains(got, "idle_timeout") {
		t.Errorf("%d heartbeats within an idle limit of 10: %v %q", n, err, got)
	}
	_ = c.Close()
	if r.metric("warmroute_proxy_heartbeats_total") < 7 {
		t.Error("heartbeats are not counted")
	}
	r.stop()
}
