// Package trace reads recorded workloads. It answers the question "which requests came
// when, and what did their prompts share?".
//
//	trace.jsonl[.gz] ──Reader──▶ Request (time, lengths, hash ids, session)
//	                                │
//	                               Tokens ──▶ token ids with the same shared prefixes
//
// The format is Mooncake's: one JSON object a line, one hash id for each 512 tokens of
// the prompt, cumulative, so that equal ids mean an equal whole prefix up to and with
// that block. Ids are 64 bits wide and stay so. Lines are read one at a time; a fault
// names its line and field and what was expected there.
//
// The package makes no schedule and sends nothing: how turns of one session follow
// each other is for the replay to decide from Time and Delay.
package trace
