package testcluster_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// outcome is how an answer ended, as its client can tell.
type outcome int

const (
	whole     outcome = iota // all of it, and consistent in itself
	failed                   // the client saw an error
	truncated                // looks finished and is not: what may never happen
)

func (o outcome) String() string { return [...]string{"whole", "failed", "truncated"}[o] }

// message is one chat message.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chat is a conversation: a system prompt of its own and turns that repeat its history.
type chat struct {
	model    string
	stream   bool
	usage    bool // ask for usage in streams
	tokens   int  // length of each reply
	messages []message
	rand     *rand.Rand
}

// newChat begins a conversation whose first message has about words tokens. A reply has
// exactly as many tokens as the chat asks for: the simulated engine obeys ignore_eos.
func newChat(seed uint64, words, replyTokens int) *chat {
	r := rand.New(rand.NewPCG(seed, 0xc4a7))
	return &chat{model: "sim", stream: true, tokens: replyTokens, rand: r,
		messages: []message{{"system", prose(r, words)}}}
}

// prose returns text of n tokens of the simulated tokenizer, four bytes each.
func prose(r *rand.Rand, n int) string {
	b := make([]byte, 0, 4*n)
	for range n {
		b = append(b, byte('a'+r.IntN(26)), byte('a'+r.IntN(26)), byte('a'+r.IntN(26)), ' ')
	}
	return string(b)
}

// say adds the user's next message.
func (c *chat) say(words int) {
	c.messages = append(c.messages, message{"user", prose(c.rand, words)})
}

// body is the request for the next reply.
func (c *chat) body() []byte {
	q := map[string]any{"model": c.model, "messages": c.messages, "stream": c.stream, "max_tokens": c.tokens, "ignore_eos": true}
	if c.stream && c.usage {
		q["stream_options"] = map[string]bool{"include_usage": true}
	}
	b, err := json.Marshal(q)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

// answer is one reply and all that its client learned.
type answer struct {
	outcome outcome
	reason  string // of an outcome that is not whole
	status  int    // 0 without a response
	worker  string // X-Warmroute-Worker
	text    string
	cached  int // cached tokens; -1 unknown
	prompt  int // prompt tokens; -1 unknown
	ttft    time.Duration
}

// user is a client with connections of its own.
type user struct{ http *http.Client }

func newUser() *user {
	return &user{&http.Client{Transport: &http.Transport{DisableCompression: true}}}
}

func (u *user) close() { u.http.CloseIdleConnections() }

// turn sends the chat's next request to base, and adds a whole reply to its history.
func (u *user) turn(ctx context.Context, base string, c *chat) answer {
	a := u.send(ctx, base, c.body(), c.stream)
	c.check(&a)
	if a.outcome == whole {
		c.messages = append(c.messages, message{"assistant", a.text})
	}
	return a
}

// check finds whole answers that are not the reply that was asked for.
func (c *chat) check(a *answer) {
	switch {
	case a.outcome != whole:
	case len(a.text) != 4*c.tokens:
		a.outcome, a.reason = truncated, fmt.Sprintf("finished with %d of %d bytes of text", len(a.text), 4*c.tokens)
	case (!c.stream || c.usage) && a.prompt < 0:
		a.outcome, a.reason = truncated, "finished without usage"
	case c.stream && !c.usage && a.prompt >= 0:
		a.outcome, a.reason = truncated, "has usage that was not asked for"
	}
}

// send makes one request and judges its answer.
func (u *user) send(ctx context.Context, base string, body []byte, stream bool) answer {
	a := answer{cached: -1, prompt: -1}
	fail := func(o outcome, format string, args ...any) answer {
		a.outcome, a.reason = o, fmt.Sprintf(format, args...)
		return a
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return fail(failed, "%v", err)
	}
	req.Header.Set("Content-Type", "application/json")
	from := time.Now()
	resp, err := u.http.Do(req)
	if err != nil {
		return fail(failed, "%v", err)
	}
	defer resp.Body.Close()
	a.status, a.worker = resp.StatusCode, resp.Header.Get("X-Warmroute-Worker")
	if resp.StatusCode != http.StatusOK {
		b, err := io.ReadAll(resp.Body)
		if err == nil && !isError(b) {
			return fail(truncated, "status %d without an error body: %.200s", resp.StatusCode, b)
		}
		return fail(failed, "status %d: %.200s", resp.StatusCode, b)
	}
	if !stream {
		return a.full(resp.Body)
	}
	return a.events(resp.Body, from)
}

// full reads an answer that is one JSON object.
func (a answer) full(r io.Reader) answer {
	b, err := io.ReadAll(r)
	if err != nil {
		a.outcome, a.reason = failed, err.Error()
		return a
	}
	var v frame
	if err := json.Unmarshal(b, &v); err != nil || len(v.Choices) != 1 || v.Choices[0].Finish == nil {
		a.outcome, a.reason = truncated, fmt.Sprintf("complete body that is no answer (%v): %.200s", err, b)
		return a
	}
	a.text = v.Choices[0].Message.Content
	a.usage(v.Usage)
	return a
}

// frame is one event of a stream, or a whole answer.
type frame struct {
	Error   json.RawMessage `json:"error"`
	Choices []struct {
		Delta, Message struct {
			Content string `json:"content"`
		}
		Finish *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
}

type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Details *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (a *answer) usage(u *usage) {
	if u == nil {
		return
	}
	a.prompt = u.Prompt
	a.cached = 0 // SGLang leaves a zero out
	if u.Details != nil {
		a.cached = u.Details.Cached
	}
}

// events reads a stream to its end.
func (a answer) events(r io.Reader, from time.Time) answer {
	fail := func(o outcome, format string, args ...any) answer {
		a.outcome, a.reason = o, fmt.Sprintf(format, args...)
		return a
	}
	finished, done := false, false
	broken := "" // an error event
	lines := bufio.NewReader(r)
	var text strings.Builder
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			a.text = text.String()
			switch {
			case !errors.Is(err, io.EOF): // also io.ErrUnexpectedEOF: the body was aborted
				return fail(failed, "%v (%s)", err, broken)
			case broken != "":
				return fail(failed, "%s", broken)
			case strings.TrimSpace(line) != "":
				return fail(truncated, "ended within a line: %.200s", line)
			case !done || !finished:
				return fail(truncated, "ended without [DONE] (%v) or finish_reason (%v)", done, finished)
			}
			return a
		}
		data, ok := strings.CutPrefix(line, "data:")
		if !ok {
			continue
		}
		data = strings.TrimSpace(data)
		if data == "[DONE]" {
			if broken != "" {
				return fail(truncated, "[DONE] after an error event: %s", broken)
			}
			done = true
			continue
		}
		var f frame
		if err := json.Unmarshal([]byte(data), &f); err != nil {
			return fail(truncated, "event that is no JSON (%v): %.200s", err, data)
		}
		if len(f.Error) > 0 && string(f.Error) != "null" {
			broken = data
			continue
		}
		if done {
			return fail(truncated, "event after [DONE]: %.200s", data)
		}
		a.usage(f.Usage)
		for _, c := range f.Choices {
			if c.Delta.Content != "" && a.ttft == 0 {
				a.ttft = time.Since(from)
			}
			text.WriteString(c.Delta.Content)
			finished = finished || c.Finish != nil
		}
	}
}

// isError tells whether b is an error body, OpenAI's or SGLang's flat form of it.
func isError(b []byte) bool {
	var v struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	return json.Unmarshal(b, &v) == nil && (len(v.Error) > 0 || v.Message != "")
}
