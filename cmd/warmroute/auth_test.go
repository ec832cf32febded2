package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/warmroute/warmroute/internal/sim"
)

// hashOf is what a configuration holds of a key.
func hashOf(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }

func write(t *testing.T, path, s string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestAuth_Load: the three places that keys come from, and every setting of one.
func TestAuth_Load(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.yaml")
	write(t, file, "# ours\n- name: carol\n  sha256: "+strings.ToUpper(hashOf("c"))+"\n")
	t.Setenv("BOB_KEY", "b")
	c, msg := parse(t, "simulate: 1\nauth:\n  keys:\n    - {name: alice, sha256: "+hashOf("a")+", models: [m, n], priority: 2, max_inflight: 3, requests_per_minute: 4, tokens_per_minute: 5, cache_salt: 0123456789abcdef}\n    - name: bob\n      secret_env: BOB_KEY\n",
		"--auth-file", file)
	if msg != "" {
		t.Fatal(msg)
	}
	keys, err := c.Auth.load()
	if err != nil || len(keys) != 3 {
		t.Fatalf("%v %v", keys, err)
	}
	for i, k := range []struct{ name, key string }{{"alice", "a"}, {"bob", "b"}, {"carol", "c"}} {
		if keys[i].Name != k.name || fmt.Sprintf("%x", keys[i].SHA256) != hashOf(k.key) {
			t.Errorf("key %d: %+v", i, keys[i])
		}
	}
	digits := strings.Repeat("0123456789012e45", 4)
	write(t, file, "- {name: 1, sha256: "+digits+", cache_salt: 0123456789012345}\n- {name: 2, sha256: "+strings.Repeat("7", 64)+", cache_salt: 12345e78901234567}\n")
	if keys, err := (&authConfig{File: file}).load(); err != nil || fmt.Sprintf("%x", keys[0].SHA256) != digits || keys[0].CacheSalt != "0123456789012345" ||
		keys[1].CacheSalt != "12345e78901234567" || keys[1].SHA256[0] != 0x77 || keys[1].Name != "2" {
		t.Errorf("hex that looks like a number: %+v %v", keys, err)
	}
	if a := keys[0]; len(a.Models) != 2 || a.Priority != 2 || a.MaxInflight != 3 || a.RequestsPerMinute != 4 || a.TokensPerMinute != 5 || a.CacheSalt != "0123456789abcdef" {
		t.Errorf("alice: %+v", a)
	}
}

// TestAuth_BadInput: each mistake names the key and its line and what would be right, and no
// message repeats what may be a secret.
func TestAuth_BadInput(t *testing.T) {
	hash := hashOf("x")
	const secret = "sk-CANARY"
	f := func(list string, want ...string) {
		t.Helper()
		for _, in := range []string{"config", "file"} {
			path := filepath.Join(t.TempDir(), "keys.yaml")
			file, args := "simulate: 1\nauth:\n  keys:\n    "+strings.ReplaceAll(list, "\n", "\n    ")+"\n", []string(nil)
			shift := 3
			if in == "file" {
				write(t, path, list)
				file, args, shift = "simulate: 1\n", []string{"--auth-file", path}, 0
			}
			c, msg := parse(t, file, args...)
			if msg == "" {
				if _, err := c.Auth.load(); err != nil {
					msg = err.Error()
				}
			}
			if msg == "" || strings.Contains(msg, "CANARY") {
				t.Errorf("%s %q: message %q", in, list, msg)
			}
			for _, w := range want {
				if n, ok := strings.CutPrefix(w, "line "); ok {
					line := 0
					_, _ = fmt.Sscan(n, &line)
					w = fmt.Sprintf("line %d)", line+shift)
				}
				if !strings.Contains(msg, w) {
					t.Errorf("%s %q: message %q lacks %q", in, list, msg, w)
				}
			}
		}
	}
	good := "- {name: a, sha256: " + hash + "}\n"
	f(good+"- name: b\n  secret: "+secret, "key 2", "line 2", "plain text", "sha256sum", "secret_env")
	f("- {name: b, sha256: "+secret+"}", "key 1", "line 1", "64 digits", "sha256sum")
	f("- {name: b, sha256: "+hash[:62]+"}", "64 digits")
	f("- {name: b}", "line 1", "one of sha256", "secret_env")
	f("- {name: b, sha256: "+hash+", secret_env: X}", "one of sha256")
	f("- {name: b, secret_env: NOT_SET_CERTAINLY}", "NOT_SET_CERTAINLY", "not set")
	f(good+"- {name: a, sha256: "+hashOf("y")+"}", "key 2", "line 2", `"a"`, "line 1")
	f(good+"- {name: b, sha256: "+hash+"}", "key 2", "same key", "line 1")
	f("- {name: 'a b', sha256: "+hash+"}", "name", "letters")
	f("- {name: \"a\\r\\nX-Evil: 1\", sha256: "+hash+"}", "name")
	f("- {name: a, sha256: "+hash+", cache_salt: short}", "cache_salt", "openssl")
	f("- {name: a, sha256: "+hash+", max_inflight: -1}", "negative")
	f("- {name: a, sha256: "+hash+", api_key: "+secret+"}", "api_key")
	f("- {name: a, sha256: "+hash+", max_inflight: "+secret+"}", "max_inflight")
	f("- "+secret+": "+secret, "unknown field")
	f("- [" + secret + "]")
	f(secret + ": {}")

	empty := filepath.Join(t.TempDir(), "keys.yaml")
	large := filepath.Join(t.TempDir(), "large.yaml")
	write(t, empty, "# none yet\n")
	write(t, large, "# "+strings.Repeat("x", maxKeysFile))
	for path, want := range map[string]string{empty: "no key", large: "larger", "/nowhere/keys.yaml": "--auth-file"} {
		if _, err := (&authConfig{File: path}).load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for args, want := range map[string]string{
		"--tls-cert=a": "--tls-key", "--tls-key=a": "--tls-cert", "--tls-client-ca=a": "tls.cert",
		"--keep-alive=0s": "--keep-alive", "--max-connections=0": "--max-connections", "--sse-heartbeat=10ms": "--sse-heartbeat",
	} {
		if _, msg := parse(t, "simulate: 1\n", args); !strings.Contains(msg, want) {
			t.Errorf("%s: %q", args, msg)
		}
	}
}

// TestAuth_TenThousandKeys are read in a moment.
func TestAuth_TenThousandKeys(t *testing.T) {
	var b strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&b, "- name: tenant-%d\n  sha256: %s\n  models: [a, b]\n  tokens_per_minute: 100000\n", i, hashOf(fmt.Sprint(i)))
	}
	path := filepath.Join(t.TempDir(), "keys.yaml")
	write(t, path, b.String())
	start := time.Now()
	keys, err := (&authConfig{File: path}).load()
	if took := time.Since(start); err != nil || len(keys) != 10_000 || took > 20*time.Second {
		t.Errorf("%d keys after %v: %v", len(keys), took, err)
	}
}

// TestAuth_PrefillKeysAreNames: with API keys the settings of warming go by their names.
func TestAuth_PrefillKeysAreNames(t *testing.T) {
	c, msg := parse(t, "simulate: 1\nauth: {keys: [{name: alice, sha256: "+hashOf("a")+"}]}\nspeculative_prefill: {keys: {alice: auto, bob: on}}\n")
	if msg != "" {
		t.Fatal(msg)
	}
	keys, err := c.Auth.load()
	if got := c.unknownKeys(keys); err != nil || len(got) != 1 || got[0] != "bob" {
		t.Errorf("%v %v", got, err)
	}
}

// certificate writes a certificate for 127.0.0.1 of that name.
func certificate(t *testing.T, cert, key, name string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})))
	write(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
}

// TestServe_ReloadsKeysAndCertificates: by a change of their files, in directories of their
// own, and by SIGHUP; a mistake keeps what is in force and says where it is.
func TestServe_ReloadsKeysAndCertificates(t *testing.T) {
	dir, secrets := t.TempDir(), t.TempDir()
	path, keys := filepath.Join(dir, "warmroute.yaml"), filepath.Join(secrets, "keys.yaml")
	cert, key := filepath.Join(secrets, "tls.pem"), filepath.Join(secrets, "tls.key")
	certificate(t, cert, key, "first")
	write(t, keys, "- {name: alice, sha256: "+hashOf("a")+"}\n")
	write(t, path, fmt.Sprintf("simulate: 1\nauth: {file: %s}\ntls: {cert: %s, key: %s}\n", keys, cert, key))
	given := pflag.NewFlagSet("", pflag.ContinueOnError)
	reload := newReloader(path, given)
	cfg, err := loadConfig(path, given)
	if err != nil {
		t.Fatal(err)
	}
	reload.follow(cfg)
	s := startServer(t, 1, cfg, reload)

	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	ask := func(key string) (status int, server string) {
		t.Helper()
		req, _ := http.NewRequest("GET", s.api+"/v1/models", nil)
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode, resp.TLS.PeerCertificates[0].Subject.CommonName
	}
	is := func(key string, want int) func() bool {
		return func() bool { got, _ := ask(key); return got == want }
	}
	if a, name := ask("a"); a != 200 || name != "first" || !is("b", 401)() {
		t.Fatalf("at the start: %d %s", a, name)
	}
	write(t, keys, "- {name: bob, sha256: "+hashOf("b")+"}\n")
	eventually(t, "the new key", is("b", 200))
	if !is("a", 401)() {
		t.Error("the old key still works")
	}
	logged := func(parts ...string) func() bool {
		return func() bool {
			for line := range strings.Lines(s.log.String()) {
				found := strings.Contains(line, "reload refused")
				for _, p := range parts {
					found = found && strings.Contains(line, p)
				}
				if found {
					return true
				}
			}
			return false
		}
	}
	write(t, keys, "- {name: bob, sha256: "+hashOf("b")+"}\n- {name: eve, sha256: SECRET-CANARY}\n")
	eventually(t, "the refusal", logged("key 2", "line 2", "keys.yaml"))
	write(t, keys, "")
	eventually(t, "the refusal of an empty file", logged("no key"))
	if !is("b", 200)() || !is("", 401)() {
		t.Error("a mistake changed who may come in")
	}
	write(t, keys, "- {name: bob, sha256: "+hashOf("b")+"}\n")
	certificate(t, cert, key, "second")
	eventually(t, "the new certificate", func() bool { _, name := ask("b"); return name == "second" })
	write(t, key, "half")
	eventually(t, "the refusal of a broken key", logged("tls.key"))
	if _, name := ask("b"); name != "second" {
		t.Errorf("a broken file changed the certificate to %s", name)
	}
	certificate(t, cert, key, "third")
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the third certificate", func() bool { _, name := ask("b"); return name == "third" })
	write(t, path, fmt.Sprintf("simulate: 1\ntls: {cert: %s, key: %s}\n", cert, key))
	eventually(t, "the refusal to run without keys", logged("let everybody in"))
	write(t, path, fmt.Sprintf("simulate: 1\nauth: {file: %s}\n", keys))
	eventually(t, "the refusal to stop TLS", logged("tls", "restart"))
	if !is("", 401)() || strings.Contains(s.log.String(), "CANARY") {
		t.Error("the front is open, or a secret is in the log")
	}
}

// TestServe_WarmsUnderTheTenantsSalt: the warm-up of a tenant's next turn carries its salt,
// so that turn finds its prefix, and the same conversation of another tenant finds nothing.
func TestServe_WarmsUnderTheTenantsSalt(t *testing.T) {
	s := overThinking(t, startThinking(t, sim.EngineConfig{SpeedUp: 10}), func(cfg *config) {
		cfg.Auth.Keys = []keyConfig{
			{Name: "alice", SHA256: hashOf("a"), CacheSalt: "salt-of-alice-000", TokensPerMinute: 1_000_000},
			{Name: "bob", SHA256: hashOf("b"), CacheSalt: "salt-of-bobby-000"},
		}
	})
	alice := &client{t: t, api: s.api, key: "a", hint: "true"}
	r := alice.say(strings.Repeat("what do you know of prefixes? ", 40))
	s.warmed(t, 1)
	m := s.scrape(t)
	if m[`warmroute_prefill_sent_total{trigger="turn"}`] != 1 {
		t.Error("alice's next turn was not warmed")
	}
	if m[`warmroute_proxy_key_tokens_total{key="alice",kind="prompt"}`] != float64(r.prompt) || m[`warmroute_proxy_key_requests_total{key="alice"}`] != 1 {
		t.Errorf("a warm-up counts as alice's, who used %d tokens", r.prompt+r.output)
	}
	bob := &client{t: t, api: s.api, key: "b", hint: "true", messages: slices.Clone(alice.messages)}
	if b := bob.say("go on"); b.cached != 0 || b.state != "" {
		t.Errorf("bob finds %d tokens of alice's conversation, state %q", b.cached, b.state)
	}
	if r := alice.say("go on"); r.state != "warmed" || r.cached < r.prompt-3*64 {
		t.Errorf("alice's next turn: %+v; %s", r, text(t, s.admin+"/debug/prefill"))
	}
}
