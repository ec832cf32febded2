// Package proxy is the front: how a request comes in and a stream goes out.
//
//	client ─HTTP/1.1─▶ read, parse ─▶ prompt ─▶ router.Route ─▶ Lease
//	   ▲                                              ▲            │
//	   │                        another worker, while no byte      ▼
//	   │                        of an answer was seen ────── upstream.Do
//	   │                                                           │
//	   └── bytes as they come ◀── relay (scan: first token, usage) ┘
//
// Bytes pass through. A request is changed only by splicing the fields that we own: the
// model where an alias stands for it, the hint speculative_prefill, which is for us, and
// stream_options.include_usage where the client did not ask for usage; the frame that this
// adds to the stream is cut out again, and the model's name in a response stays as the
// worker wrote it.
//
// Where API keys are configured the caller is known by the headers alone: a stranger's body
// is not read, a caller's request counts against the limits of its key from then until its
// end, and the key's cache salt is spliced in before anything else looks at the body. No
// worker sees a key.
//
// A turn (one request, all its attempts) owns the watch on the client, the context that
// ends the worker's side, and one lease per attempt. It ends exactly once, on whichever
// path: a handler that answered by itself, a stream that was written to its end, a client
// that left, a panic. A client that closes or half-closes its connection is noticed within
// milliseconds, before the first byte and in mid-stream, and so is one whose next request
// is already waiting: the watch never reads.
//
// What this package does not do: HTTP/2 (put an edge in front), tokenize, choose a worker,
// or keep any part of a prompt after its turn.
package proxy
