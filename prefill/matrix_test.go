package prefill

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/prompt"
	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// family is a chat template and what its model writes.
type family struct {
	Tokenizer string // directory of a trained one
	// What the model writes around its reasoning, before an answer, for a call (NAME, ARGS
	// and ID are filled in) and at the end of an answer and of a call.
	Open, Close, Say, Call, End string
	CallEnd                     *string
	Kwargs                      map[string]any // that a thinking request has

	name  string
	model *prompt.Model
}

const trained = "../internal/tokenizer/testdata"

// loadFamily puts a template beside the tokenizer of a directory.
func loadFamily(t *testing.T, tokenizer, template string) *prompt.Model {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"tokenizer.json": "tokenizer.json", "tokenizer_config.json": "tokenizer_config.json"}
	for to, from := range files {
		raw, err := os.ReadFile(filepath.Join(tokenizer, from))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, to), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := prompt.LoadModel(dir)
	if err != nil {
		t.Fatal(err)
	}
	m.Now = func() time.Time { return time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC) }
	return m
}

// cell is one conversation of the matrix: a turn and the next.
type cell struct {
	scenario string
	echoed   bool // the client writes reasoning back
	fresh    bool // there is no earlier turn
	known    bool // another conversation came before
}

var scenarios = []string{"plain", "thinking", "tool loop", "after tool loop"}

// history are the first turn's messages, its reply and what follows it.
type history struct {
	before           []string // JSON
	reasoning, reply string
	call             bool
	next             string
	bare             bool // without system message and tools
}

// prose returns text of about n words that no template treats apart.
func prose(r *rand.Rand, n int) string {
	list := strings.Fields("the router reads which worker holds a prefix and sends each request where its first token comes soonest over and again until every block is warm")
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(list[r.IntN(len(list))])
	}
	return b.String()
}

const matrixTools = `[{"type":"function","function":{"name":"search","description":"Looks something up","parameters":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}}]`

// history makes the conversation of a cell. Every one has an earlier turn, so that its
// client's way of writing replies back can be seen.
func (c cell) history(bare bool) *history {
	r := rand.New(rand.NewPCG(7, uint64(len(c.scenario))))
	say := func(role string, n int) string {
		return fmt.Sprintf(`{"role":%q,"content":%s}`, role, quote(prose(r, n)))
	}
	thought := func() string {
		if !c.echoed || c.scenario == "plain" {
			return ""
		}
		return `,"reasoning":` + quote(prose(r, 200))
	}
	assistant := func() string {
		return fmt.Sprintf(`{"role":"assistant","content":%s%s}`, quote(prose(r, 120)), thought())
	}
	step := func(n int) []string {
		return []string{
			fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[%s]%s}`, matrixCall(n, prose(r, 3)), thought()),
			fmt.Sprintf(`{"role":"tool","tool_call_id":"call0000%d","content":%s}`, n, quote(prose(r, 150))),
		}
	}
	h := &history{bare: bare, reply: prose(r, 220), next: say("user", 30)}
	if !bare {
		h.before = append(h.before, say("system", 80))
	}
	h.before = append(h.before, say("user", 60))
	if !c.fresh {
		h.before = append(h.before, assistant(), say("user", 40))
	}
	if c.scenario != "plain" {
		h.reasoning = prose(r, 300)
	}
	switch c.scenario {
	case "tool loop":
		if !c.fresh {
			h.before = append(h.before, step(1)...)
		}
		if h.call = true; !c.fresh {
			h.reply = prose(r, 3) // a fresh one writes a file, say
		}
		h.next = fmt.Sprintf(`{"role":"tool","tool_call_id":"call00002","content":%s}`, quote(prose(r, 150)))
	case "after tool loop":
		h.before = append(append(h.before, step(1)...), step(2)...)
	}
	return h
}

func matrixCall(n int, query string) string {
	return fmt.Sprintf(`{"id":"call0000%d","type":"function","function":{"name":"search","arguments":%s}}`, n, quote(`{"query": "`+query+`"}`))
}

// body is a request with the first messages and more.
func (h *history) body(f *family, c cell, more ...string) []byte {
	b := `{"model":"m","stream":true,"messages":[` + strings.Join(append(h.before[:len(h.before):len(h.before)], more...), ",") + `]`
	if !h.bare {
		b += `,"tools":` + matrixTools
	}
	kwargs := map[string]any{"enable_thinking": false}
	if c.scenario != "plain" {
		kwargs = f.Kwargs
	}
	if len(kwargs) > 0 {
		raw, _ := json.Marshal(kwargs)
		b += `,"chat_template_kwargs":` + string(raw)
	}
	return []byte(b + "}")
}

// echo is the reply as the client writes it back.
func (h *history) echo(c cell) string {
	m := `{"role":"assistant","content":`
	if h.call {
		m += `null,"tool_calls":[` + matrixCall(2, h.reply) + `]`
	} else {
		m += quote(h.reply)
	}
	if c.echoed && h.reasoning != "" {
		m += `,"reasoning":` + quote(h.reasoning)
	}
	return m + "}"
}

// generated is what the model writes behind a prompt.
func (f *family) generated(prompt string, h *history) string {
	out := ""
	if h.reasoning != "" && f.Open != "" {
		if !strings.HasSuffix(strings.TrimRight(prompt, "\n"), strings.TrimSpace(f.Open)) {
			out = f.Open
		}
		out += h.reasoning + f.Close
	}
	end := f.End
	if h.call {
		if f.CallEnd != nil {
			end = *f.CallEnd
		}
		return out + strings.NewReplacer("NAME", "search", "ARGS", `{"query": "`+h.reply+`"}`, "ID", "call00002").Replace(f.Call) + end
	}
	return out + f.Say + h.reply + end
}

// result is what became of one cell.
type result struct {
	cell
	refused string // why the template takes no such conversation
	worth   bool   // there is a common prefix, and warming it gains enough
	gain    int    // tokens, whole blocks
	sent    bool   // a warm-up was sent
	true    bool   // it was a true prefix
	skipped string // why not
	cached  int    // tokens that the next turn found
	prompt  int
	warm    int // tokens before the next message's own text, whole blocks
}

const matrixBlock = 16

// play plays a cell through the Prefiller, a router and an engine.
func (f *family) play(t *testing.T, c cell) (r result) {
	r = result{cell: c}
	h := c.history(false)
	tokens := func(body []byte) []uint32 {
		ids, err := f.model.Tokenize(openai.Chat, body, prompt.StyleVLLM)
		if err != nil {
			return nil
		}
		return ids
	}
	first, second := h.body(f, c), h.body(f, c, h.echo(c), h.next)
	if (tokens(first) == nil || tokens(second) == nil) && !strings.Contains(c.scenario, "tool") {
		h = c.history(true) // neither system texts nor tools
		first, second = h.body(f, c), h.body(f, c, h.echo(c), h.next)
	}
	one, two := tokens(first), tokens(second)
	for _, body := range [][]byte{first, second} {
		if _, err := f.model.Render(openai.Chat, body, prompt.StyleVLLM); err != nil {
			r.refused = err.Error()
			return r
		}
	}
	text, _ := f.model.Render(openai.Chat, first, prompt.StyleVLLM)
	output := f.model.Encode(f.generated(text, h))
	// Another next message shows where this one's own text begins.
	other := tokens(h.body(f, c, h.echo(c), strings.Replace(h.next, `"content":"`, `"content":"Xy `, 1)))
	held := append(one[:len(one):len(one)], output[:len(output)-1]...)
	r.warm = max(common(two, other)-1, 0) / matrixBlock * matrixBlock
	r.gain = r.warm - common(held, two)/matrixBlock*matrixBlock
	r.worth = r.gain >= matrixBlock && float64(r.gain)/8000 >= minGain.Seconds()
	r.prompt = len(two)

	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, rigConfig{Prefill: Config{Default: ModeOn}, Engine: sim.EngineConfig{BlockSize: matrixBlock}})
		g.render = tokens
		defer g.close()
		if c.known {
			f.turn(g, elsewhere(first), h, output)
			time.Sleep(10 * time.Second)
			f.turn(g, elsewhere(second), h, output)
			time.Sleep(100 * time.Second)
		}
		before := len(g.warmups())
		f.turn(g, first, h, output)
		time.Sleep(10 * time.Second)
		if sent := g.warmups()[before:]; len(sent) > 0 {
			w := g.prompt(sent[0])
			r.sent, r.true = true, sent[0].Path != pathChat && common(w, two) == len(w) && len(w)%matrixBlock == 0
		}
		for reason := range g.counts() {
			r.skipped = reason
		}
		r.cached = f.turn(g, second, h, output)
	})
	return r
}

// elsewhere is the same request of another conversation.
func elsewhere(body []byte) []byte {
	return []byte(strings.Replace(string(body), `"content":"`, `"content":"Elsewhere: `, 1))
}

// turn plays one turn and returns how much of its prompt was cached.
func (f *family) turn(g *rig, body []byte, h *history, output []uint32) (cached int) {
	var v openai.Request
	if err := openai.ParseRequest(openai.Chat, body, &v); err != nil {
		g.t.Fatal(err)
	}
	p := g.identify(context.Background(), &v, body, kv.Namespace{})
	t := g.prefill.Arrived(Arrival{Request: &v, Body: body})
	lease, err := g.router.Route(context.Background(), &router.Request{Model: "m", Prompt: p, Stream: true, PinRank: -1, MaxTokens: -1})
	if err != nil {
		g.t.Fatal(err)
	}
	x := g.engines[lease.Worker().ID].submit(p.Tokens, output)
	<-x.first
	lease.FirstToken()
	<-x.done
	event := func(format string, args ...any) { t.Observe(openai.Event{Data: fmt.Appendf(nil, format, args...)}) }
	if h.reasoning != "" {
		event(`{"choices":[{"index":0,"delta":{"reasoning":%s}}]}`, quote(h.reasoning))
	}
	finish := "stop"
	if h.call {
		finish = "tool_calls"
		event(`{"choices":[{"index":0,"delta":{"tool_calls":[%s]}}]}`, matrixCall(2, h.reply))
	} else {
		event(`{"choices":[{"index":0,"delta":{"content":%s}}]}`, quote(h.reply))
	}
	event(`{"choices":[{"index":0,"delta":{},"finish_reason":%q}]}`, finish)
	u := openai.Usage{PromptTokens: len(p.Tokens), CompletionTokens: len(output), CachedTokens: x.seq.CachedTokens, ReasoningTokens: -1}
	lease.Done(router.Outcome{OK: true, CachedTokens: u.CachedTokens, PromptTokens: u.PromptTokens, OutputTokens: u.CompletionTokens})
	t.Finish(End{OK: true, Worker: lease.Worker(), Prompt: p, Usage: u})
	return x.seq.CachedTokens
}

// matrix plays every cell of the families, checks them, and returns a table: what was warmed
// in tokens, "–" where it is not worth it, "refused" where the template takes no such
// conversation.
func matrix(t *testing.T, families []*family) string {
	var table strings.Builder
	table.WriteString("| template |")
	for _, s := range scenarios {
		fmt.Fprintf(&table, " %s | echoed |", s)
	}
	fmt.Fprintf(&table, "\n|%s\n", strings.Repeat("---|", 1+2*len(scenarios)))
	worth, warmed, sent, right, refused := 0, 0, 0, 0, 0
	for _, f := range families {
		fmt.Fprintf(&table, "| %s |", f.name)
		for i := range 2 * len(scenarios) {
			r := f.play(t, cell{scenario: scenarios[i/2], echoed: i%2 == 1})
			r.check(t, f.name)
			shown := "–"
			switch {
			case r.refused != "":
				refused++
				shown = "refused"
			case r.sent:
				sent++
				shown = fmt.Sprint(r.gain)
			}
			if r.true {
				right++
			}
			if r.worth {
				worth++
				if r.sent {
					warmed++
				}
			}
			fmt.Fprintf(&table, " %s |", shown)
		}
		table.WriteByte('\n')
	}
	summary := fmt.Sprintf("%d templates, %d cells, %d refused by their template; %d worth a warm-up, %d of them warmed; %d sent, %d true prefixes",
		len(families), 2*len(scenarios)*len(families), refused, worth, warmed, sent, right)
	t.Log(summary)
	if right != sent || 20*warmed < 19*worth {
		t.Error("not every warm-up is true, or too few were sent")
	}
	return summary + "\n\n" + table.String()
}

// check tells what is wrong with a cell.
func (r *result) check(t *testing.T, name string) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s, %s, echoed %t: %s", name, r.scenario, r.echoed, fmt.Sprintf(format, args...))
	}
	switch {
	case r.refused != "":
	case r.sent && !r.true:
		fail("not a prefix")
	case r.sent && r.cached < r.warm:
		fail("%d of %d tokens cached", r.cached, r.warm)
	case r.sent:
	case r.skipped == "":
		fail("neither sent nor skipped")
	case r.worth:
		fail("worth %d tokens, not sent: %s", r.gain, r.skipped)
	}
}

// TestMatrix_TemplatesOfEachKind: for templates of every behaviour that is known, what is
// warmed is where the next prompt starts, and it is warmed wherever that gains enough.
func TestMatrix_TemplatesOfEachKind(t *testing.T) {
	t.Log(matrix(t, templates(t)))
}

// templates returns the families of testdata/templates.
func templates(t *testing.T) []*family {
	t.Helper()
	files, err := filepath.Glob("testdata/templates/*.jinja")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d templates, %v", len(files), err)
	}
	var families []*family
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f := &family{name: strings.TrimSuffix(filepath.Base(file), ".jinja")}
		head, _, _ := strings.Cut(strings.TrimPrefix(string(raw), "{#- "), " -#}")
		if err := json.Unmarshal([]byte(head), f); err != nil {
			t.Fatalf("%s: its first line says what its model writes: %v", file, err)
		}
		f.model = loadFamily(t, filepath.Join(trained, f.Tokenizer), string(raw))
		families = append(families, f)
	}
	return families
}
