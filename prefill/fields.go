package prefill

// change is what happens to a top-level field of the client's body in a warm request.
type change uint8

const (
	keep   change = iota // as the client sent it: it may shape the prompt
	drop                 // side effects, cost, or sense only for a real answer
	limit                // exactly one of these stays, as 1
	choose               // a forced choice becomes "auto": the prompt is the same, the answer is not
	extend               // the assistant's message and a stub are appended
)

// fields lists every field that does not pass as it is. What is not listed is kept,
// known here or not: tools, template arguments, adapters, salts and session ids shape
// what the engine renders or where it stores it.
var fields = map[string]change{
	"messages": extend,

	"max_tokens":            limit,
	"max_completion_tokens": limit,
	"n_predict":             drop, // llama.cpp's own limit

	"tool_choice":   choose,
	"function_call": choose,

	// The answer is read whole and thrown away.
	"stream":         drop,
	"stream_options": drop,

	// More than one choice, or more tokens than one.
	"n":               drop,
	"best_of":         drop,
	"use_beam_search": drop,
	"min_tokens":      drop,
	"ignore_eos":      drop,
	"stop":            drop,
	"stop_token_ids":  drop,
	"prediction":      drop, // predicted output is billed
	"modalities":      drop,
	"audio":           drop,

	// Grammars are compiled before the first token.
	"response_format":           drop,
	"structured_outputs":        drop,
	"guided_json":               drop,
	"guided_regex":              drop,
	"guided_choice":             drop,
	"guided_grammar":            drop,
	"guided_decoding_backend":   drop,
	"guided_whitespace_pattern": drop,
	"json_schema":               drop,
	"regex":                     drop,
	"ebnf":                      drop,
	"grammar":                   drop,
	"structural_tag":            drop,

	// Work per token, or a prompt that bypasses the prefix cache.
	"logprobs":                     drop,
	"top_logprobs":                 drop,
	"prompt_logprobs":              drop,
	"echo":                         drop,
	"return_token_ids":             drop,
	"return_hidden_states":         drop,
	"return_routed_experts":        drop,
	"return_meta_info":             drop,
	"return_cached_tokens_details": drop,

	// Side effects.
	"store":              drop,
	"metadata":           drop, // belongs to store
	"background":         drop,
	"service_tier":       drop,
	"web_search_options": drop,
	"priority":           drop,
	"kv_transfer_params": drop,
	"bootstrap_host":     drop,
	"bootstrap_port":     drop,
	"bootstrap_room":     drop,
	"data_parallel_rank": drop, // the header names the rank
	"routed_dp_rank":     drop,

	// Ids of this one request.
	"request_id": drop,
	"rid":        drop,
}

// implied lists the fields that a request of token ids has no need of: what they say of the
// prompt is in the ids already, and the rest only shapes an answer that nobody reads. What
// is neither here nor in the engine's own list (native) makes the warm-up a chat: it may
// say where the engine stores the prompt, or cut it.
var implied = set("messages", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls",
	"max_tokens", "max_completion_tokens", "n_predict",
	"chat_template", "chat_template_kwargs", "reasoning_effort", "reasoning", "thinking", "enable_thinking", "include_reasoning",
	"thinking_token_budget", "documents", "add_generation_prompt", "continue_final_message", "add_special_tokens",
	"separate_reasoning", "stream_reasoning", "verbosity",
	"temperature", "top_p", "top_k", "min_p", "typical_p", "top_n_sigma", "seed", "logit_bias",
	"repetition_penalty", "repeat_penalty", "repeat_last_n", "frequency_penalty", "presence_penalty", "length_penalty",
	"include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens",
	"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "nvext")

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// headers lists the header fields that a warm request does not take over, in lower case.
var headers = map[string]bool{
	"x-request-id":          true,
	"idempotency-key":       true,
	"x-idempotency-key":     true,
	"x-speculative-prefill": true,
	"x-data-parallel-rank":  true,
	"traceparent":           true, // appendTrace writes it anew
	"tracestate":            true,
	"b3":                    true,
	"x-b3-traceid":          true,
	"x-b3-spanid":           true,
	"x-b3-parentspanid":     true,
	"x-b3-sampled":          true,
}
