package proxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/router"
)

// fault is an answer that the proxy gives by itself. Every status and every error body of
// the proxy is made in this file. Messages quote no prompt and no response.
type fault struct {
	status     int
	typ        string // OpenAI's error type
	code       string
	param      string
	message    string
	retryAfter time.Duration
	allow      string // methods, for 405
	closeConn  bool   // the connection cannot be used further
	keyNeeded  bool   // for 401
}

// The error types of OpenAI.
const (
	typeInvalid   = "invalid_request_error"
	typeServer    = "server_error"
	typeRateLimit = "rate_limit_error"
	typeTimeout   = "timeout_error"
)

// Why a turn's context ended.
var (
	errClientGone = errors.New("the client closed its connection")
	errDraining   = errors.New("the proxy is shutting down")
)

// statusClientGone is what metrics and logs say of a client that left; nobody reads it.
const statusClientGone = 499

// respond writes the fault as the whole answer to the request of that id. worker is the one
// that was asked last, "" for none.
func (f *fault) respond(rc *fasthttp.RequestCtx, id, worker string) {
	rc.Response.Reset()
	rc.Response.SetStatusCode(f.status)
	h := &rc.Response.Header
	h.SetContentType("application/json")
	h.Set(headerRequestID, id)
	if worker != "" {
		h.Set(headerWorker, worker)
	}
	if f.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(f.retryAfter.Seconds()))))
	}
	if f.allow != "" {
		h.Set("Allow", f.allow)
	}
	if f.keyNeeded {
		h.Set("Www-Authenticate", `Bearer realm="warmroute"`)
	}
	if f.closeConn {
		rc.Response.SetConnectionClose()
	}
	rc.Response.SetBody(f.body(nil))
}

// body appends the OpenAI error object.
func (f *fault) body(dst []byte) []byte {
	return openai.AppendError(dst, f.message, f.typ, f.param, f.code)
}

// event appends the fault as an event of a stream. midway says that the stream stands
// within another event.
func (f *fault) event(dst []byte, midway bool) []byte {
	if midway {
		dst = append(dst, "\n\n"...)
	}
	return append(f.body(append(dst, "data: "...)), "\n\n"...)
}

func faultNotFound(path string) *fault {
	return &fault{status: 404, typ: typeInvalid, code: "not_found",
		message: fmt.Sprintf("no such path %q: this proxy serves /v1/chat/completions, /v1/completions and /v1/models", clip(path))}
}

func faultMethod(method, allow string) *fault {
	return &fault{status: 405, typ: typeInvalid, code: "method_not_allowed", allow: allow,
		message: fmt.Sprintf("method %s is not allowed here: use %s", clip(method), allow)}
}

func faultRequest(err error) *fault {
	f := &fault{status: 400, typ: typeInvalid, code: "invalid_request", message: err.Error()}
	var r *openai.RequestError
	if errors.As(err, &r) {
		f.param = r.Param
	}
	return f
}

func faultHint(value string) *fault {
	return &fault{status: 400, typ: typeInvalid, code: "invalid_header", param: headerSpeculative,
		message: fmt.Sprintf("header %s: %q is none of true, false, auto", headerSpeculative, clip(value))}
}

func faultRank(value string) *fault {
	return &fault{status: 400, typ: typeInvalid, code: "invalid_header", param: headerRank,
		message: fmt.Sprintf("header %s: %q is no rank: expected a whole number from 0 up", headerRank, clip(value))}
}

// faultNoRank is the answer to a rank that no worker of the model has.
func faultNoRank(rank, ranks int) *fault {
	return &fault{status: 400, typ: typeInvalid, code: "invalid_header", param: headerRank,
		message: fmt.Sprintf("header %s: no worker of this model has the rank %d: the highest is %d", headerRank, rank, ranks-1)}
}

// faultKey does not say whether the key was missing, malformed or unknown.
func faultKey() *fault {
	return &fault{status: 401, typ: typeInvalid, code: "invalid_api_key", keyNeeded: true,
		message: "a valid API key is needed: send it as Authorization: Bearer <key>"}
}

// faultForbidden does not say whether the model exists.
func faultForbidden(model string) *fault {
	return &fault{status: 403, typ: typeInvalid, code: "model_not_allowed", param: "model",
		message: fmt.Sprintf("this API key may not use the model %q: /v1/models lists those it may", clip(model))}
}

func faultConns(limit int) *fault {
	return &fault{status: 503, typ: typeServer, code: "too_many_connections", retryAfter: time.Second, closeConn: true,
		message: fmt.Sprintf("the proxy has as many connections open as it may: %d (--max-connections)", limit)}
}

// faultPlain is the answer to plain HTTP on a port that speaks TLS.
func faultPlain() *fault {
	return &fault{status: 400, typ: typeInvalid, code: "https_needed", message: "this port speaks HTTPS: use https://"}
}

// plain is the fault as the whole answer, for where no server writes it.
func (f *fault) plain() []byte {
	body := f.body(nil)
	return append(fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n",
		f.status, fasthttp.StatusMessage(f.status), len(body)), body...)
}

func faultLimit(r *refusal) *fault {
	f := &fault{status: 429, typ: typeRateLimit, code: "rate_limit_exceeded", retryAfter: r.wait}
	if r.limit == limitInflight {
		f.message = fmt.Sprintf("this API key has %d requests under way, which is its limit (%s)", r.is, r.limit)
	} else {
		f.message = fmt.Sprintf("this API key has used up its limit of %d (%s): try again in %s", r.is, r.limit, r.wait.Round(time.Second/10))
	}
	return f
}

func faultSalt() *fault {
	return &fault{status: 400, typ: typeInvalid, code: "invalid_header", param: headerSalt,
		message: fmt.Sprintf("header %s: expected up to %d visible ASCII characters", headerSalt, maxSalt)}
}

func faultTooLarge(limit int) *fault {
	return &fault{status: 413, typ: typeInvalid, code: "request_too_large", closeConn: true,
		message: fmt.Sprintf("the request body is larger than the limit of %d bytes (--max-body)", limit)}
}

func faultEncoding(encoding string) *fault {
	return &fault{status: 415, typ: typeInvalid, code: "unsupported_content_encoding",
		message: fmt.Sprintf("content encoding %q is not supported: send the body plain, or as gzip, deflate, br or zstd", clip(encoding))}
}

func faultDecoding(encoding string) *fault {
	return &fault{status: 400, typ: typeInvalid, code: "invalid_request",
		message: fmt.Sprintf("the body is not valid %s, which Content-Encoding says it is", clip(encoding))}
}

func faultFraming() *fault {
	return &fault{status: 400, typ: typeInvalid, code: "invalid_request", closeConn: true,
		message: "the request has both Content-Length and Transfer-Encoding"}
}

func faultFolded() *fault {
	return &fault{status: 400, typ: typeInvalid, code: "invalid_request", closeConn: true,
		message: "a header field goes on in a second line"}
}

// faultRead is an answer to a request that could not be read.
func faultRead(err error, limit int) *fault {
	var small *fasthttp.ErrSmallBuffer
	var t interface{ Timeout() bool }
	var slow *slowError
	switch {
	case errors.Is(err, errBareLF):
		return &fault{status: 400, typ: typeInvalid, code: "invalid_request", closeConn: true,
			message: "the lines of the request head end with LF alone: HTTP ends them with CRLF"}
	case errors.As(err, &slow):
		return &fault{status: 408, typ: typeTimeout, code: "request_too_slow", closeConn: true, message: slow.Error()}
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return faultTooLarge(limit)
	case errors.As(err, &small):
		return &fault{status: 431, typ: typeInvalid, code: "headers_too_large", closeConn: true,
			message: fmt.Sprintf("the request headers are larger than %d bytes", headerBytes)}
	case errors.As(err, &t) && t.Timeout():
		return &fault{status: 408, typ: typeTimeout, code: "request_timeout", closeConn: true,
			message: "the request did not arrive in time"}
	}
	return &fault{status: 400, typ: typeInvalid, code: "invalid_request", closeConn: true, message: "malformed HTTP request"}
}

// faultRoute is the answer where no worker was found. models are those that are served.
func faultRoute(err error, model string, models []string) *fault {
	var full *router.SaturatedError
	switch {
	case errors.As(err, &full):
		return &fault{status: 429, typ: typeRateLimit, code: "saturated", retryAfter: max(full.RetryAfter, time.Second), message: full.Error()}
	case errors.Is(err, router.ErrUnknownModel):
		return faultModel(model, models)
	}
	return &fault{status: 503, typ: typeServer, code: "no_workers", retryAfter: time.Second,
		message: fmt.Sprintf("no worker can take a request for model %q now: /debug/workers on the admin address says why", clip(model))}
}

// faultModel is the answer to a model that nobody serves. models are those that are served.
func faultModel(model string, models []string) *fault {
	served := "no model is served now"
	if len(models) > 0 {
		served = "served are " + list(models)
	}
	return &fault{status: 404, typ: typeInvalid, code: "model_not_found", param: "model",
		message: fmt.Sprintf("the model %q does not exist here: %s", clip(model), served)}
}

// faultUpstream is the answer where a worker failed before the first byte, and the event
// where it failed later. It names the worker, not its address.
func faultUpstream(err error) *fault {
	var e *upstream.Error
	switch {
	case errors.Is(err, errDraining):
		return &fault{status: 503, typ: typeServer, code: "shutting_down", retryAfter: time.Second, closeConn: true, message: errDraining.Error()}
	case errors.As(err, &e) && e.Limit != "":
		return &fault{status: 504, typ: typeTimeout, code: e.Limit, message: e.Public()}
	case errors.As(err, &e):
		return &fault{status: 502, typ: typeServer, code: "worker_failed", message: e.Public()}
	}
	return &fault{status: 502, typ: typeServer, code: "worker_failed", message: "the worker failed"}
}

// faultPanic is the answer to a bug of ours.
func faultPanic() *fault {
	return &fault{status: 500, typ: typeServer, code: "internal_error", closeConn: true,
		message: "internal error of the proxy; its log has the details under this request id"}
}

func faultTooLong(limit int) *fault {
	return &fault{status: 502, typ: typeServer, code: "response_too_large",
		message: fmt.Sprintf("the response is larger than %d bytes, more than can be collected for an HTTP/1.0 client: use HTTP/1.1", limit)}
}

// clientLeft tells whether a turn ended because its client did.
func clientLeft(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errClientGone) }

// clip bounds what an error quotes of a request.
func clip(s string) string {
	const limit = 128
	if len(s) > limit {
		return s[:limit] + "…"
	}
	return s
}

// list prints at most ten names.
func list(names []string) string {
	const limit = 10
	if len(names) <= limit {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:limit], ", "), len(names)-limit)
}
