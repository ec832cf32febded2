package proxy

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/upstream"
)

// The secrets of a client: its key, as a proxy's key or for the worker, and its tenant's salt.
const (
	tokenCanary = "tok-CANARY-1-0123456789"
	saltCanary  = "salt-CANARY-3-0123456789"
)

// TestFC77_SecretsAreSeenNowhere: every way in which a request ends, with a key, a salt and a
// prompt that must not be seen in the proxy's own answers, its log, metrics or debug pages;
// once as a key of the proxy, once as one that is for the worker.
func TestFC77_SecretsAreSeenNowhere(t *testing.T) {
	for _, keyed := range []bool{true, false} {
		t.Run(fmt.Sprintf("keyed=%v", keyed), func(t *testing.T) {
			w := startWorker(t, func(c *call) bool {
				if got := c.Header.Get("Authorization"); (got == "Bearer "+tokenCanary) == keyed {
					t.Errorf("keyed=%v: the worker got Authorization %q", keyed, got)
				}
				return secretScript(c)
			})
			o := setup{limits: upstream.Timeouts{FirstByte: 300 * time.Millisecond}}
			if keyed {
				o.proxy.Keys = []Key{
					{Name: "alice", SHA256: sha256.Sum256([]byte(tokenCanary)), CacheSalt: saltCanary, MaxInflight: 64},
					{Name: "poor", SHA256: sha256.Sum256([]byte(tokenCanary + "poor")), TokensPerMinute: 1},
					{Name: "narrow", SHA256: sha256.Sum256([]byte(tokenCanary + "narrow")), Models: []string{"other"}},
				}
			}
			r := newRig(t, o, w)
			shown := failures(r, keyed)

			auth := "Authorization: Bearer " + tokenCanary + "\r\n" + headerSalt + ": " + saltCanary + "\r\nX-Warmroute-Explain: 1\r\n"
			for _, body := range []string{plainBody, streamBody} {
				resp, _ := r.post(auth, strings.Replace(body, "hello", canary, 1))
				shown["ok"] += fmt.Sprint(resp.Header)
			}
			for _, page := range []string{"/metrics", "/debug/route", "/debug/route?text", "/debug/workers", "/debug/prefill", "/readyz", "/debug/pprof/goroutine?debug=2"} {
				shown[page] = r.page(page)
			}
			prompt := r.cfg.Prompt
			r.cfg.Prompt = nil
			resp, body := r.post(auth, strings.Replace(plainBody, "hello", canary, 1))
			if shown["panic"] = fmt.Sprint(resp.Header, body); resp.StatusCode != 500 {
				t.Errorf("panic: %d", resp.StatusCode)
			}
			r.cfg.Prompt = prompt
			r.stop()

			families, err := r.reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			shown["metrics"], shown["log"] = fmt.Sprint(families), r.logs.String()
			for where, text := range shown {
				for _, secret := range []string{canary, "CANARY", tokenCanary[4:], fmt.Sprintf("%x", tokenCanary[4:])} {
					if strings.Contains(text, secret) {
						t.Errorf("%q is in %s", secret, where)
					}
				}
			}
			if keyed && !strings.Contains(shown["metrics"], "alice") {
				t.Error("no metric tells whose requests these were")
			}
			for _, line := range []string{"level=DEBUG msg=request", "BUG: panic"} {
				if !strings.Contains(shown["log"], line) {
					t.Errorf("the log lacks %q: this test proves nothing", line)
				}
			}
		})
	}
}

// secretScript fails in the way that a request asks for.
func secretScript(c *call) bool {
	switch c.Header.Get("X-Case") {
	case "garbage":
		c.write(canary + " is no HTTP\r\n\r\n")
	case "bad header":
		c.write("HTTP/1.1 200 OK\r\n" + canary + "\r\n\r\n")
	case "bad chunk":
		c.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + canary + "\r\n\r\n")
	case "hang":
		c.gone()
	default:
		if strings.Contains(string(c.body), `"stream":true`) {
			c.stream(delta("a"), finish+usage+doneEnd)
		} else {
			c.json(200, "", `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}`)
		}
		return true
	}
	return false
}

// failures makes every kind of error answer and returns them.
func failures(r *rig, keyed bool) map[string]string {
	r.t.Helper()
	shown := map[string]string{}
	say := func(name string, status int, raw string) {
		r.t.Helper()
		resp, body, err := r.exchange(raw)
		if resp == nil || err == nil && resp.StatusCode < 400 || status != 0 && resp.StatusCode != status {
			r.t.Errorf("%s: %v %v", name, err, resp)
			return
		}
		shown[name] = fmt.Sprint(resp.Header, body)
	}
	auth := "Authorization: Bearer " + tokenCanary + "\r\n"
	chat := func(header, body string) string { return request(pathChat, auth+header, body) }
	say("bad JSON", 400, chat("", `{"model":"m","messages":[{"role":"user","content":"`+canary+`"}],}`))
	say("bad messages", 400, chat("", `{"model":"m","messages":"`+canary+`"}`))
	say("bad number", 400, chat("", `{"model":"m","max_tokens":"`+canary+`","messages":[{"role":"user","content":"x"}]}`))
	say("no JSON", 400, chat("", canary))
	say("no HTTP", 400, canary+"\r\n\r\n")
	say("bad request header", 400, "POST "+pathChat+" HTTP/1.1\r\nHost: x\r\n"+auth+canary+"\r\n\r\n")
	say("bad gzip", 400, chat("Content-Encoding: gzip\r\n", canary))
	say("bad salt", 400, chat(headerSalt+": "+saltCanary+" "+saltCanary+"\r\n", plainBody))
	for name, status := range map[string]int{"garbage": 502, "bad header": 502, "bad chunk": 0, "hang": 504} {
		say(name, status, chat("X-Case: "+name+"\r\n", strings.Replace(streamBody, "hello", canary, 1)))
	}
	if !keyed {
		return shown
	}
	prompt := strings.Replace(plainBody, "hello", canary+strings.Repeat(" word", 100), 1)
	as := func(key string) string { return request(pathChat, "Authorization: Bearer "+key+"\r\n", prompt) }
	say("401", 401, as(tokenCanary+"-unknown"))
	say("401 of another scheme", 401, request(pathChat, "Authorization: Basic "+tokenCanary+"\r\n", prompt))
	say("401 of api-key", 401, request(pathChat, "api-key: "+tokenCanary+"-unknown\r\n", prompt))
	say("403", 403, as(tokenCanary+"narrow"))
	if _, _, err := r.exchange(as(tokenCanary + "poor")); err != nil {
		r.t.Error(err)
	}
	say("429", 429, as(tokenCanary+"poor"))
	return shown
}

// page reads a page of the admin listener.
func (r *rig) page(path string) string {
	r.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + r.AdminAddr().String() + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || len(raw) == 0 {
		r.t.Fatalf("%s: %v, %d bytes", path, err, len(raw))
	}
	return string(raw)
}
