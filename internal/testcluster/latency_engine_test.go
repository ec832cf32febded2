package testcluster_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLatencyHelper is no test: with arguments it is one of the processes that
// TestBenchLatency compares the proxy with, until it is killed.
//
//	engine plain tokens slow   a scripted engine on three addresses
//	reverse address target     a reverse proxy of the standard library
func TestLatencyHelper(t *testing.T) {
	switch args := flag.Args(); {
	case len(args) == 4 && args[0] == "engine":
		var wg sync.WaitGroup
		for i, e := range []scripted{{}, {tokenizer: true}, {tokenizer: true, rate: slowTokenizer}} {
			l, err := net.Listen("tcp", args[i+1])
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { serveRaw(l, e.answer) })
		}
		wg.Wait()
	case len(args) == 3 && args[0] == "reverse":
		t.Fatal(reverseProxy(args[1], args[2]))
	}
}

// helper describes a process that runs this test binary as the given helper test.
func helper(t testing.TB, test, name string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := newProcess(t, name, "warmroute", append([]string{"-test.run=^" + test + "$", "-test.timeout=30m"}, args...)...)
	p.bin = self
	return p
}

// reverseProxy does with net/http what a proxy that routes by content must do at least:
// read the body whole, send it on, flush each part of the answer.
func reverseProxy(listen, target string) error {
	to, err := url.Parse(target)
	if err != nil {
		return err
	}
	buffers := &bufferPool{}
	rp := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
		FlushInterval: -1,
		BufferPool:    buffers,
	}
	return http.ListenAndServe(listen, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		rp.ServeHTTP(w, r)
	}))
}

type bufferPool struct{ sync.Pool }

func (p *bufferPool) Get() []byte {
	if b, ok := p.Pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *bufferPool) Put(b []byte) { p.Pool.Put(&b) }

// rawRequest is a request with its bytes as they came; they are valid until it is answered.
type rawRequest struct {
	line string // without its end
	head []byte // the header fields, a line each
	body []byte
}

func (q *rawRequest) path() string {
	_, p, _ := strings.Cut(q.line, " ")
	return p[:strings.IndexByte(p, ' ')]
}

func (q *rawRequest) header(name string) string {
	for line := range bytes.Lines(q.head) {
		if k, v, _ := bytes.Cut(line, []byte(":")); strings.EqualFold(string(k), name) {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}

func (q *rawRequest) number(name string) int { n, _ := strconv.Atoi(q.header(name)); return n }

// serveRaw answers HTTP/1.1 requests with a Content-Length, and shows their very bytes,
// until l is closed. It returns when its last connection has ended.
func serveRaw(l net.Listener, answer func(q *rawRequest, w *bufio.Writer) error) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer c.Close()
			r, w := bufio.NewReaderSize(c, 64<<10), bufio.NewWriterSize(c, 64<<10)
			var q rawRequest
			for q.read(r) == nil && answer(&q, w) == nil && w.Flush() == nil {
			}
		})
	}
}

func (q *rawRequest) read(r *bufio.Reader) error {
	line, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	q.line, q.head = strings.TrimSpace(line), q.head[:0]
	for {
		field, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(field)) == 0 {
			break
		}
		q.head = append(q.head, field...)
	}
	n := q.number("Content-Length")
	if cap(q.body) < n {
		q.body = make([]byte, n)
	}
	q.body = q.body[:n]
	_, err = io.ReadFull(r, q.body)
	return err
}

// sendRaw writes a whole answer.
func sendRaw(w *bufio.Writer, status int, contentType string, body []byte) error {
	fmt.Fprintf(w, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", status, http.StatusText(status), contentType, len(body))
	_, err := w.Write(body)
	return err
}

// sendChunk writes one chunk of a body; an empty one ends it.
func sendChunk(w *bufio.Writer, data string) error {
	fmt.Fprintf(w, "%x\r\n%s\r\n", len(data), data)
	return w.Flush()
}

// slowTokenizer is what engines' tokenizers reach in bytes a second, about: a Rust
// tokenizer behind one Python thread.
const slowTokenizer = 2 << 20

// scripted is an engine that looks like vLLM and computes nothing: its share of a
// request's time is small and the same for all.
type scripted struct {
	tokenizer bool
	rate      int // bytes a second of the tokenizer; 0 is as fast as it goes
}

const scriptedMetrics = `vllm:cache_config_info{block_size="16",num_gpu_blocks="1000000",max_num_seqs="256",enable_prefix_caching="True"} 1.0
`

func (e scripted) answer(q *rawRequest, w *bufio.Writer) error {
	const plain, js = "text/plain", "application/json"
	switch path := q.path(); {
	case path == "/v1/chat/completions":
		return e.chat(q, w)
	case path == "/v1/models":
		return sendRaw(w, 200, js, []byte(`{"object":"list","data":[{"id":"bench","object":"model","owned_by":"vllm"}]}`))
	case path == "/version":
		return sendRaw(w, 200, js, []byte(`{"version":"0.0.0"}`))
	case path == "/metrics":
		return sendRaw(w, 200, plain, []byte(scriptedMetrics))
	case path == "/health":
		return sendRaw(w, 200, plain, nil)
	case path == "/v1/chat/completions/render" && e.tokenizer:
		if e.rate > 0 {
			sleep(context.Background(), time.Duration(float64(len(q.body))/float64(e.rate)*float64(time.Second)))
		}
		return sendRaw(w, 200, js, render(q.body))
	}
	return sendRaw(w, 404, js, []byte(`{"error":{"message":"Not Found","type":"NotFoundError","code":404}}`))
}

// render answers with one token for four bytes of the messages, so that a conversation's
// next turn starts with the tokens of this one.
func render(body []byte) []byte {
	text := body[max(bytes.Index(body, []byte(`"messages":`)), 0):]
	out := append(make([]byte, 0, 2*len(text)), `{"request_id":"r","token_ids":[`...)
	for i := 0; i+4 <= len(text); i += 4 {
		if i > 0 {
			out = append(out, ',')
		}
		x := uint32(text[i]) | uint32(text[i+1])<<8 | uint32(text[i+2])<<16 | uint32(text[i+3])<<24
		out = strconv.AppendUint(out, uint64(x*2654435761>>15), 10)
	}
	return append(out, `],"features":null}`...)
}

const eventHead = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench",`

// chat streams as many events with content as X-Bench-Events says, X-Bench-Pace
// microseconds apart. With a pace the content is the time of the event in ns.
func (e scripted) chat(q *rawRequest, w *bufio.Writer) error {
	events, pace := max(q.number("X-Bench-Events"), 1), time.Duration(q.number("X-Bench-Pace"))*time.Microsecond
	w.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
	first := eventHead + `"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	fmt.Fprintf(w, "%x\r\n%s\r\n", len(first), first) // leaves with the first content
	for i := range events {
		content := "tok" + strconv.Itoa(i)
		if pace > 0 {
			sleep(context.Background(), pace)
			content = strconv.FormatInt(time.Now().UnixNano(), 10)
		}
		if err := sendChunk(w, eventHead+`"choices":[{"index":0,"delta":{"content":"`+content+`"},"logprobs":null,"finish_reason":null}]}`+"\n\n"); err != nil {
			return err
		}
	}
	last := eventHead + `"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}` + "\n\n"
	if bytes.Contains(q.body, []byte(`"include_usage":true`)) {
		last += eventHead + `"choices":[],"usage":{"prompt_tokens":` + strconv.Itoa(len(q.body)/4) + `,"completion_tokens":` + strconv.Itoa(events) +
			`,"total_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}` + "\n\n"
	}
	if err := sendChunk(w, last+"data: [DONE]\n\n"); err != nil {
		return err
	}
	return sendChunk(w, "")
}
