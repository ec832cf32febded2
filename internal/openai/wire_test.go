package openai

import (
	"encoding/json"
	"testing"
)

func TestAppendError(t *testing.T) {
	got := string(AppendError(nil, "model \"x\" is\nnot served\x00\xff", "NotFoundError", "model", "model_not_found"))
	want := `{"error":{"message":"model \"x\" is\nnot served\u0000` + "\ufffd" + `","type":"NotFoundError","param":"model","code":"model_not_found"}}`
	if got != want || !json.Valid([]byte(got)) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got = string(AppendError(nil, "busy", "rate_limit_error", "", ""))
	if want := `{"error":{"message":"busy","type":"rate_limit_error","param":null,"code":null}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestModelList_RoundTrip(t *testing.T) {
	in := `{"object":"list","data":[{"id":"a","object":"model","created":1,"owned_by":"vllm","root":"org/a","max_model_len":4096,"permission":[]},` +
		`{"id":"lora","object":"model","created":1,"owned_by":"vllm","parent":"a","max_model_len":null}]}`
	var l ModelList
	if err := json.Unmarshal([]byte(in), &l); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(l)
	want := `{"object":"list","data":[{"id":"a","object":"model","created":1,"owned_by":"vllm","root":"org/a","max_model_len":4096},` +
		`{"id":"lora","object":"model","created":1,"owned_by":"vllm","parent":"a"}]}`
	if err != nil || string(out) != want {
		t.Errorf("got  %s (%v)\nwant %s", out, err, want)
	}
}
