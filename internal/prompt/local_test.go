package prompt

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

const families = "../tokenizer/testdata"

// goldenNow is the clock of the goldens.
func goldenNow() time.Time { return time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC) }

func loadFamily(t testing.TB, family string) *Model {
	t.Helper()
	m, err := LoadModel(filepath.Join(families, family))
	if err != nil {
		t.Fatal(err)
	}
	m.Now = goldenNow
	return m
}

// templated are the families that have a chat template.
func templated(t testing.TB) (names []string) {
	t.Helper()
	goldens, err := filepath.Glob(filepath.Join(families, "*", "golden.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range goldens {
		raw, err := os.ReadFile(g)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), "\nformat ") {
			names = append(names, filepath.Base(filepath.Dir(g)))
		}
	}
	if len(names) < 8 {
		t.Fatalf("only %v have a template", names)
	}
	return names
}

func idsHash(ids []uint32) string {
	var b []byte
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return textHash(b)
}

func textHash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// conversations are request bodies by name.
func conversations(t *testing.T) map[string][]byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(families, "conversations.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for line := range strings.Lines(string(raw)) {
		var c struct {
			Name string
			Body json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		out[c.Name] = c.Body
	}
	return out
}

// TestModel_IsTransformers: bodies become the text and the tokens that transformers and
// tokenizers make of them behind an engine's preparation, in every family.
func TestModel_IsTransformers(t *testing.T) {
	bodies := conversations(t)
	for _, family := range templated(t) {
		t.Run(family, func(t *testing.T) {
			m := loadFamily(t, family)
			f, err := os.Open(filepath.Join(families, family, "golden.txt"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			rendered := map[string]string{}
			same, wrong := 0, 0
			lines := bufio.NewScanner(f)
			lines.Buffer(nil, 1<<22)
			for lines.Scan() {
				kind, rest, _ := strings.Cut(lines.Text(), " ")
				name, rest, _ := strings.Cut(rest, " ")
				body := bodies[name]
				switch kind {
				case "render":
					var want string
					if err := json.Unmarshal([]byte(rest), &want); err != nil {
						t.Fatal(err)
					}
					if got, err := m.Render(openai.Chat, body, StyleVLLM); err != nil || got != want {
						t.Errorf("%s: %v\n got %q\nwant %q", name, err, got, want)
					}
				case "chat":
					var count int
					var ids, text string
					if _, err := fmt.Sscan(rest, &count, &ids, &text); err != nil {
						t.Fatal(err)
					}
					got, err := m.Render(openai.Chat, body, StyleVLLM)
					rendered[name] = got
					if err != nil || textHash([]byte(got)) != text {
						t.Errorf("%s: rendered %q, %v", name, got, err)
						wrong++
						continue
					}
					tokens, err := m.Tokenize(openai.Chat, body, StyleVLLM)
					if err != nil || len(tokens) != count || idsHash(tokens) != ids {
						t.Errorf("%s: %d tokens of %q, want %d, %v", name, len(tokens), got, count, err)
						wrong++
						continue
					}
					same++
				case "error":
					if got, err := m.Render(openai.Chat, body, StyleVLLM); err == nil {
						t.Errorf("%s: rendered %q, transformers raises %s", name, got, rest)
					}
				}
			}
			if t.Logf("%d conversations equal, %d differ", same, wrong); same < 40 {
				t.Errorf("only %d conversations are equal", same)
			}
		})
	}
}

// talk is a conversation that changes as those of users do.
type talk struct {
	messages []string
	tools    []string
}

func (c *talk) body() []byte {
	b := `{"model":"m","messages":[` + strings.Join(c.messages, ",") + `]`
	if len(c.tools) > 0 {
		b += `,"tools":[` + strings.Join(c.tools, ",") + `]`
	}
	return []byte(b + "}")
}

var fragments = []string{"hello ", "Ünïcödé ", "<|im_end|>", "<think>", "\n\n", "   ", "12345 ", "你好", "🙂", "func main() {\n\t", "don't ", "e\u0301", "é", "\t", "</s>", "[INST]", "<end_of_turn>", "The quick brown fox "}

func someWords(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(12) {
		b.WriteString(strings.Repeat(fragments[r.IntN(len(fragments))], 1+r.IntN(3)))
	}
	if r.IntN(20) == 0 {
		return strings.Repeat(b.String(), 80)
	}
	return b.String()
}

func (c *talk) change(r *rand.Rand) {
	quoted := func() string { return string(openai.AppendString(nil, someWords(r))) }
	switch n, k := len(c.messages), r.IntN(12); {
	case k < 7 || n < 3: // the next turn
		if n > 0 {
			c.messages = append(c.messages, `{"role":"assistant","content":`+quoted()+`}`)
		}
		c.messages = append(c.messages, `{"role":"user","content":`+quoted()+`}`)
	case k == 7: // an edit
		i := 2 * r.IntN((n+1)/2)
		c.messages[i] = `{"role":"user","content":` + quoted() + `}`
	case k == 8: // cut back to an earlier turn
		c.messages = c.messages[:1+2*r.IntN(n/2)]
	case k == 9:
		c.tools = append(c.tools, fmt.Sprintf(`{"type":"function","function":{"name":"f%d","parameters":{"type":"object"}}}`, r.IntN(5)))
	case k == 10:
		c.tools = nil
	default: // a reply with reasoning
		c.messages[n-2] = `{"role":"assistant","reasoning":` + quoted() + `,"content":` + quoted() + `}`
	}
}

// localBuilder tokenises with the models of some families under their own names.
func localBuilder(t testing.TB, cfg Config, names ...string) *Builder {
	cfg.Models = NewModels(ModelsConfig{})
	if cfg.Now == nil {
		cfg.Now = goldenNow // a clock that stands: no deadline passes
	}
	for _, name := range names {
		cfg.Models.useAtOnce(name, loadFamily(t, name), StyleVLLM)
	}
	b := New(cfg)
	t.Cleanup(b.Close)
	return b
}

// TestLocal_IncrementalIsCold: what is made of a turn with all that is remembered of others
// is what is made of it alone: tokens and block hashes.
func TestLocal_IncrementalIsCold(t *testing.T) {
	talks := 150
	if testing.Short() {
		talks = 20
	}
	if os.Getenv("WARMROUTE_SOAK") != "" {
		talks = 10_000
	}
	names := templated(t)
	// The small memory makes evictions a part of the test.
	b := localBuilder(t, Config{MemoBytes: 200 << 10, CacheBytes: 50 << 10}, names...)
	cold := map[string]*Model{}
	for _, name := range names {
		cold[name] = loadFamily(t, name)
	}
	r := rand.New(rand.NewPCG(1, 2))
	turns, refused := 0, 0
	for n := range talks {
		name := names[n%len(names)]
		c := &talk{}
		if r.IntN(3) == 0 {
			c.messages = append(c.messages, `{"role":"user","content":"always the same opening"}`)
		}
		old := slices.Clone(c.messages)
		for range 3 + r.IntN(8) {
			if c.change(r); r.IntN(10) == 0 {
				c.messages, old = slices.Clone(old), slices.Clone(c.messages) // another branch
			}
			if len(c.messages) == 0 {
				continue
			}
			body := c.body()
			var req openai.Request
			if err := openai.ParseRequest(openai.Chat, body, &req); err != nil {
				t.Fatal(err)
			}
			want, err := cold[name].Tokenize(openai.Chat, body, StyleVLLM)
			salt := []string{"", "a", "b"}[r.IntN(3)]
			p := b.Build(context.Background(), &req, body, nil, kv.Namespace{Salt: salt}, name)
			if err != nil {
				if p.Source == kv.SourceLocal {
					t.Fatalf("%s: a template's error was not noticed: %v", name, err)
				}
				refused++
				continue
			}
			if p.Source != kv.SourceLocal || !slices.Equal(p.Tokens, want) || p.TokenCount != len(want) {
				t.Fatalf("%s, talk %d: source %v (%s), %d tokens, want %d\n%.2000s", name, n, p.Source, p.Reason, len(p.Tokens), len(want), body)
			}
			for _, size := range []int{16, 64} {
				if got, want := p.Chain(size), kv.AppendSequenceHashes(nil, want, size, p.Namespace.Seed()); !slices.Equal(got, want) {
					t.Fatalf("%s, talk %d: block hashes of size %d differ", name, n, size)
				}
			}
			turns++
			if m := b.local.memo; m.bytes() > m.max {
				t.Fatalf("the memo holds %d of %d bytes", m.bytes(), m.max)
			}
			if c := b.local.mu.cache; c.bytes > c.max {
				t.Fatalf("the cache holds %d of %d bytes", c.bytes, c.max)
			}
		}
	}
	t.Logf("%d turns of %d talks, %d refused by templates", turns, talks, refused)
	if known, fresh := testutil.ToFloat64(b.local.metrics.known), testutil.ToFloat64(b.local.metrics.fresh); known < fresh/4 {
		t.Errorf("%v bytes were known and %v fresh: hardly anything was remembered", known, fresh)
	}
	if turns < 2*talks {
		t.Errorf("only %d turns were compared", turns)
	}
}

// TestLocal_Hostile: what is meant to cost much gives a prefix of the right tokens, or no
// tokens and a reason.
func TestLocal_Hostile(t *testing.T) {
	names := templated(t)
	if testing.Short() {
		names = []string{"gemma", "qwen3"}
	}
	b := localBuilder(t, Config{}, names...)
	chat := func(content string) string {
		return `{"model":"m","messages":[{"role":"user","content":"first"},{"role":"assistant","content":"second"},{"role":"user","content":` + content + `}]}`
	}
	plain := func(s string) string { return chat(string(openai.AppendString(nil, s))) }
	many := `{"model":"m","messages":[` + strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"a"},{"role":"assistant","content":"b"},`, 50_000), ",") + `]}`
	for name, body := range map[string]string{
		"one letter":       plain(strings.Repeat("a", 1<<20)),
		"spaces":           plain(strings.Repeat(" ", 10<<20)),
		"lines":            plain(strings.Repeat("a line of text.\nb", 600_000)),
		"marks":            plain(strings.Repeat("e\u0301\u0327\u0302", 200_000)),
		"specials":         plain(strings.Repeat("<|im_start|><|im_end|>", 100_000)),
		"broken UTF-8":     chat("\"a\xff\xfe\xc3(\xe2\x82 b\""),
		"lone surrogates":  chat(`"a \ud800 b \udc00 \ud83d"`),
		"escapes":          chat(`"` + strings.Repeat(`\u0041\n`, 100_000) + `"`),
		"many messages":    many,
		"arguments":        `{"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"` + strings.Repeat("[", 5000) + `"}}]}]}`,
		"numbers":          `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1e999999,"b":` + strings.Repeat("9", 5000) + `}}}]}`,
		"recursive kwargs": `{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"messages":[],"tools":1,"bos_token":["x"]}}`,
	} {
		var req openai.Request
		if err := openai.ParseRequest(openai.Chat, []byte(body), &req); err != nil {
			if name != "broken UTF-8" {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		for _, family := range names {
			p := b.Build(context.Background(), &req, []byte(body), nil, kv.Namespace{}, family)
			if p.Source != kv.SourceLocal {
				if p.Reason == "" {
					t.Errorf("%s, %s: source %v without a reason", name, family, p.Source)
				}
				continue
			}
			if len(body) > 200<<10 && family != "qwen3" {
				continue // one cold run of each is enough
			}
			cold, err := loadFamily(t, family).Tokenize(openai.Chat, []byte(body), StyleVLLM)
			if err != nil || len(cold) < len(p.Tokens) || !slices.Equal(cold[:len(p.Tokens)], p.Tokens) {
				t.Errorf("%s, %s: %d tokens are no prefix of %d, %v", name, family, len(p.Tokens), len(cold), err)
			}
			if len(cold) > len(p.Tokens) && !strings.Contains(p.Reason, "first") {
				t.Errorf("%s, %s: a prefix without a reason: %q", name, family, p.Reason)
			}
		}
	}
}

// TestSegments_AreTheWholeText: a text in segments has the tokens of the text, also where
// added tokens overlap in white space and where nothing is valid for long.
func TestSegments_AreTheWholeText(t *testing.T) {
	bits := append([]string{"<lr>", " <lr>\n \n\n ", "\n\n", "\n\n\n", " ", "a\nb", strings.Repeat("a line\nof text ", 900)}, fragments...)
	names, rounds := append(templated(t), "flags"), 400
	if testing.Short() {
		names, rounds = []string{"flags", "gemma", "llama3"}, 60
	}
	for _, family := range names {
		b := localBuilder(t, Config{MemoBytes: 100 << 10}, family)
		m := loadFamily(t, family)
		r := rand.New(rand.NewPCG(5, 6))
		text := ""
		for range rounds {
			if text += bits[r.IntN(len(bits))]; r.IntN(30) == 0 || len(text) > 60<<10 {
				text = text[:len(text)/3]
			}
			text = strings.ToValidUTF8(text, "")
			got, _, read := b.local.tokens(m, 1, nil, []byte(text), goldenNow())
			if want := m.Encode(text); !slices.Equal(got, want) || read != len(text) {
				t.Fatalf("%s: %d tokens of %d bytes, want %d of %d: %.300q", family, len(got), read, len(want), len(text), text)
			}
		}
	}
}

// longTalk is a conversation of n messages and about so many bytes.
func longTalk(n, bytes int) *talk {
	c := &talk{}
	r := rand.New(rand.NewPCG(3, 4))
	words := strings.Fields("the proxy hands each request to the worker whose cache holds the longest part of its prompt, unless others wait there; func main() { fmt.Println(\"hello, 42 worlds\") }")
	for i := range n {
		var b strings.Builder
		for b.Len() < bytes/n {
			b.WriteString(words[r.IntN(len(words))])
			b.WriteByte(" \n"[r.IntN(12)/11])
		}
		c.messages = append(c.messages, fmt.Sprintf(`{"role":%q,"content":%s}`, []string{"user", "assistant"}[i%2], openai.AppendString(nil, b.String())))
	}
	return c
}

// BenchmarkLocal_NextTurn is a turn that goes on with a known conversation of 50 messages
// and about 100,000 tokens of the small vocabulary: rendered, tokenised and hashed. The
// body is parsed before.
func BenchmarkLocal_NextTurn(b *testing.B) {
	for _, family := range []string{"qwen3", "llama3", "gemma"} {
		b.Run(family, func(b *testing.B) {
			benchmarkTurn(b, family, 200<<10, false)
		})
	}
}

// BenchmarkLocal_Cold is the same without anything known.
func BenchmarkLocal_Cold(b *testing.B) {
	for _, family := range []string{"qwen3", "llama3", "gemma"} {
		b.Run(family, func(b *testing.B) {
			benchmarkTurn(b, family, 200<<10, true)
		})
	}
}

func benchmarkTurn(b *testing.B, family string, bytes int, cold bool) {
	builder := localBuilder(b, Config{}, family)
	c := longTalk(49, bytes)
	known := c.body()
	c.messages = append(c.messages, `{"role":"assistant","content":"Yes, it does."}`)
	tokens := 0
	turn := func(body []byte) {
		var req openai.Request
		if err := openai.ParseRequest(openai.Chat, body, &req); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		p := builder.Build(context.Background(), &req, body, nil, kv.Namespace{}, family)
		p.Chain(16)
		b.StopTimer()
		if p.Source != kv.SourceLocal || p.Reason != "" {
			b.Fatalf("%v: %s", p.Source, p.Reason)
		}
		tokens = p.TokenCount
	}
	turn(known)
	b.ResetTimer()
	b.StopTimer()
	for i := range b.N {
		if cold {
			builder.local = newSegments(64<<20, 256<<20, builder.seeds, builder.metrics, goldenNow)
		}
		next := *c
		next.messages = append(next.messages[:len(c.messages):len(c.messages)], fmt.Sprintf(`{"role":"user","content":"And number %d? %s"}`, i, strings.Repeat("tell me more ", 20)))
		turn(next.body())
	}
	b.ReportMetric(float64(tokens), "tokens")
}
