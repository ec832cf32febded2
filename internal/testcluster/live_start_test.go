package testcluster_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestLive_WorkerComesLater: a proxy whose worker does not answer starts, says so once,
// refuses requests with a reason, and takes the worker in when it is there.
func TestLive_WorkerComesLater(t *testing.T) {
	t.Parallel()
	w := newWorker(t, "late", eventsAndReplay, "--speed-up", "10")
	p := startProxy(t, "proxy", "-w", w.flag(true))
	const complaint = "worker is unreachable or unwell"
	waitFor(t, "the complaint", func() error { return says(p.process, complaint, 1) })
	code, status, reasons, err := p.readyz()
	if err != nil || code != http.StatusServiceUnavailable || status != "unready" || !strings.Contains(strings.Join(reasons, ""), "late") {
		t.Errorf("readyz is %d %s %q (%v)", code, status, reasons, err)
	}
	u := newUser()
	defer u.close()
	c := newChat(1, 20, 4)
	c.say(5)
	if a := u.turn(t.Context(), p.url, c); a.outcome != failed || a.status != http.StatusServiceUnavailable || !strings.Contains(a.reason, "no worker") {
		t.Errorf("without a worker: %v %d: %s", a.outcome, a.status, a.reason)
	}
	w.start()
	waitFor(t, "the worker to be taken in", p.isReady)
	if a := u.turn(t.Context(), p.url, c); a.outcome != whole {
		t.Errorf("with the worker: %v: %s", a.outcome, a.reason)
	}
	waitFor(t, "its events", func() error { return p.knows("complete", w) })
	settle(t, p, []*liveWorker{w}, c.body())
	if err := says(p.process, complaint, 1); err != nil {
		t.Error(err)
	}

	// It goes again: said once more, and a request fails with its name or finds it gone.
	w.kill()
	if a := u.turn(t.Context(), p.url, c); a.outcome != failed || a.status < 500 {
		t.Errorf("with the worker killed: %v %d: %s", a.outcome, a.status, a.reason)
	}
	waitFor(t, "the second complaint", func() error { return says(p.process, complaint, 2) })
}

// says is an error unless the process printed text exactly n times.
func says(p *process, text string, n int) error {
	if got := strings.Count(p.lifeText(), text); got != n {
		return fmt.Errorf("%s says %q %d times, not %d", p.name, text, got, n)
	}
	return nil
}

// TestLive_NATSComesLater: a proxy and a relay whose NATS server does not answer start,
// the proxy serves and says degraded, and the events arrive once the server is there.
func TestLive_NATSComesLater(t *testing.T) {
	t.Parallel()
	n := &natsServer{port: freePort(t)}
	n.process = newProcess(t, "nats", "nats-server", "-a", "127.0.0.1", "-p", fmt.Sprint(n.port))
	w := startWorker(t, "w1", eventsAndReplay, "--speed-up", "10")
	startRelay(t, w, n)
	p := startProxy(t, "proxy", "--nats", n.url(), "-w", w.flag(false))
	waitFor(t, "the proxy to say degraded", func() error { return saysDegraded(p, "NATS") })
	if err := says(p.process, "NATS cannot be reached, trying for ever", 1); err != nil {
		t.Error(err)
	}
	u := newUser()
	defer u.close()
	c := newChat(1, 300, 8)
	c.say(10)
	if a := u.turn(t.Context(), p.url, c); a.outcome != whole {
		t.Errorf("without NATS: %v: %s", a.outcome, a.reason)
	}
	n.start()
	waitFor(t, "NATS to be joined", p.isReady)
	waitFor(t, "the events", func() error { return p.knows("complete", w) })
	settle(t, p, []*liveWorker{w}, c.body())
}

// TestLive_BadStart: what cannot work ends at once, with a code that scripts can tell and
// one message that names the thing and the fix.
func TestLive_BadStart(t *testing.T) {
	t.Parallel()
	nats := startNATS(t, "--user", "route", "--pass", "secret")
	w := startWorker(t, "w1", eventsAndReplay)
	listen := strings.TrimPrefix(w.url, "http://")
	other := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	user := func(name, password string) []string {
		return []string{"serve", "--listen", other, "--admin", "127.0.0.1:0", "-w", w.url, "--nats", nats.url(), "--nats-user", name, "--nats-password", password}
	}
	for _, tt := range []struct {
		name string
		args []string
		code int
		want []string // parts of the message
	}{
		{"listen port in use", []string{"serve", "--listen", listen, "--admin", "127.0.0.1:0", "-w", w.url}, 1, []string{"--listen", listen, "in use"}},
		{"admin port in use", []string{"serve", "--listen", other, "--admin", listen, "-w", w.url}, 1, []string{"--admin", listen, "in use"}},
		{"worker port in use", []string{"worker", "--listen", listen}, 1, []string{"--listen " + listen, "in use"}},
		{"nats listen port in use", []string{"serve", "--listen", other, "--admin", "127.0.0.1:0", "-w", w.url, "--nats-listen", listen}, 1, []string{"--nats-listen", listen, "in use"}},
		{"simulate port in use", []string{"worker", "--listen", "127.0.0.1:0", "--events", w.events}, 1, []string{"--events", strings.TrimPrefix(w.events, "tcp://"), "in use"}},
		{"wrong NATS password", user("route", "wrong"), 1, []string{"--nats", "--nats-password"}},
		{"NATS without a user", []string{"serve", "--listen", other, "--admin", "127.0.0.1:0", "-w", w.url, "--nats", nats.url()}, 1, []string{"--nats", "--nats-user"}},
		{"relay with a wrong password", []string{"relay", "--nats", nats.url(), "--nats-user", "x", "--nats-password", "wrong", "--url", w.url, "--events", w.events}, 1, []string{"--nats", "--nats-password"}},
		{"bad NATS URL", []string{"serve", "--listen", other, "-w", w.url, "--nats", "http://127.0.0.1"}, 1, []string{"--nats", `"http"`, "nats://"}},
		{"no workers", []string{"serve"}, 2, []string{"--worker", "--simulate"}},
		{"unknown flag", []string{"serve", "--wroker", "x"}, 2, []string{"--wroker", "--help"}},
		{"unknown worker key", []string{"serve", "-w", w.url + ",evnets=tcp://x:1"}, 2, []string{"evnets", "events"}},
		{"bad worker URL", []string{"serve", "-w", "gpu1:8000"}, 2, []string{"gpu1:8000", "http://"}},
		{"same worker twice", []string{"serve", "--listen", other, "--admin", "127.0.0.1:0", "-w", w.url, "-w", w.url}, 2, []string{w.url}},
		{"missing config file", []string{"serve", "--config", "/does/not/exist.yaml"}, 2, []string{"--config", "/does/not/exist.yaml"}},
		{"relay without events", []string{"relay", "--nats", nats.url(), "--url", w.url}, 2, []string{"--events"}},
		{"unknown layout", []string{"worker", "--layout", "vllm-9"}, 2, []string{"vllm-9", "vllm-0.26"}},
		{"unknown verb", []string{"sevre"}, 2, []string{"sevre"}},
	} {
		p := newProcess(t, "bad", "warmroute", tt.args...)
		p.start()
		if !p.wait(patience) {
			t.Errorf("%s: it runs", tt.name)
			p.kill()
			continue
		}
		text := p.lifeText()
		if p.exitCode() != tt.code {
			t.Errorf("%s: exit code %d, not %d:\n%s", tt.name, p.exitCode(), tt.code, text)
		}
		if n := strings.Count(text, "warmroute: "); n != 1 || strings.Count(strings.TrimRight(text, "\n"), "\n") > 3 || strings.Contains(text, "goroutine ") {
			t.Errorf("%s: not one message:\n%s", tt.name, text)
		}
		for _, part := range tt.want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: the message lacks %q:\n%s", tt.name, part, text)
			}
		}
		if strings.Contains(text, "secret") || strings.Contains(text, "wrong") && strings.Contains(tt.name, "password") {
			t.Errorf("%s: the message shows the password:\n%s", tt.name, text)
		}
	}

	// With the right password it works.
	p := startProxy(t, "proxy", "-w", w.flag(false), "--nats", nats.url(), "--nats-user", "route", "--nats-password", "secret")
	startRelay(t, w, nats, "--nats-user", "route", "--nats-password", "secret")
	warm(t, []*liveWorker{w}, 1)
	waitFor(t, "the events", func() error { return p.knows("complete", w) })
	if code := p.stop(); code != 0 {
		t.Errorf("after SIGTERM the proxy ends with code %d", code)
	}
	if strings.Contains(p.text(), "secret") {
		t.Error("the log shows the password")
	}
}
