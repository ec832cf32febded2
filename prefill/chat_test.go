package prefill

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// chat is one client's conversation.
type chat struct {
	rig      *rig
	name     string
	key      string
	hint     string     // header
	via      *Prefiller // of the proxy that the next turn comes to; nil: the rig's
	messages []string
	calls    int
}

// say is one turn of a chat.
type say struct {
	User      string // or a tool's answer after a call
	Reasoning string
	Reply     string
	Call      string // arguments of a tool call
	Finish    string // "stop", or "tool_calls" with Call
	Output    int    // tokens that the engine generates at most; 0: all of the reply
	Failed    bool   // the client does not get the end
	Usage     bool   // hides cached tokens
	N         int
}

// outcome is what the client saw of a turn.
type outcome struct {
	State  string
	Worker string
	TTFT   time.Duration
	Prompt int
	Cached int
	// Of a warm-up that this turn cancelled: tokens that it had added by then, as events
	// told.
	Added int
	Live  int // tokens that were there before it
}

func quote(s string) string { return string(openai.AppendString(nil, s)) }

// turn plays one turn from the request to the end of the answer.
func (c *chat) turn(s say) outcome {
	g := c.rig
	last := ""
	if n := len(c.messages); n > 0 {
		last = c.messages[n-1]
	}
	if strings.Contains(last, `"tool_calls"`) {
		c.messages = append(c.messages, fmt.Sprintf(`{"role":"tool","tool_call_id":"call-%d","content":%s}`, c.calls, quote(s.User)))
	} else {
		c.messages = append(c.messages, fmt.Sprintf(`{"role":"user","content":%s}`, quote(s.User)))
	}
	body := fmt.Appendf(nil, `{"model":"m","stream":true,"n":%d,"messages":[%s]}`, max(s.N, 1), strings.Join(c.messages, ","))
	var v openai.Request
	if err := openai.ParseRequest(openai.Chat, body, &v); err != nil {
		g.t.Fatal(err)
	}
	begin := time.Now()
	prompt := g.identify(context.Background(), &v, body, kv.Namespace{})
	warmer := cmp.Or(c.via, g.prefill)
	t := warmer.Arrived(Arrival{Request: &v, Body: body, Key: c.key, Hint: c.hint})
	g.settled()
	added, live := 0, 0
	if t != nil && t.prev != nil && t.prev.warm.cancelled {
		live = t.prev.warm.live
		added = g.holds(t.prev.warm.worker.ID, prompt) - live
	}
	lease, err := g.router.Route(context.Background(), &router.Request{
		Model: "m", Key: c.key, Prompt: prompt, Stream: true, FirstTurn: v.FirstTurn, PinRank: -1, MaxTokens: -1,
	})
	if err != nil {
		g.t.Fatal(err)
	}
	w := lease.Worker()
	warmer.Yield(w)
	t.Routed(lease, prompt)
	g.settled()
	g.logf("%s  request  %s  %s", c.name, w, t.State())
	output := generation(s.Reasoning, s.Reply, s.Call)
	if s.Output > 0 {
		output = output[:min(s.Output, len(output))]
	}
	e := g.engine(w.ID)
	x := e.submit(render(body), output)
	<-x.first
	ttft := time.Since(begin)
	lease.FirstToken()
	if !g.thinking && s.Reasoning != "" {
		panic("a plain template with reasoning")
	}
	<-x.done
	lease.Progress(len(output))
	c.observe(t, &s)
	u := openai.Usage{PromptTokens: len(x.seq.Tokens), CompletionTokens: len(output), CachedTokens: x.seq.CachedTokens, ReasoningTokens: -1}
	lease.Done(router.Outcome{OK: true, CachedTokens: u.CachedTokens, PromptTokens: u.PromptTokens, OutputTokens: u.CompletionTokens})
	o := outcome{t.State(), w.ID, ttft, u.PromptTokens, u.CachedTokens, added, live}
	if s.Usage {
		u.CachedTokens = -1
	}
	g.logf("%s  finished %s  cached=%d of %d  ttft=%dms", c.name, w, x.seq.CachedTokens, len(x.seq.Tokens), ttft.Milliseconds())
	t.Finish(End{OK: !s.Failed, Worker: w, Prompt: prompt, TTFT: ttft, Usage: u, Header: []byte("X-Session-Id: " + c.name + "\r\n")})
	t.Finish(End{}) // a second call does nothing
	return o
}

// observe streams the reply to the Turn and appends it to the client's history.
func (c *chat) observe(t *Turn, s *say) {
	event := func(format string, args ...any) { t.Observe(openai.Event{Data: fmt.Appendf(nil, format, args...)}) }
	event(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`)
	if s.Reasoning != "" {
		event(`{"choices":[{"index":0,"delta":{"reasoning":%s}}]}`, quote(s.Reasoning))
	}
	for i := range max(s.N, 1) {
		if s.Reply != "" {
			event(`{"choices":[{"index":%d,"delta":{"content":%s}}]}`, i, quote(s.Reply))
		}
	}
	message := fmt.Sprintf(`{"role":"assistant","content":%s}`, quote(s.Reply))
	finish := "stop"
	if s.Call != "" {
		c.calls++
		finish = "tool_calls"
		call := fmt.Sprintf(`[{"index":0,"id":"call-%d","type":"function","function":{"name":"f","arguments":%s}}]`, c.calls, quote(s.Call))
		event(`{"choices":[{"index":0,"delta":{"tool_calls":%s}}]}`, call)
		message = fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":%s}`, call)
	}
	if s.Finish != "" {
		finish = s.Finish
	}
	event(`{"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]}`, finish)
	event(`[DONE]`)
	c.messages = append(c.messages, message)
}
