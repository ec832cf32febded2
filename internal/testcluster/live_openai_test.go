package testcluster_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/sashabaranov/go-openai"
)

// TestLive_OpenAIClient talks to the proxy with a client library that others wrote.
func TestLive_OpenAIClient(t *testing.T) {
	t.Parallel()
	for _, like := range engines {
		t.Run(like, func(t *testing.T) {
			w1 := startWorker(t, "w1", eventsAndReplay, "--like", like, "--speed-up", "10", "--template", "thinking", "--lora", "sql-adapter")
			w2 := startWorker(t, "w2", eventsAndReplay, "--like", like, "--speed-up", "10", "--template", "thinking", "--lora", "sql-adapter")
			p := startProxy(t, "proxy", "-w", w1.flag(true), "-w", w2.flag(true), "--model-alias", "gpt-4o=sim")
			waitFor(t, "the proxy to be ready", p.isReady)
			cfg := openai.DefaultConfig("key")
			cfg.BaseURL = p.url + "/v1"
			useClient(t, openai.NewClientWithConfig(cfg))
		})
	}
}

func useClient(t *testing.T, client *openai.Client) {
	ctx := context.Background()
	models, err := client.ListModels(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range models.Models {
		names = append(names, m.ID)
	}
	slices.Sort(names)
	if want := []string{"gpt-4o", "sim", "sql-adapter"}; !slices.Equal(names, want) {
		t.Errorf("models are %q, not %q", names, want)
	}
	if m, err := client.GetModel(ctx, "sim"); err != nil || m.ID != "sim" {
		t.Errorf("model sim: %+v, %v", m, err)
	}

	for _, model := range names {
		history := []openai.ChatCompletionMessage{{Role: "system", Content: strings.Repeat("You are brief and kind. ", 60)}}
		for turn := range 3 {
			history = append(history, openai.ChatCompletionMessage{Role: "user", Content: "And what then?"})
			req := openai.ChatCompletionRequest{Model: model, Messages: history, MaxCompletionTokens: 200}
			resp, err := client.CreateChatCompletion(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			answer := resp.Choices[0].Message
			if answer.Content == "" || resp.Choices[0].FinishReason == "" || resp.Usage.CompletionTokens == 0 {
				t.Errorf("%s: answer is %+v", model, resp)
			}
			if d := resp.Usage.PromptTokensDetails; turn > 0 && (d == nil || d.CachedTokens < 256) {
				t.Errorf("%s, turn %d: usage is %+v, %+v", model, turn+1, resp.Usage, d)
			}
			if text := streamed(t, client, req); text != answer.Content {
				t.Errorf("%s: streamed %q, whole %q", model, text, answer.Content)
			}
			history = append(history, openai.ChatCompletionMessage{Role: "assistant", Content: answer.Content})
		}
	}

	completion, err := client.CreateCompletion(ctx, openai.CompletionRequest{Model: "sim", Prompt: "Once upon a time", MaxTokens: 12})
	if err != nil || len(completion.Choices) != 1 || completion.Usage == nil || completion.Usage.CompletionTokens == 0 {
		t.Errorf("completion is %+v, %v", completion, err)
	}
	_, err = client.CreateChatCompletion(ctx, openai.ChatCompletionRequest{Model: "gpt-5", Messages: []openai.ChatCompletionMessage{{Role: "user", Content: "hi"}}})
	var refused *openai.APIError
	if !errors.As(err, &refused) || refused.HTTPStatusCode != 404 || refused.Code != "model_not_found" || !strings.Contains(refused.Message, "sim") {
		t.Errorf("an unknown model gives %v", err)
	}
	_, err = client.CreateChatCompletion(ctx, openai.ChatCompletionRequest{Model: "sim", Messages: []openai.ChatCompletionMessage{{Role: "user", Content: "hi"}}, MaxCompletionTokens: 1 << 30})
	var unread *openai.RequestError // SGLang's flat error object is none of OpenAI's
	if !(errors.As(err, &refused) && refused.HTTPStatusCode == 400 || errors.As(err, &unread) && unread.HTTPStatusCode == 400) {
		t.Errorf("a worker's refusal gives %v", err)
	}
}

// streamed returns the content of the same answer as a stream.
func streamed(t *testing.T, client *openai.Client, req openai.ChatCompletionRequest) string {
	t.Helper()
	req.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	stream, err := client.CreateChatCompletionStream(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var text, reasoning strings.Builder
	usage, finish := false, false
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		usage = usage || resp.Usage != nil
		for _, c := range resp.Choices {
			text.WriteString(c.Delta.Content)
			reasoning.WriteString(c.Delta.ReasoningContent)
			finish = finish || c.FinishReason != ""
		}
	}
	if !usage || !finish {
		t.Errorf("stream ended with usage %v, finish %v", usage, finish)
	}
	return text.String()
}
