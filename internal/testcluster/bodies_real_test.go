//go:build real

package testcluster_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// recorded is one request body of the public recordings, and the response to it where
// that was recorded too.
type recorded struct {
	id, path, model string
	body            []byte // as it stands in the file
	stream, usage   bool   // streams; asks for usage

	status      int
	contentType string
	response    []byte // nil where none was recorded
}

// noMessages is the one body that OpenAI refused for its shape alone; so do we.
const noMessages = "envoy-chat-no-messages.0"

// readRecorded reads the files in WARMROUTE_DATA/openai.
func readRecorded(t *testing.T) []*recorded {
	t.Helper()
	dir := os.Getenv("WARMROUTE_DATA")
	if dir == "" {
		t.Fatal("WARMROUTE_DATA is not set; it names the folder that holds openai/openai-requests.jsonl")
	}
	var list []*recorded
	byID := map[string]*recorded{}
	eachLine(t, dir, "openai-requests.jsonl", func(line []byte) { list = append(list, readRequest(t, line)) })
	eachLine(t, dir, "openai-requests-multimodal-large.jsonl", func(line []byte) { list = append(list, readRequest(t, line)) })
	for _, r := range list {
		byID[r.id] = r
	}
	eachLine(t, dir, "openai-responses.jsonl", func(line []byte) {
		var v struct {
			ID          string
			Status      int
			ContentType string `json:"content_type"`
			Body        json.RawMessage
		}
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		r := byID[v.ID]
		if r == nil {
			return // its request was not recorded
		}
		r.status, r.contentType, r.response = v.Status, v.ContentType, v.Body
		var text string
		if json.Unmarshal(v.Body, &text) == nil {
			r.response = []byte(text)
		}
	})
	if len(list) != 195 || len(byID) != 195 {
		t.Fatalf("%d bodies of %d ids, want 195", len(list), len(byID))
	}
	return list
}

func eachLine(t *testing.T, dir, file string, f func(line []byte)) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "openai", file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(raw) {
		f(line)
	}
}

func readRequest(t *testing.T, line []byte) *recorded {
	t.Helper()
	var v struct {
		ID, Path string
		Body     json.RawMessage
	}
	var body struct {
		Model         string
		Stream        bool
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err := json.Unmarshal(line, &v); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(v.Body, &body); err != nil {
		t.Fatal(err)
	}
	return &recorded{id: v.ID, path: v.Path, model: body.Model, body: v.Body, stream: body.Stream, usage: body.StreamOptions.IncludeUsage, status: 200}
}

// answer is what the recorder says to a request: the recorded response, else one of the
// form that was asked for. injected says that the proxy asked for usage, not the client.
func (r *recorded) answer(injected bool) (status int, contentType string, body []byte) {
	switch {
	case r.response != nil:
		return r.status, r.contentType, r.response
	case !r.stream:
		return 200, "application/json", []byte(`{"id":"` + r.id + `","object":"x","choices":[{"index":0,"message":{"role":"assistant","content":"Grüße\n"},"text":"a","finish_reason":"stop"}], "usage":{"prompt_tokens":7,"completion_tokens":1}}`)
	}
	b := []byte(": a comment\n\ndata: {\"id\":\"" + r.id + "\", \"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Gr\\u00fc\"},\"text\":\"a\",\"finish_reason\":null}]}\n\n" +
		"data: {\"id\":\"" + r.id + "\",\"choices\":[{\"index\":0,\"delta\":{},\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n")
	if r.usage || injected {
		b = append(b, usageFrame...)
	}
	b = append(b, "data: [DONE]\n\n"...)
	if r.path != chatPath { // some servers end lines in CRLF
		b = bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n"))
	}
	return 200, "text/event-stream; charset=utf-8", b
}

const usageFrame = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n"

const injectedUsage = `"stream_options":{"include_usage":true},`

// recorder is an engine that keeps the bytes it gets and answers with the recordings.
type recorder struct {
	url  string
	vllm bool // looks like vLLM, so that usage is asked for
	byID map[string]*recorded
	list []byte // /v1/models

	mu  sync.Mutex
	got map[string][]rawRequest // by id
}

func startRecorder(t *testing.T, list []*recorded, vllm bool) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	rec := &recorder{url: "http://" + l.Addr().String(), vllm: vllm, byID: map[string]*recorded{}, got: map[string][]rawRequest{}}
	var models []string
	for _, r := range list {
		rec.byID[r.id] = r
	}
	for _, m := range modelsOf(list) {
		models = append(models, `{"id":`+strconv.Quote(m)+`,"object":"model","owned_by":"x"}`)
	}
	rec.list = []byte(`{"object":"list","data":[` + strings.Join(models, ",") + `]}`)
	go serveRaw(l, rec.serve) // ends with l and its connections, which the proxy closes
	return rec
}

func modelsOf(list []*recorded) []string {
	set := map[string]bool{}
	for _, r := range list {
		set[r.model] = true
	}
	return slices.Sorted(maps.Keys(set))
}

func (rec *recorder) serve(q *rawRequest, w *bufio.Writer) error {
	if q.path() == "/v1/models" {
		return sendRaw(w, 200, "application/json", rec.list)
	}
	r := rec.byID[q.header("X-Recorded")]
	if r == nil || q.path() != r.path {
		if rec.vllm {
			return scripted{}.answer(q, w)
		}
		return sendRaw(w, 404, "application/json", []byte(`{}`))
	}
	rec.mu.Lock()
	rec.got[r.id] = append(rec.got[r.id], rawRequest{q.line, bytes.Clone(q.head), bytes.Clone(q.body)})
	rec.mu.Unlock()
	status, contentType, body := r.answer(bytes.Contains(q.body, []byte(injectedUsage)))
	if !strings.HasPrefix(contentType, "text/event-stream") {
		return sendRaw(w, status, contentType, body)
	}
	fmt.Fprintf(w, "HTTP/1.1 %d OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n", status, contentType)
	for i := 0; i < len(body); i += 37 { // chunks end anywhere
		if err := sendChunk(w, string(body[i:min(i+37, len(body))])); err != nil {
			return err
		}
	}
	return sendChunk(w, "")
}

// take returns the only request that came for an id, nil for none.
func (rec *recorder) take(t *testing.T, id string) *rawRequest {
	t.Helper()
	rec.mu.Lock()
	defer rec.mu.Unlock()
	got := rec.got[id]
	delete(rec.got, id)
	if len(got) > 1 {
		t.Errorf("%s: reached the worker %d times", id, len(got))
	}
	if len(got) == 0 {
		return nil
	}
	return &got[0]
}

// TestReal_RecordedBodiesThroughProxy sends every recorded body through the running proxy:
// the worker gets the client's bytes but for the fields that are ours, the client gets the
// worker's status and bytes, and each prompt has an identity or a reason why not.
func TestReal_RecordedBodiesThroughProxy(t *testing.T) {
	list := readRecorded(t)
	const hint = `"nvext":{"agent_hints":{"speculative_prefill":false,"osl":9}},` // true would send more than was asked
	for _, c := range []struct {
		name   string
		vllm   bool
		client func(r *recorded) []byte // what the client sends
		worker func(r *recorded) []byte // what the worker must get
	}{
		{"an unknown engine gets every byte", false,
			func(r *recorded) []byte { return r.body },
			func(r *recorded) []byte { return r.body }},
		{"vLLM is asked for usage", true,
			func(r *recorded) []byte { return r.body },
			func(r *recorded) []byte { return withUsage(r, r.body) }},
		{"an alias is resolved and the hint stays here", true,
			func(r *recorded) []byte { return insert(renamed(t, r, "alias/"+r.model), hint) },
			func(r *recorded) []byte { return withUsage(r, insert(r.body, `"nvext":{"agent_hints":{"osl":9}},`)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := startRecorder(t, list, c.vllm)
			args := []string{"--worker", rec.url + ",id=recorder", "--log-level", "error"}
			for _, m := range modelsOf(list) {
				args = append(args, "--model-alias", "alias/"+m+"="+m)
			}
			p := startProxy(t, "proxy", args...)
			waitFor(t, "the proxy to be ready", func() error { return getOK(p.admin + "/readyz") })
			identities := map[string]int{}
			spliced := 0
			conn := dial(t, p.url)
			for _, r := range list {
				body := c.client(r)
				got := p.exchange(t, conn, r, body)
				q := rec.take(t, r.id)
				if r.id == noMessages {
					if q != nil || got.status != 400 || !bytes.Contains(got.body, []byte(`"messages"`)) {
						t.Errorf("%s: status %d, reached the worker %v: %s", r.id, got.status, q != nil, got.body)
					}
					continue
				}
				if q == nil {
					t.Errorf("%s: did not reach the worker: status %d: %.300s", r.id, got.status, got.body)
					continue
				}
				want := c.worker(r)
				if !bytes.Equal(q.body, want) {
					t.Errorf("%s: the worker got\n%s\nwant\n%s", r.id, around(q.body, want), around(want, q.body))
				}
				if !bytes.Equal(body, q.body) {
					spliced++
				}
				status, contentType, answer := r.answer(false)
				if got.status != status || got.header.Get("Content-Type") != contentType || !bytes.Equal(got.body, answer) {
					t.Errorf("%s: the client got %d %s\n%s\nwant %d %s\n%s", r.id, got.status, got.header.Get("Content-Type"), around(got.body, answer), status, contentType, around(answer, got.body))
				}
				identities[p.identity(t, r, got.header)]++
			}
			t.Logf("%d bodies, %d changed on the way; identities %s", len(list), spliced, identitiesText(identities))
		})
	}
}

// TestReal_RecordedBodiesHaveEngineTokens sends every recorded body to a simulated vLLM
// that serves all the models, most of them as adapters.
func TestReal_RecordedBodiesHaveEngineTokens(t *testing.T) {
	list := readRecorded(t)
	models := modelsOf(list)
	w := startWorker(t, "sim", eventsAndReplay, "--model", models[0], "--lora", strings.Join(models[1:], ","), "--speed-up", "1000")
	p := startProxy(t, "proxy", "--worker", w.flag(true), "--log-level", "error")
	waitFor(t, "the proxy to know the worker", func() error { return p.knows("complete", w) })
	identities, statuses := map[string]int{}, map[int]int{}
	conn := dial(t, p.url)
	for _, r := range list {
		got := p.exchange(t, conn, r, r.body)
		if statuses[got.status]++; got.status != 200 {
			t.Logf("%s: %d %.200s", r.id, got.status, got.body)
		}
		if r.id != noMessages {
			identities[p.identity(t, r, got.header)]++
		}
	}
	t.Logf("%d bodies, statuses %v; identities %s", len(list), statuses, identitiesText(identities))
	// The simulated engine refuses parts that it has no notion of: files, video, thinking.
	if statuses[200] < 180 || statuses[200]+statuses[400] != len(list) {
		t.Errorf("statuses %v, want 200 and few 400", statuses)
	}
}

// exchange sends a body of r.
func (p *liveProxy) exchange(t *testing.T, conn *wire, r *recorded, body []byte) reading {
	t.Helper()
	got, err := conn.post(r.path, "X-Recorded: "+r.id+"\r\nX-Warmroute-Explain: 1\r\n", body)
	if err != nil {
		t.Fatalf("%s: %v", r.id, err)
	}
	if got.header.Get("X-Request-Id") == "" {
		t.Errorf("%s: no X-Request-Id", r.id)
	}
	return got
}

// identity returns how the proxy knew the prompt of the answered request, and fails the
// test where it says neither tokens nor a reason.
func (p *liveProxy) identity(t *testing.T, r *recorded, h http.Header) string {
	t.Helper()
	type shown struct {
		ID string `json:"id"`
		decision
	}
	var last []shown
	getJSON(t, p.admin+"/debug/route", &last)
	at := slices.IndexFunc(last, func(d shown) bool { return d.ID == h.Get("X-Warmroute-Decision") })
	if at < 0 || last[at].PromptSource != h.Get("X-Warmroute-Prompt-Source") {
		t.Errorf("%s: /debug/route does not show the decision of headers %v", r.id, h)
		return "unknown"
	}
	d := last[at]
	switch d.PromptSource {
	case "engine", "client":
	case "text", "none":
		if d.SourceReason == "" {
			t.Errorf("%s: identity by %s without a reason", r.id, d.PromptSource)
		}
	default:
		t.Errorf("%s: identity by %q", r.id, d.PromptSource)
	}
	reason := d.SourceReason
	if i := strings.Index(reason, "messages["); i >= 0 {
		reason = reason[:i] + "messages[n]"
	}
	if reason == "" {
		reason = "exact"
	}
	return d.PromptSource + ": " + reason
}

func identitiesText(m map[string]int) string {
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&out, "\n    %3d  %s", m[k], k)
	}
	return out.String()
}

// withUsage is a body of r with the smallest change that makes a stream report usage.
func withUsage(r *recorded, body []byte) []byte {
	if !r.stream || r.usage {
		return body
	}
	return insert(body, injectedUsage)
}

// insert puts members before the first of an object.
func insert(body []byte, members string) []byte {
	return append(append([]byte{'{'}, members...), body[1:]...)
}

// renamed is the body with another model.
func renamed(t *testing.T, r *recorded, model string) []byte {
	t.Helper()
	before, after := []byte(`"model": `+strconv.Quote(r.model)), []byte(`"model": `+strconv.Quote(model))
	if bytes.Count(r.body, before) != 1 {
		t.Fatalf("%s: the model does not stand exactly once in the body", r.id)
	}
	return bytes.Replace(r.body, before, after, 1)
}

// around cuts b to where it begins to differ from other.
func around(b, other []byte) string {
	i := 0
	for i < len(b) && i < len(other) && b[i] == other[i] {
		i++
	}
	return fmt.Sprintf("[%d bytes] …%s", len(b), b[max(i-60, 0):min(i+200, len(b))])
}
