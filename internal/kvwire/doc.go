// Package kvwire speaks the wire on which engines publish their KV events: the msgpack
// layouts of every vLLM and SGLang release, and the ZMQ sockets that carry them.
//
//	engine                                    router/events
//	PUB    ──topic, seq, payload──▶ Subscriber ──Message──▶ Decoder ──▶ Batch
//	ROUTER ◀─seq─────────────────── (replay)
//	       ──seq, payload ... end─▶
//
//	simulated engine:  []Event ──Append──▶ payload ──▶ Publisher ──▶ PUB, ROUTER
//
// Hashes stay what the engine sent: opaque ids of one engine process. Translating them
// to sequence hashes, counting references and tracking coverage is router/events' work.
//
// Memory: a decoded Batch is valid until the next Decode into it; a Message's payload
// belongs to its receiver and is never written again. A Decoder is for one goroutine.
package kvwire
