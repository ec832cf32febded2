//go:build interop

// Package interop compares internal/tokenizer with Hugging Face's own code on real
// models' files.
//
//	run.sh ── fetches tokenizer.json files ─▶ golden.py ─▶ goldens, chunk hashes
//	                                                          │
//	go test -tags interop ── same strings ─▶ tokenizer ─▶ compare
//
// It needs the directory that run.sh prepares, named by WARMROUTE_INTEROP_DIR, and the
// Python that made it, named by WARMROUTE_PYTHON. Without them every test fails. Each
// family is a directory of it; golden.txt is in the format of ../testdata/README.md,
// random.txt and codepoints.txt as golden.py describes.
package interop
