//go:build real

package prompt

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// realLines calls f with every line of a file in the folder that WARMROUTE_DATA names.
func realLines(t *testing.T, file string, f func(line []byte)) {
	t.Helper()
	dir := os.Getenv("WARMROUTE_DATA")
	if dir == "" {
		t.Fatal("WARMROUTE_DATA is not set; it names the folder that holds openai/openai-requests.jsonl")
	}
	raw, err := os.ReadFile(filepath.Join(dir, "openai", file))
	if err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(bytes.NewReader(raw))
	sc.Buffer(nil, 64<<20)
	for sc.Scan() {
		f(sc.Bytes())
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestReal_RecordedBodiesHaveAnIdentity: each of the 195 recorded bodies passes the
// edits unchanged where nothing of it is ours, and gets text blocks or a reason.
func TestReal_RecordedBodiesHaveAnIdentity(t *testing.T) {
	b := New(Config{})
	defer b.Close()
	total, media, blocks, blocked, exact := 0, 0, 0, 0, 0
	var refused []string
	for _, file := range []string{"openai-requests.jsonl", "openai-requests-multimodal-large.jsonl"} {
		realLines(t, file, func(line []byte) {
			var rec struct {
				ID, Path string
				Status   int
				Body     json.RawMessage
			}
			if err := json.Unmarshal(line, &rec); err != nil {
				t.Fatal(err)
			}
			total++
			kind := openai.Chat
			if filepath.Base(rec.Path) == "completions" && filepath.Base(filepath.Dir(rec.Path)) != "chat" {
				kind = openai.Completions
			}
			var v openai.Request
			if err := openai.ParseRequest(kind, rec.Body, &v); err != nil {
				refused = append(refused, rec.ID+": "+err.Error())
				if rec.Status != 400 {
					t.Errorf("%s: %v, but OpenAI answered %d", rec.ID, err, rec.Status)
				}
				return
			}
			e := openai.Edit{Model: v.Model, RemoveHints: true}
			if out := openai.Rewrite(nil, rec.Body, &v, e); e.Needed(&v) || !bytes.Equal(out, rec.Body) {
				t.Errorf("%s: bytes changed", rec.ID)
			}
			p := b.Build(context.Background(), &v, rec.Body, nil, kv.Namespace{}, v.Model)
			switch p.Source {
			case kv.SourceClient:
				if len(p.Tokens) == 0 || len(p.Tokens) != p.TokenCount {
					t.Errorf("%s: %+v", rec.ID, p)
				}
			case kv.SourceText:
				if p.TokenCount == 0 || p.Reason == "" {
					t.Errorf("%s: %+v", rec.ID, p)
				}
			default:
				if p.Reason == "" {
					t.Errorf("%s: %+v", rec.ID, p)
				}
			}
			if v.Multimodal {
				media++
			}
			if blocks += len(p.Text); len(p.Text) > 0 {
				blocked++
			}
			// The engine's way: whole tokens where all is text.
			p = b.Build(context.Background(), &v, rec.Body, &engine{}, kv.Namespace{}, v.Model)
			if !v.Multimodal && !p.Exact() && p.Reason == "" {
				t.Errorf("%s: source %v, %s", rec.ID, p.Source, p.Reason)
			}
			if p.Source == kv.SourceEngine {
				exact++
			}
			if v.Multimodal && p.Reason == "" {
				t.Errorf("%s: no reason for a prompt with media", rec.ID)
			}
		})
	}
	t.Logf("%d bodies, %d with media, %d of at least one block, %d text blocks, %d with engine tokens, refused: %q", total, media, blocked, blocks, exact, refused)
	if total != 195 {
		t.Errorf("%d bodies, want 195", total)
	}
}

// TestReal_ConversationsExtendTheirForm: every recorded conversation, replayed turn by
// turn, keeps the text chain of its earlier turns.
func TestReal_ConversationsExtendTheirForm(t *testing.T) {
	b := New(Config{})
	conversations, turns := 0, 0
	realLines(t, "recorded-multiturn.jsonl", func(line []byte) {
		var rec struct {
			ID       string
			Messages []json.RawMessage
			Tools    json.RawMessage
		}
		if err := json.Unmarshal(line, &rec); err != nil {
			t.Fatal(err)
		}
		conversations++
		var last *kv.Prompt
		for n := 1; n <= len(rec.Messages); n++ {
			body, _ := json.Marshal(map[string]any{"model": "m", "messages": rec.Messages[:n], "tools": rec.Tools})
			var v openai.Request
			if err := openai.ParseRequest(openai.Chat, body, &v); err != nil {
				t.Fatalf("%s: %v", rec.ID, err)
			}
			p := b.Build(context.Background(), &v, body, nil, kv.Namespace{}, "m")
			if last != nil && common(last.Text, p.Text) != len(last.Text) {
				t.Errorf("%s: turn %d shares %d of %d blocks", rec.ID, n, common(last.Text, p.Text), len(last.Text))
			}
			last = p
			turns++
		}
	})
	t.Logf("%d conversations, %d turns", conversations, turns)
	if conversations != 36 {
		t.Errorf("%d conversations, want 36", conversations)
	}
}
