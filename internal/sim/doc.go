// Package sim is an engine without a GPU that behaves like one where a router can see
// it. It answers the question "what would vLLM or SGLang have done?".
//
//	Seq ─Submit─▶ waiting ─Begin─▶ running ─End─▶ Progress
//	                 ▲               │ │
//	                 └── preempted ◀─┘ ▼
//	                      block pool, prefix cache ─▶ Events
//
//	HTTP (vLLM or SGLang) ─▶ template ─▶ tokens ─▶ Engine of a DP rank, on the clock
//	        ◀─ SSE, JSON ◀─────────────── Progress ──┘ └─ Events ─▶ ZMQ publisher
//
// Engine is one DP rank and pure: no clock, no goroutine, no randomness of its own.
// Its caller asks Begin for the next step, lets that much time pass, and calls End.
// Server puts one Engine per rank behind the real wires and paces it in real time.
//
// A client that goes ends its sequences, as in the engines: while a request waits, its
// socket is peeked every 25 ms (a half-closed client counts as gone), and a write that
// fails ends a stream. Over a listener without sockets only the latter is seen.
//
// Tokens are uint32 ids, times are durations before speed-up in a Profile and after it
// everywhere else, and only whole blocks are cached. The model is simpler than an
// engine where routing cannot tell: no speculative decoding, no host tier, prefill
// and decode share a step in both personalities, and text is tokenised four bytes at a
// time.
package sim
