package proxy

import (
	"testing"

	"github.com/warmroute/warmroute/internal/openai"
)

// TestNativeUsage reads what the engines' own endpoints say of a warm-up.
func TestNativeUsage(t *testing.T) {
	f := func(body string, prompt, output, cached int) {
		t.Helper()
		want := openai.Usage{PromptTokens: prompt, CompletionTokens: output, CachedTokens: cached, ReasoningTokens: -1}
		if got := nativeUsage([]byte(body)); got != want {
			t.Errorf("%s: %+v, want %+v", body, got, want)
		}
	}
	f(`{"text":"","output_ids":[],"meta_info":{"id":"a","finish_reason":{"type":"length","length":0},"prompt_tokens":96,"completion_tokens":0,"cached_tokens":64}}`, 96, 0, 64)
	f(`{"content":"","tokens_predicted":0,"tokens_evaluated":96,"stop_type":"limit","timings":{"cache_n":64,"prompt_n":32}}`, 96, 0, 64)
	f(`{"content":"","tokens_evaluated":96}`, 96, -1, -1)
	f(`{"what":"else"}`, -1, -1, -1)
	f(`[]`, -1, -1, -1)
}

// TestWarmUsage_Void: what is no answer of an engine counts as none, whatever its status.
func TestWarmUsage_Void(t *testing.T) {
	for body, want := range map[string]bool{
		`{"choices":[{"index":0,"message":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`: false,
		`{"text":"","meta_info":{"prompt_tokens":96}}`:                                                          false,
		`{"content":"","tokens_evaluated":96}`:                                                                  false,
		"data: {\"choices\":[]}\n\n":                                                                            false,
		`{"error":{"message":"no such path"}}`:                                                                  true,
		`{"error":"no such path"}`:                                                                              true,
		`<html>404</html>`:                                                                                      true,
		`{"choices":[{"index":0,"message":{"content":"aaaaaaaa`:                                                 true,
		``: true,
	} {
		if u, void := warmUsage([]byte(body)); void != want || void && u != openai.NoUsage {
			t.Errorf("%s: void %v, usage %+v", body, void, u)
		}
	}
}
