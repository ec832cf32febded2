package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/prompt"
)

// TestTokenize_ReadsAnyAnswer: what is not a list of token ids is none, and never a wrong
// one.
func TestTokenize_ReadsAnyAnswer(t *testing.T) {
	render := servePaths(t, map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.33.0"}`, "/metrics": fmt.Sprintf(vllmMetrics, "True"), "/health": "{}"})
	f, _ := startFleet(t, FleetConfig{Workers: []WorkerConfig{{ID: "w", URL: render.URL}}})
	eventually(t, "the worker is known", func() bool { return f.Status()[0].Healthy })
	for answer, want := range map[string]string{
		`{"token_ids":[1, 2 ,3]}`:    "[1 2 3] 0",
		`{"token_ids":[]}`:           "[] 0",
		`{"token_ids":[4294967295]}`: "[4294967295] 0",
		`{"x":{"token_ids":[9]},"token_ids":[1,2,3,4],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"video":null,"image":[7,{"length":2},{"length":1,"offset":2}]}}}`: "[1 2 3 4] 2",
		`{"token_ids":[1],"features":null}`:                          "[1] 0",
		`{"token_ids":[1],"features":{"mm_placeholders":null}}`:      "[1] 0",
		`{"token_ids":[1],"pad":"` + strings.Repeat("x", 500) + `"}`: "[1] 0",
		`{"token_ids":[4294967296]}`:                                 "",
		`{"token_ids":[-1]}`:                                         "",
		`{"token_ids":[1.5]}`:                                        "",
		`{"token_ids":[1,null,2]}`:                                   "",
		`{"token_ids":null}`:                                         "",
		`{"token_ids":"1"}`:                                          "",
		`{"token_ids":[1,2`:                                          "",
		`[1,2]`:                                                      "",
		`<html>`:                                                     "",
	} {
		render.set("/v1/chat/completions/render", answer)
		w := f.workers()[0]
		got, err := renderChat(context.Background(), w, []byte(`{}`))
		if want == "" {
			if err == nil || len(got.IDs) > 0 {
				t.Errorf("%s: %v", answer, got)
			}
		} else if err != nil || fmt.Sprint(got.IDs, got.Prefix) != want {
			t.Errorf("%s: %v %d %v, want %s", answer, got.IDs, got.Prefix, err, want)
		}
	}
}

// A model without a tokenizer costs its requests nothing, until it is asked again.
func TestTokenizer_IsNilWhereNoneIsLeft(t *testing.T) {
	s := servePaths(t, map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.33.0"}`, "/metrics": fmt.Sprintf(vllmMetrics, "True"), "/health": "{}"})
	f, _ := startFleet(t, FleetConfig{Workers: []WorkerConfig{{ID: "w", URL: s.URL}}})
	eventually(t, "the worker is known", func() bool { return f.Status()[0].Healthy })
	if f.Tokenizer("unknown", openai.Chat) != nil {
		t.Error("a model that nobody serves has a tokenizer")
	}
	if f.Tokenizer("m", openai.Chat) == nil {
		t.Fatal("a worker that was not asked yet has no tokenizer")
	}
	if _, err := f.Tokenize(context.Background(), "m", openai.Chat, []byte(`{}`)); err == nil {
		t.Fatal("tokens from nowhere")
	}
	if f.Tokenizer("m", openai.Chat) != nil {
		t.Error("both endpoints answered 404, yet a tokenizer is left")
	}
	if f.Tokenizer("m", openai.Completions) == nil {
		t.Error("what chat was refused holds for completions too")
	}
	f.workers()[0].tok.kinds[openai.Chat].until.Store(1) // ten minutes later
	if f.Tokenizer("m", openai.Chat) == nil {
		t.Error("a refusal is never forgotten")
	}
}

func BenchmarkReadIDs(b *testing.B) {
	for _, n := range []int{256, 75_000} {
		ids := make([]uint32, n)
		for i := range ids {
			ids[i] = rand.Uint32N(128_000)
		}
		raw, _ := json.Marshal(ids)
		b.Run(fmt.Sprintf("ids=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				var r openai.Reader
				r.Reset(raw, openai.Span{End: len(raw)})
				if got := readIDs(&r, raw); len(got) != n {
					b.Fatalf("%d ids", len(got))
				}
			}
		})
	}
}

// TestStyled_AsksOnlyItsOwn: the tokens of a style come from a worker whose engine has it.
func TestStyled_AsksOnlyItsOwn(t *testing.T) {
	v := servePaths(t, map[string]string{"/v1/models": vllmModels, "/version": `{"version":"0.33.0"}`, "/metrics": fmt.Sprintf(vllmMetrics, "True"), "/health": "{}", "/tokenize": `{"tokens":[1]}`})
	g := servePaths(t, map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"sglang"}]}`, "/server_info": sglangInfo, "/health": "{}", "/v1/tokenize": `{"tokens":[2]}`})
	f, _ := startFleet(t, FleetConfig{Workers: []WorkerConfig{{ID: "v", URL: v.URL}, {ID: "s", URL: g.URL}}})
	eventually(t, "the workers are known", func() bool { return f.Status()[0].Healthy && f.Status()[1].Healthy })
	for style, want := range map[prompt.Style]uint32{prompt.StyleVLLM: 1, prompt.StyleSGLang: 2} {
		for range 4 {
			got, err := f.Styled(style).Tokenize(context.Background(), "m", openai.Completions, []byte(`{"prompt":"x"}`))
			if err != nil || len(got.IDs) != 1 || got.IDs[0] != want {
				t.Errorf("style %d: %v, %v", style, got.IDs, err)
			}
		}
	}
}
