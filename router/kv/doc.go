// Package kv holds the words of the KV cache: what a prefix is, how it is hashed,
// who holds it, and what a KV event says. It answers the question "is this the
// same prefix?" and knows no transport, no engine and no policy.
//
//	tokens ──blocks──▶ BlockHash ──chain──▶ SequenceHash
//	                       ▲                     │
//	            Namespace (LoRA, salt)           ▼
//	                                     index, events, router
//
// Glossary, used with these meanings everywhere in the project:
//
//   - token: a uint32 id of the model's vocabulary.
//   - block: BlockSize consecutive tokens of a prompt, counted from its start.
//     Only whole blocks count; a partial tail has no identity.
//   - block hash: the content of one block (and its namespace).
//   - sequence hash: a whole prefix up to and with a block. Equal sequence hashes
//     mean equal prefixes, so one hash proves everything before it.
//   - worker: one engine behind one URL; DP rank: one data-parallel replica of it
//     with a KV cache of its own. Worker (the type) is the dense number of one
//     (worker id, rank) pair.
//   - overlap: the blocks of a prompt, from block 0 and without a hole, that a
//     worker already holds.
//   - KV event: stored, removed or cleared, in our hashes, of one worker rank.
//
// Hashes of an engine are opaque ids of one engine process and never compared
// with these; identity between workers is the hashes of this package.
//
// Nothing here starts a goroutine. Prompt is for one goroutine at a time; Workers
// is safe for concurrent use; everything else is a value.
package kv
