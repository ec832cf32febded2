package testcluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// chaosPatience bounds one exchange of a client: beyond every limit of the proxy.
const chaosPatience = 20 * time.Second

// question is one request of a chaos client.
type question struct {
	id            string
	path          string
	fields        map[string]any
	stream, usage bool
}

// body is the request as JSON; without streaming where that is said.
func (q question) body(stream bool) []byte {
	delete(q.fields, "stream_options")
	if q.fields["stream"] = stream; stream && q.usage {
		q.fields["stream_options"] = map[string]bool{"include_usage": true}
	}
	b, err := json.Marshal(q.fields)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

// response is what came back, whole or not.
type response struct {
	status int
	header http.Header
	body   string
	err    error
}

// phone is one keep-alive connection of a client, which it dials anew when it breaks. It
// sends nothing twice.
type phone struct {
	addr string
	conn net.Conn
	br   *bufio.Reader
}

func (p *phone) hangUp() {
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}

func (p *phone) ask(q question, stream bool) (r response) {
	if p.conn == nil {
		if p.conn, r.err = net.Dial("tcp", p.addr); r.err != nil {
			p.conn = nil
			return r
		}
		p.br = bufio.NewReader(p.conn)
	}
	_ = p.conn.SetDeadline(time.Now().Add(chaosPatience))
	body := q.body(stream)
	_, r.err = fmt.Fprintf(p.conn, "POST %s HTTP/1.1\r\nHost: chaos\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s", q.path, q.id, len(body), body)
	// An answer may be there although the request could not be sent whole.
	resp, err := http.ReadResponse(p.br, nil)
	if err != nil {
		p.hangUp()
		r.err = errors.Join(r.err, err)
		return r
	}
	b, err := io.ReadAll(resp.Body)
	r = response{resp.StatusCode, resp.Header, string(b), err}
	switch {
	case err != nil || resp.Close:
		p.hangUp()
	case p.br.Buffered() > 0:
		rest, _ := p.br.Peek(p.br.Buffered())
		r.err = fmt.Errorf("%w: %.100q", errAfterwards, rest)
		p.hangUp()
	}
	return r
}

// errAfterwards says that an answer was followed by bytes that nobody asked for.
var errAfterwards = errors.New("bytes after the answer's end")

// judge tells how the answer to q ended. sent is what the workers were asked and said; want
// is the right answer.
func judge(q question, r response, sent []exchange, want meaning) (outcome, string) {
	var last exchange // the answer that can have been passed on
	for _, e := range sent {
		if e.status == r.status {
			last = e
		}
	}
	switch {
	case errors.Is(r.err, errAfterwards):
		return truncated, r.err.Error()
	case r.status == 0:
		return failed, "no answer"
	case r.status != http.StatusOK && r.err != nil:
		return failed, "half an error"
	case r.status != http.StatusOK && (r.status < 400 || !isError([]byte(r.body))):
		return truncated, fmt.Sprintf("status %d without an error body: %.200q", r.status, r.body)
	case r.status != http.StatusOK:
		var v struct{ Error struct{ Code any } }
		_ = json.Unmarshal([]byte(r.body), &v)
		return failed, fmt.Sprintf("status %d %v", r.status, v.Error.Code)
	case r.header.Get("X-Request-Id") != q.id:
		return truncated, "the answer is that of request " + r.header.Get("X-Request-Id")
	case r.err != nil && strings.Contains(r.body, "[DONE]") && !strings.Contains(last.body, "[DONE]"):
		return truncated, fmt.Sprintf("[DONE] is not the worker's: %.200q", r.body[max(len(r.body)-200, 0):])
	case r.err != nil:
		return failed, "broken off"
	case !last.whole:
		return truncated, fmt.Sprintf("ends well although the worker's answer broke off: %d of its %d bytes, ends in %.200q", len(r.body), len(last.body), r.body[max(len(r.body)-200, 0):])
	}
	bytes := last.body
	if q.stream && !q.usage {
		bytes = withoutUsage(bytes)
	}
	if r.body != bytes {
		return truncated, fmt.Sprintf("differs from the worker's bytes:\n%.2000q\n%.2000q", r.body, bytes)
	}
	got, err := meaningOf(r.body, q.stream)
	if err != nil {
		return truncated, err.Error()
	}
	if got.usage = want.usage && got.usage; !got.usage {
		got.prompt, got.output = want.prompt, want.output
	}
	if got.usage = want.usage; got != want {
		return truncated, fmt.Sprintf("got %+v, want %+v", got, want)
	}
	return whole, ""
}

// withoutUsage removes the event that has the usage alone, which the proxy asked for.
func withoutUsage(stream string) string {
	var b strings.Builder
	for event := range strings.SplitAfterSeq(stream, "\n\n") {
		if !strings.Contains(event, `"choices":[],"usage":`) {
			b.WriteString(event)
		}
	}
	return b.String()
}

// meaning is what an answer says, however it is framed.
type meaning struct {
	text, call, arguments, finish string
	usage                         bool
	prompt, output                int
}

// meaningOf reads a whole answer: a JSON object, or a stream that must consist of data
// lines, have one finish reason and end in [DONE].
func meaningOf(body string, stream bool) (m meaning, err error) {
	if !stream {
		return m, m.add(body)
	}
	events, ok := strings.CutSuffix(body, "data: [DONE]\n\n")
	if !ok {
		return m, fmt.Errorf("a stream that ends in %q", body[max(len(body)-100, 0):])
	}
	for event := range strings.SplitAfterSeq(events, "\n\n") {
		if event == "" {
			continue
		}
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			return m, fmt.Errorf("an event that is %q", event)
		}
		if err := m.add(data); err != nil {
			return m, err
		}
	}
	return m, nil
}

// add reads a JSON object of an answer.
func (m *meaning) add(data string) error {
	type part struct {
		Content string `json:"content"`
		Calls   []struct {
			Function struct{ Name, Arguments string } `json:"function"`
		} `json:"tool_calls"`
	}
	var v struct {
		Choices []struct {
			Delta, Message part
			Text           string
			Finish         string `json:"finish_reason"`
		}
		Usage *struct {
			Prompt int `json:"prompt_tokens"`
			Output int `json:"completion_tokens"`
		}
	}
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		return fmt.Errorf("%w in %.200q", err, data)
	}
	for _, c := range v.Choices {
		if c.Finish != "" && m.finish != "" {
			return fmt.Errorf("a second finish reason in %.200q", data)
		}
		m.finish += c.Finish
		m.text += c.Text + c.Delta.Content + c.Message.Content
		for _, call := range append(c.Delta.Calls, c.Message.Calls...) {
			m.call += call.Function.Name
			m.arguments += call.Function.Arguments
		}
	}
	if v.Usage != nil {
		m.usage, m.prompt, m.output = true, v.Usage.Prompt, v.Usage.Output
	}
	return nil
}

// crowd is many clients at once, each with conversations of its own.
type crowd struct {
	clients   int
	front     string // address
	reference string // address of a worker that nothing happens to
	taps      *taps
	seed      uint64
	name      string // part of request ids
	tally     *tally
	failures  *counts
}

// run talks until ctx ends and returns when every client has its last answer.
func (c *crowd) run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range c.clients {
		wg.Go(func() { c.client(ctx, i) })
	}
	wg.Wait()
}

func (c *crowd) client(ctx context.Context, i int) {
	r := rand.New(rand.NewPCG(c.seed, uint64(i)))
	front, reference := &phone{addr: c.front}, &phone{addr: c.reference}
	defer front.hangUp()
	defer reference.hangUp()
	for n := 0; ctx.Err() == nil; {
		head := []message{{"system", prose(r, 30+r.IntN(100))}}
		for turn, last := 0, 1+r.IntN(6); turn < last && ctx.Err() == nil; turn++ {
			n++
			q := question{id: fmt.Sprintf("%s%s-%d-%d", chaosID, c.name, i, n), stream: r.IntN(4) != 0, usage: r.IntN(2) == 0}
			q.path, q.fields = "/v1/chat/completions", map[string]any{"model": "sim", "max_tokens": 10 + r.IntN(50), "ignore_eos": true}
			switch kind := r.IntN(10); {
			case kind == 0:
				q.path, q.fields["prompt"] = "/v1/completions", prose(r, 100)
			case kind == 1:
				q.fields["tools"] = []any{map[string]any{"type": "function", "function": map[string]any{"name": "look"}}}
				q.fields["tool_choice"] = "required"
				fallthrough
			default:
				head = append(head, message{"user", prose(r, 10+r.IntN(40))})
				q.fields["messages"] = head
			}
			text, ok := c.ask(front, reference, q)
			if !ok {
				sleep(ctx, 20*time.Millisecond)
				break
			}
			if _, chat := q.fields["messages"]; chat {
				head = append(head, message{"assistant", text})
			}
		}
	}
}

// ask makes one request and judges its answer. It returns the text of a whole one.
func (c *crowd) ask(front, reference *phone, q question) (text string, ok bool) {
	r := front.ask(q, q.stream)
	sent := c.taps.of(q.id)
	var want meaning
	if r.status == http.StatusOK && r.err == nil {
		// The tap may be a moment behind the client.
		_, _ = poll(5*time.Second, func() error {
			if sent = c.taps.of(q.id); len(sent) == 0 || !sent[len(sent)-1].whole {
				return errors.New("not seen whole")
			}
			return nil
		})
		reference.hangUp() // the engine closes what is idle for long
		right := reference.ask(q, false)
		var err error
		if want, err = meaningOf(right.body, false); right.err != nil || err != nil {
			c.tally.add(answer{outcome: truncated, reason: fmt.Sprintf("reference: %v, %v: %.200q", right.err, err, right.body)})
			return "", false
		}
	}
	o, reason := judge(q, r, sent, want)
	c.taps.forget(q.id)
	if o == failed {
		c.failures.add(reason)
	}
	c.tally.add(answer{outcome: o, reason: q.id + ": " + reason})
	return want.text, o == whole
}
