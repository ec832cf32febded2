//go:build real

package openai

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReal_RecordedResponses reads each recorded response and compares with what
// encoding/json finds in it.
func TestReal_RecordedResponses(t *testing.T) {
	dir := os.Getenv("WARMROUTE_DATA")
	if dir == "" {
		t.Fatal("WARMROUTE_DATA is not set; it names the folder that holds openai/openai-responses.jsonl")
	}
	raw, err := os.ReadFile(filepath.Join(dir, "openai", "openai-responses.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(bytes.NewReader(raw))
	sc.Buffer(nil, 64<<20)
	whole, streams, others := 0, 0, 0
	for sc.Scan() {
		var rec struct {
			ID     string
			Body   json.RawMessage // a string, or the object itself
			Status int
		}
		if err := json.Unmarshal(sc.Bytes(), &rec); err != nil {
			t.Fatal(err)
		}
		if rec.Body[0] == '"' {
			rec.Body = Unescape(nil, rec.Body[1:len(rec.Body)-1])
		}
		switch {
		case bytes.HasPrefix(rec.Body, []byte("data:")):
			streams++
			got := follow(rec.Body, nil, 1)
			if cut := follow(rec.Body, []int{len(rec.Body) / 3, len(rec.Body) / 2}, 1); cut != got {
				t.Errorf("%s: %s, cut %s", rec.ID, got, cut)
			}
			if rec.Status == 200 && (!strings.Contains(got, "finished=1") || !strings.Contains(got, "unread=0")) {
				t.Errorf("%s: %s", rec.ID, got)
			}
		case json.Valid(rec.Body):
			whole++
			var s Stream
			if err := ParseResponse(rec.Body, 1, &s); err != nil {
				t.Errorf("%s: %v", rec.ID, err)
			}
			var want struct {
				Choices []struct {
					FinishReason string `json:"finish_reason"`
				}
				Usage *struct {
					Prompt     int `json:"prompt_tokens"`
					Completion int `json:"completion_tokens"`
					Details    struct {
						Cached *int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				}
			}
			if err := json.Unmarshal(rec.Body, &want); err != nil {
				continue
			}
			if s.HasUsage != (want.Usage != nil) || len(want.Choices) > 0 && s.Finish != want.Choices[0].FinishReason || s.Failed != (rec.Status >= 400) {
				t.Errorf("%s: %+v", rec.ID, s)
			}
			if u := want.Usage; u != nil {
				cached := -1
				if u.Details.Cached != nil {
					cached = *u.Details.Cached
				}
				if s.Usage.PromptTokens != u.Prompt || s.Usage.CompletionTokens != u.Completion || s.Usage.CachedTokens != cached {
					t.Errorf("%s: usage %+v, want %+v", rec.ID, s.Usage, *u)
				}
			}
		default:
			others++
		}
	}
	t.Logf("%d whole responses, %d streams, %d others", whole, streams, others)
	if whole < 160 {
		t.Errorf("only %d responses", whole)
	}
}
