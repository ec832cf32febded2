package proxy

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/upstream"
)

// keyOf is the API key of a tenant in tests.
func keyOf(name string) string { return "sk-" + name + "-0123456789abcdef" }

func bearer(name string) string { return "Authorization: Bearer " + keyOf(name) + "\r\n" }

// tenantKey returns a Key for keyOf(name), changed by more.
func tenantKey(name string, more ...func(*Key)) Key {
	k := Key{Name: name, SHA256: sha256.Sum256([]byte(keyOf(name)))}
	for _, f := range more {
		f(&k)
	}
	return k
}

const saltA, saltB = "salt-of-alice-0001", "salt-of-bobby-0002"

// TestKeys_WhoMayComeIn: the ways to show a key, and every way to have none.
func TestKeys_WhoMayComeIn(t *testing.T) {
	r := newRig(t, setup{proxy: Config{Keys: []Key{tenantKey("alice"), tenantKey("bob")}}}, startWorker(t, echo))
	answers := map[string]bool{}
	for _, q := range []struct {
		header string
		status int
	}{
		{bearer("alice"), 200},
		{bearer("bob"), 200},
		{"authorization: bEARER   " + keyOf("alice") + " \r\n", 200},
		{"api-key: " + keyOf("alice") + "\r\n", 200},
		{"X-Api-Key: " + keyOf("alice") + "\r\n", 200},
		{"", 401},
		{bearer("eve"), 401},
		{"Authorization: " + keyOf("alice") + "\r\n", 401},
		{"Authorization: Basic " + keyOf("alice") + "\r\n", 401},
		{"Authorization: Bearer\r\n", 401},
		{"Authorization: Bearer \r\n", 401},
		{"Authorization: Bearer " + keyOf("alice")[1:] + "\r\n", 401},
		{"Authorization: Bearer " + keyOf("alice") + "x\r\n", 401},
		{"Authorization: Bearer " + strings.Repeat("x", 20<<10) + "\r\n", 401},
		{"Authorization: Bearer x\r\napi-key: " + keyOf("alice") + "\r\n", 401}, // one credential, not a choice
		{"api-key: alice\r\n", 401},
	} {
		resp, body := r.post(q.header, plainBody)
		if resp.StatusCode != q.status {
			t.Errorf("%.60q: %d %s", q.header, resp.StatusCode, body)
		}
		if q.status != 401 {
			continue
		}
		answers[body] = true
		if e := parseError(t, body); e.Code == nil || *e.Code != "invalid_api_key" || e.Type != typeInvalid {
			t.Errorf("%.60q: %s", q.header, body)
		}
		if got := resp.Header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer ") {
			t.Errorf("%.60q: WWW-Authenticate %q", q.header, got)
		}
	}
	if len(answers) != 1 {
		t.Errorf("the answers tell what was wrong: %v", answers)
	}
	if n := r.metric("warmroute_proxy_auth_failures_total"); n != 11 {
		t.Errorf("%v failures were counted", n)
	}
	for _, q := range []struct {
		raw    string
		status int
	}{
		{"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 200},
		{"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n", 200},
		{"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 401},
		{"GET /v1/models/m HTTP/1.1\r\nHost: x\r\n\r\n", 401},
		{"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 401},
		{"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + bearer("bob") + "\r\n", 200},
		{request(pathCompletions, "", `{"model":"m","prompt":"x"}`), 401},
	} {
		resp, body, err := r.exchange(q.raw)
		if err != nil || resp.StatusCode != q.status {
			t.Errorf("%.40q: %v %v %s", q.raw, err, resp, body)
		}
	}
	r.stop()
}

// TestKeys_AStrangerHearsNoReasons: /readyz needs no key, and says only with one which workers
// are ill and why.
func TestKeys_AStrangerHearsNoReasons(t *testing.T) {
	w, dead := startWorker(t, echo), startWorker(t, echo)
	r := newRig(t, setup{proxy: Config{Keys: []Key{tenantKey("alice")}}}, w, dead)
	dead.stop()
	eventually(t, "the dead worker is out", func() bool {
		r.post(bearer("alice"), plainBody)
		return !r.fleet.Status()[1].Healthy
	})
	for header, reasons := range map[string]bool{"": false, bearer("mallory"): false, bearer("alice"): true} {
		resp, body, err := r.exchange("GET /readyz HTTP/1.1\r\nHost: x\r\n" + header + "\r\n")
		if err != nil || resp.StatusCode != 200 || !strings.Contains(body, `"degraded"`) || strings.Contains(body, "w2") != reasons {
			t.Errorf("%q: %v %v %s", header, err, resp, body)
		}
	}
	r.stop()
}

// TestKeys_AStrangersBodyIsNotRead: who has no key cannot make the proxy hold a large body,
// and hears so at once.
func TestKeys_AStrangersBodyIsNotRead(t *testing.T) {
	r := newRig(t, setup{proxy: Config{Keys: []Key{tenantKey("alice")}}}, startWorker(t, echo))
	large := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", strangerBytes) + `"}]}`
	if resp, _ := r.post(bearer("alice"), large); resp.StatusCode != 200 {
		t.Errorf("alice: %d", resp.StatusCode)
	}
	// The body of neither is sent: the answer comes by the headers alone.
	for _, header := range []string{"", "Expect: 100-continue\r\n"} {
		resp, body, err := r.exchange(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n", pathChat, header, len(large)))
		if err != nil || resp.StatusCode != 401 || !resp.Close {
			t.Errorf("%q: %v %v %s", header, err, resp, body)
		}
	}
	c := r.dial()
	_, _ = io.WriteString(c, "POST "+pathChat+" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	for range 3 {
		_, _ = fmt.Fprintf(c, "%x\r\n%s\r\n", strangerBytes, strings.Repeat("x", strangerBytes))
	}
	if resp, body, err := readResponse(bufio.NewReader(c)); err != nil || resp.StatusCode != 401 {
		t.Errorf("chunked: %v %v %s", err, resp, body)
	}
	_ = c.Close()
	r.stop()
}

// TestKeys_StayWithTheProxy: no worker sees a key, whichever field it came in.
func TestKeys_StayWithTheProxy(t *testing.T) {
	seen := make(chan http.Header, 1)
	w := startWorker(t, func(c *call) bool {
		seen <- c.Header
		return echo(c)
	})
	for _, own := range []string{"", "workers-own"} {
		r := newRig(t, setup{proxy: Config{Keys: []Key{tenantKey("alice")}},
			workers: []upstream.WorkerConfig{{ID: "w", URL: "http://" + w.Addr().String(), Engine: upstream.EngineOpenAI, APIKey: own}}})
		for _, header := range []string{bearer("alice"), "Api-Key: " + keyOf("alice") + "\r\n", "X-Api-Key: " + keyOf("alice") + "\r\n",
			bearer("alice") + bearer("alice") + "api-key: " + keyOf("alice") + "\r\nAPI-KEY: " + keyOf("alice") + "\r\nx-api-key: " + keyOf("alice") + "\r\n"} {
			if resp, body := r.post(header, plainBody); resp.StatusCode != 200 {
				t.Fatalf("%q: %d %s", header, resp.StatusCode, body)
			}
			got := receive(t, seen)
			if strings.Contains(fmt.Sprint(got), keyOf("alice")) {
				t.Errorf("%q: the worker got %v", header, got)
			}
			want := ""
			if own != "" {
				want = "Bearer " + own
			}
			if got.Get("Authorization") != want {
				t.Errorf("own key %q: the worker got Authorization %q", own, got.Get("Authorization"))
			}
		}
		r.stop()
	}
	// Without keys everything passes, as ever.
	r := newRig(t, setup{}, w)
	r.post("Authorization: Bearer theirs\r\napi-key: theirs\r\n", plainBody)
	if got := receive(t, seen); got.Get("Authorization") != "Bearer theirs" || got.Get("Api-Key") != "theirs" {
		t.Errorf("open: the worker got %v", got)
	}
	r.stop()
}

// TestKeys_Models: the allow-list, by name, by alias and by what an alias stands for.
func TestKeys_Models(t *testing.T) {
	keys := []Key{tenantKey("all"), tenantKey("base", func(k *Key) { k.Models = []string{"m"} }),
		tenantKey("alias", func(k *Key) { k.Models = []string{"gpt"} }), tenantKey("none", func(k *Key) { k.Models = []string{"else"} })}
	r := newRig(t, setup{proxy: Config{Keys: keys, Aliases: map[string]string{"gpt": "m", "fine": "tuned"}}}, startWorker(t, echo))
	for name, want := range map[string][]string{
		"all": {"fine", "gpt", "m", "tuned"}, "base": {"gpt", "m"}, "alias": {"gpt"}, "none": nil,
	} {
		_, body, err := r.exchange("GET /v1/models HTTP/1.1\r\nHost: x\r\n" + bearer(name) + "\r\n")
		var list openai.ModelList
		if err != nil || json.Unmarshal([]byte(body), &list) != nil {
			t.Fatalf("%s: %v %s", name, err, body)
		}
		var got []string
		for _, m := range list.Data {
			got = append(got, m.ID)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s sees %v, want %v", name, got, want)
		}
		for _, model := range []string{"fine", "gpt", "m", "tuned", "absent"} {
			status := 403
			if slices.Contains(want, model) {
				status = 200
			} else if name == "all" {
				status = 404
			}
			resp, body := r.post(bearer(name), strings.Replace(plainBody, `"m"`, `"`+model+`"`, 1))
			if resp.StatusCode != status {
				t.Errorf("%s asks for %s: %d %s", name, model, resp.StatusCode, body)
			}
			one, _, err := r.exchange("GET /v1/models/" + model + " HTTP/1.1\r\nHost: x\r\n" + bearer(name) + "\r\n")
			if err != nil || one.StatusCode != status {
				t.Errorf("%s looks at %s: %v %v", name, model, err, one)
			}
			if status == 403 {
				if e := parseError(t, body); e.Code == nil || *e.Code != "model_not_allowed" || *e.Param != "model" {
					t.Errorf("%s: %s", name, body)
				}
			}
			if status == 404 && !strings.Contains(body, "served are") {
				t.Errorf("%s: %s", name, body)
			}
		}
	}
	if n := r.metric("warmroute_proxy_key_refusals_total", "limit=models"); n != 3+4+5 {
		t.Errorf("%v refusals were counted", n)
	}
	r.stop()
}

// TestKeys_CacheSalt: the key's salt wins over the body's, that over the header's; it is in
// the body that the worker gets and nothing else is changed.
func TestKeys_CacheSalt(t *testing.T) {
	bodies := make(chan string, 1)
	w := startWorker(t, func(c *call) bool {
		if c.Header.Get(headerSalt) != "" {
			t.Error("the worker got the header")
		}
		bodies <- string(c.body)
		return echo(c)
	})
	salted := func(value string) string { return strings.Replace(plainBody, "{", `{ "cache_salt" : `+value+`, `, 1) }
	added := func(salt string) string { return strings.Replace(plainBody, "{", `{"cache_salt":"`+salt+`",`, 1) }
	header := headerSalt + ": by-header\r\n"
	r := newRig(t, setup{proxy: Config{Keys: []Key{tenantKey("alice", func(k *Key) { k.CacheSalt = saltA }), tenantKey("bob")}, Aliases: map[string]string{"gpt": "m"}}}, w)
	for _, q := range []struct{ who, header, body, want string }{
		{"alice", "", plainBody, added(saltA)},
		{"alice", header, plainBody, added(saltA)},
		{"alice", header, salted(`"` + saltB + `"`), salted(`"` + saltA + `"`)},
		{"alice", "", salted("null"), salted(`"` + saltA + `"`)},
		{"alice", "", salted(`"` + saltA + `"`), salted(`"` + saltA + `"`)},
		{"alice", "", strings.Replace(salted(`"x"`), "cache_salt", `cache\u005fsalt`, 1), strings.Replace(salted(`"`+saltA+`"`), "cache_salt", `cache\u005fsalt`, 1)},
		{"bob", "", plainBody, plainBody},
		{"bob", header, plainBody, added("by-header")},
		{"bob", header, salted(`"mine"`), salted(`"mine"`)},
		{"bob", "", salted(`"mine"`), salted(`"mine"`)},
		{"bob", header, strings.Replace(plainBody, `"m"`, `"gpt"`, 1), added("by-header")},
	} {
		if resp, body := r.post(bearer(q.who)+q.header, q.body); resp.StatusCode != 200 {
			t.Fatalf("%+v: %d %s", q, resp.StatusCode, body)
		}
		if got := receive(t, bodies); got != q.want {
			t.Errorf("%s %q %s\ngot  %s\nwant %s", q.who, q.header, q.body, got, q.want)
		}
	}
	for _, bad := range []string{"two words", strings.Repeat("x", maxSalt+1), "\x80"} {
		resp, body := r.post(bearer("bob")+headerSalt+": "+bad+"\r\n", plainBody)
		if e := parseError(t, body); resp.StatusCode != 400 || e.Param == nil || *e.Param != headerSalt {
			t.Errorf("%.20q: %d %s", bad, resp.StatusCode, body)
		}
	}
	if resp, body := r.post(bearer("alice"), strings.Replace(salted(`"a"`), "{", `{"cache_salt":"b",`, 1)); resp.StatusCode != 400 {
		t.Errorf("two salts: %d %s", resp.StatusCode, body)
	}
	r.stop()
}

// TestKeys_SaltsKeepPrefixesApart: the same prompt is one prefix within a salt and another
// beyond it, and the router's tenant is the key's name.
func TestKeys_SaltsKeepPrefixesApart(t *testing.T) {
	r := newRig(t, setup{proxy: Config{Keys: []Key{tenantKey("alice", func(k *Key) { k.CacheSalt = saltA }), tenantKey("bob", func(k *Key) { k.CacheSalt = saltB })}}}, startWorker(t, echo))
	long := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("many words ", 400) + `"}]}`
	overlap := func(who string) int {
		resp, _ := r.post(bearer(who), long)
		if resp.StatusCode != 200 {
			t.Fatalf("%s: %d", who, resp.StatusCode)
		}
		return r.cfg.Router.Decisions()[0].OverlapTokens
	}
	if n := overlap("alice"); n != 0 {
		t.Errorf("the first prompt overlaps by %d", n)
	}
	if n := overlap("alice"); n == 0 {
		t.Error("alice does not find her own prefix")
	}
	if n := overlap("bob"); n != 0 {
		t.Errorf("bob finds %d tokens of alice's", n)
	}
	if n := overlap("bob"); n == 0 {
		t.Error("bob does not find his own prefix")
	}
	r.stop()
}

func TestKeys_PriorityIsACeiling(t *testing.T) {
	for _, q := range []struct{ key, asked, want int }{{0, 0, 0}, {0, -5, 0}, {0, 1, 1}, {1, 0, 1}, {-1, -2, -1}, {-1, 0, 0}} {
		if got := (&caller{Key: Key{Priority: q.key}}).priority(q.asked); got != q.want {
			t.Errorf("key %d, asked %d: %d, want %d", q.key, q.asked, got, q.want)
		}
	}
	if got := (*caller)(nil).priority(-5); got != -5 {
		t.Errorf("without keys: %d", got)
	}
}

func TestKeys_Validate(t *testing.T) {
	f := func(want string, keys ...Key) {
		t.Helper()
		_, err := newKeyring(keys, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	for _, name := range []string{"", "a b", "a\r\nX: y", "-a", "é", strings.Repeat("a", 65), `a"b`, "a\x00"} {
		f("name", tenantKey(name))
	}
	f("hash", Key{Name: "a"})
	f("empty key", Key{Name: "a", SHA256: sha256.Sum256(nil)})
	f("negative", tenantKey("a", func(k *Key) { k.TokensPerMinute = -1 }))
	f("empty name", tenantKey("a", func(k *Key) { k.Models = []string{""} }))
	f("cache_salt", tenantKey("a", func(k *Key) { k.CacheSalt = "short" }))
	f("cache_salt", tenantKey("a", func(k *Key) { k.CacheSalt = "sixteen with blanks" }))
	f("is taken", tenantKey("a"), Key{Name: "a", SHA256: [32]byte{1}})
	f("the key of", tenantKey("a"), Key{Name: "b", SHA256: tenantKey("a").SHA256})
}

// TestSetAccess_ChangesKeysUnderWay: a new key is let in, one that is gone is not, what was
// used stays used, and neither a mistake nor an empty list changes anything.
func TestSetAccess_ChangesKeysUnderWay(t *testing.T) {
	limited := func(k *Key) { k.RequestsPerMinute = 2 }
	r := newRig(t, setup{proxy: Config{Keys: []Key{tenantKey("alice", limited), tenantKey("bob")}}}, startWorker(t, echo))
	status := func(who string) int {
		resp, _ := r.post(bearer(who), plainBody)
		return resp.StatusCode
	}
	if got := []int{status("alice"), status("alice"), status("alice"), status("bob"), status("carol")}; !slices.Equal(got, []int{200, 200, 429, 200, 401}) {
		t.Errorf("before: %v", got)
	}
	for _, bad := range [][]Key{{}, {tenantKey("carol"), tenantKey("carol")}} {
		if err := r.SetAccess(bad, nil); err == nil || !strings.Contains(err.Error(), "auth") {
			t.Errorf("%d keys: %v", len(bad), err)
		}
		if got := []int{status("bob"), status("carol")}; !slices.Equal(got, []int{200, 401}) {
			t.Errorf("after a mistake: %v", got)
		}
	}
	if n := r.metric("warmroute_proxy_key_requests_total", "key=bob"); n != 3 {
		t.Errorf("bob has %v requests", n)
	}
	if err := r.SetAccess([]Key{tenantKey("alice", limited), tenantKey("carol")}, nil); err != nil {
		t.Fatal(err)
	}
	if got := []int{status("alice"), status("bob"), status("carol")}; !slices.Equal(got, []int{429, 401, 200}) {
		t.Errorf("after: %v", got)
	}
	if n := r.metric("warmroute_proxy_key_requests_total", "key=bob"); n != 0 {
		t.Errorf("bob is still counted: %v", n)
	}
	if err := r.SetAccess([]Key{tenantKey("alice", func(k *Key) { k.RequestsPerMinute = 5 })}, nil); err != nil {
		t.Fatal(err)
	}
	if got := []int{status("alice"), status("alice"), status("alice"), status("alice")}; !slices.Equal(got, []int{200, 200, 200, 429}) {
		t.Errorf("with a higher limit: %v", got)
	}
	r.stop()
}

// TestKeys_CostNothing: a front without keys does no work for them, and finding one of ten
// thousand allocates nothing either.
func TestKeys_CostNothing(t *testing.T) {
	s := new(Server)
	var h fasthttp.RequestHeader
	h.Set("Authorization", "Bearer "+keyOf("t9999"))
	h.SetNoDefaultContentType(true)
	var turn turn
	var out fasthttp.ResponseHeader
	open := func() {
		who, ok := s.authenticate(&h)
		if !ok || who != nil || turn.enter() != nil || turn.take() != nil || !who.may("m", "") {
			t.Fatal("an open front refused")
		}
		turn.spend(openai.NoUsage)
		turn.settle(false)
		who.writeLimits(&out, turn.start)
	}
	if n := testing.AllocsPerRun(100, open); n != 0 {
		t.Errorf("%v allocations without keys", n)
	}
	keys := make([]Key, 10_000)
	for i := range keys {
		keys[i] = tenantKey(fmt.Sprintf("t%d", i))
	}
	ring, err := newKeyring(keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.keys.Store(&ring)
	found := func() {
		if who, ok := s.authenticate(&h); !ok || who.Name != "t9999" {
			t.Fatal("not found")
		}
	}
	if n := testing.AllocsPerRun(100, found); n != 0 {
		t.Errorf("%v allocations to find a key", n)
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	s := new(Server)
	keys := make([]Key, 10_000)
	for i := range keys {
		keys[i] = tenantKey(fmt.Sprintf("t%d", i))
	}
	ring, err := newKeyring(keys, nil)
	if err != nil {
		b.Fatal(err)
	}
	s.keys.Store(&ring)
	var h fasthttp.RequestHeader
	h.Set("Authorization", "Bearer "+keyOf("t5000"))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := s.authenticate(&h); !ok {
			b.Fatal("not found")
		}
	}
}
