// Package jinja renders the chat templates of Hugging Face models. It answers the
// question "what text does the engine see for this request?", byte for byte as
// Python's jinja2 3.1 does under transformers (ImmutableSandboxedEnvironment with
// trim_blocks, lstrip_blocks, loop controls, the generation tag, tojson without HTML
// escapes, raise_exception and strftime_now).
//
//	source ─Parse─▶ tokens ─▶ tree ─scopes─▶ Template     names become slots once
//	                                            │
//	vars (Dict, Value) ────────Render───────────┴─▶ dst   one pass, appended
//
// A Value is three words and never owns text: strings may point into the caller's
// buffer, which must not change while a Render that got them is running. A Template
// is immutable and safe for concurrent use; all state of a Render is private to it.
//
// Templates come from model files and their data from requests, so neither is
// trusted: nesting of the source, depth of recursion, steps, bytes made on the way,
// output and sizes of numbers, ranges and repetitions are bounded. A Render that
// meets a bound, or anything at which Python raises an exception, returns an *Error
// with the line of the template and leaves dst as it was. Inside the package errors
// travel as panics of *Error and are recovered in Parse and Render alone.
//
// It does not load templates: import, include, extends, block and autoescape are
// refused by Parse, and so are filters that no chat template needs (random, urlize,
// wordwrap, ...). Numbers beyond about 4,300 digits are refused as in Python 3.11.
package jinja
