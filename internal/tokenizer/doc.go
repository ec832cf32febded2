// Package tokenizer answers the question "which token ids does the engine see for this
// text?". It reads the tokenizer.json of a Hugging Face model and gives exactly the ids of
// Hugging Face's Rust tokenizers, many times faster, in pure Go.
//
//	text ─▶ added tokens ─▶ gaps ─▶ normalize ─▶ pieces ─▶ words ─▶ ids
//	         (Split)        (EncodeGap)                     │  ▲
//	                                                        ▼  │
//	                                                     word cache
//
// The ids of a gap between two added tokens depend on nothing outside that gap, so a
// caller may keep them: Encode is the concatenation of EncodeGap over Split.
//
// Only byte-pair models are known, of two kinds. A byte-level model cuts the text with a
// regular expression and merges bytes; the expressions are recognised by their exact text
// and run as hand-written scanners. A character-level (SentencePiece-style) model merges
// the characters of a whole gap, with spaces as U+2581 and unknown characters as bytes.
//
// A component, field value or pattern outside this set is an error that names it and the
// place where it stands; nothing is approximated. "truncation" and "padding" in the file are
// ignored. Text that is not UTF-8 is read as Python's bytes.decode("utf-8", "replace")
// reads it: each maximal part of a broken sequence is one U+FFFD.
//
// The package renders no templates; Config hands their sources over.
package tokenizer
