//go:build interop

package interop

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/prompt"
)

// now is the clock of the goldens.
func now() time.Time { return time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC) }

// bodies are the request bodies of the shared conversations by name.
func bodies(t *testing.T) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, line := range lines(t, filepath.Join("..", "testdata", "conversations.jsonl")) {
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

// TestChats_Equal takes request bodies to token ids and compares text and ids with what
// transformers renders and tokenizers encodes.
func TestChats_Equal(t *testing.T) {
	bodies := bodies(t)
	each(t, func(t *testing.T, dir string) {
		m, err := prompt.LoadModel(dir)
		if err != nil {
			t.Fatal(err)
		}
		m.Now = now
		rendered := map[string]string{}
		golden := lines(t, filepath.Join(dir, "golden.txt"))
		for _, line := range golden {
			if f := strings.SplitN(line, " ", 3); f[0] == "render" {
				var text string
				if err := json.Unmarshal([]byte(f[2]), &text); err != nil {
					t.Fatal(err)
				}
				rendered[f[1]] = text
			}
		}
		var chats, errors, bad int
		fail := func(format string, args ...any) {
			if bad++; bad <= 5 {
				t.Errorf(format, args...)
			}
		}
		for _, line := range golden {
			f := strings.Fields(line)
			switch f[0] {
			case "chat":
				chats++
				text, err := m.Render(openai.Chat, bodies[f[1]], prompt.StyleVLLM)
				if err != nil || text != rendered[f[1]] {
					fail("%s: %v\nwant %q\ngot  %q", f[1], err, rendered[f[1]], text)
					continue
				}
				ids, err := m.Tokenize(openai.Chat, bodies[f[1]], prompt.StyleVLLM)
				if err != nil || strconv.Itoa(len(ids)) != f[2] || digest(littleEndian(nil, ids)) != f[3] {
					fail("%s: %d ids, %v; want %s", f[1], len(ids), err, f[2])
				}
			case "error":
				errors++
				if text, err := m.Render(openai.Chat, bodies[f[1]], prompt.StyleVLLM); err == nil {
					fail("%s renders %q, want an error", f[1], text)
				}
			}
		}
		if chats < minChats {
			t.Fatalf("%d conversations, want at least %d", chats, minChats)
		}
		t.Logf("%s: %d conversations from body to ids and %d errors, %d differ", filepath.Base(dir), chats, errors, bad)
	})
}
