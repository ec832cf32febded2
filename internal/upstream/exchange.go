package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// reuseGrace is how soon a connection that was idle before must die for the request on it
// to count as not processed: the worker closed it while the request was on its way.
const reuseGrace = time.Second

// idleArm is the part of the idle limit after which the read deadline is moved on: a
// deadline per read would cost a timer update per event.
const idleArm = 8

// Request is one request to a worker. Host, Content-Length, Connection and the worker's
// own credentials are added by Do.
type Request struct {
	Method string
	Path   string // with the query, from the root of the API: /v1/chat/completions
	// Header holds whole lines "Name: value\r\n"; it must not hold the fields that Do adds.
	Header []byte
	// Authorization is sent where the worker has no api_key of its own; nil sends none.
	Authorization []byte
	Body          []byte
	FirstByte     time.Duration // limit for the first byte of the body; 0 takes the fleet's

	// Generation marks a client's generation: how it ends counts for the worker's
	// breaker. Stream says that its answer comes token by token, Predicted when the router
	// expects the first.
	Generation, Stream bool
	Predicted          time.Duration

	// Died, where set, is shared by the attempts at one generation: whether a worker may
	// have taken the request before it died. Do sets it when it sends a request again, and
	// where it is set asks on a fresh connection, once.
	Died *bool
}

func (r *Request) died() bool { return r.Died != nil && *r.Died }

// Phase says how far an exchange came before it failed.
type Phase int

// The phases of an exchange.
const (
	PhaseConnect Phase = iota // not connected: the worker saw nothing
	PhaseAnswer               // sent, wholly or in part, and no byte of the answer seen
	PhaseBody                 // the answer had begun
)

// Error says why an exchange with a worker failed. Its text holds neither request nor
// response content.
type Error struct {
	Worker  string
	Phase   Phase
	Limit   string        // the timeout that passed, by its name in the configuration; "" for none
	Timeout time.Duration // its length
	Err     error
}

func (e *Error) Error() string {
	if e.Limit != "" {
		return fmt.Sprintf("worker %s: %s of %s passed", e.Worker, e.Limit, e.Timeout)
	}
	return fmt.Sprintf("worker %s: %s: %v", e.Worker, phases[e.Phase], e.Err)
}

var phases = [...]string{"connect", "no response", "response broke off"}

// Public returns the error for clients: without the addresses and host names in Err, which
// are nobody's business outside.
func (e *Error) Public() string {
	if e.Limit != "" {
		return e.Error()
	}
	return fmt.Sprintf("worker %s: %s: %s", e.Worker, phases[e.Phase], publicCause(e.Err))
}

func publicCause(err error) string {
	var errno syscall.Errno
	var op *net.OpError
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &dns):
		return "its host name is not resolved"
	case errors.As(err, &cert):
		return "its TLS certificate is not accepted"
	case os.IsTimeout(err):
		return "timed out"
	case errors.As(err, &op):
		return "the connection failed"
	}
	return err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Response is a worker's answer. Header is valid until Close; Read gives the body. It is
// for one goroutine; ending Do's context makes a blocked Read return at once.
type Response struct {
	Header *fasthttp.ResponseHeader // the connection's

	w       *Worker
	body    body
	stop    func() bool // ends the watch on the context
	limit   string      // the limit that the read deadline stands for
	timeout time.Duration
	armed   time.Time // when the read deadline was set
	// awaiting says that the time since armed counts: Await has waited for what Read gives.
	awaiting bool
	broken   bool // the connection may not be used again

	flight  flight
	counts  bool    // it is a generation whose outcome is not recorded yet
	outcome outcome // so far
	what    string  // how it failed

	mu struct {
		sync.Mutex
		conn     *conn // nil once it is given back
		canceled bool
	}
}

// Do sends a request and returns when the response headers are there. A request is sent a
// second time only if its connection had been idle and died at once without one byte of an
// answer. The caller closes the response.
func (w *Worker) Do(ctx context.Context, req *Request) (*Response, error) {
	for fresh := req.died(); ; fresh = true {
		c, err := w.pool.get(ctx, fresh)
		if err != nil {
			return nil, w.connectError(ctx, req, err)
		}
		start := time.Now()
		r := &Response{w: w, Header: &c.header}
		r.mu.conn = c
		if req.Generation {
			r.counts = true
			w.breaker.begin(&r.flight, start, req.Stream, req.Predicted)
		}
		r.stop = context.AfterFunc(ctx, r.cancel)
		answered, err := r.roundTrip(c, req)
		if err == nil {
			r.judge()
			return r, nil
		}
		r.broken = true
		resend := c.reused && !answered && !isTimeout(err) && time.Since(start) < reuseGrace
		if ctx.Err() == nil && !resend {
			r.failed(err)
		}
		_ = r.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if resend {
			w.f.metrics.resent(w.id)
			if req.Died != nil {
				*req.Died = true
			}
			continue
		}
		phase := PhaseAnswer
		if answered {
			phase = PhaseBody
		}
		return nil, r.wrap(phase, err)
	}
}

// connectError wraps a failed dial and tells the fleet of it.
func (w *Worker) connectError(ctx context.Context, req *Request, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e := &Error{Worker: w.id, Phase: PhaseConnect, Err: err}
	if errors.Is(err, errTooManyConns) {
		return e
	}
	if isTimeout(err) {
		e.Limit, e.Timeout = "connect_timeout", w.f.cfg.Timeouts.Connect
		if req.Generation { // what is refused or not there is for the health checks
			now := time.Now()
			w.heard(w.breaker.record(failed, now, now, e.Error()))
		}
	}
	w.connectFailed(e)
	return e
}

// roundTrip writes the request and reads the response headers. answered tells whether a
// byte of an answer was seen.
func (r *Response) roundTrip(c *conn, req *Request) (answered bool, err error) {
	r.limit, r.timeout = "first_byte_timeout", r.w.f.cfg.Timeouts.FirstByte
	if req.FirstByte > 0 {
		r.timeout = req.FirstByte
	}
	r.armed = time.Now()
	if err := c.SetDeadline(r.armed.Add(r.timeout)); err != nil {
		return false, err
	}
	head := headPool.Get().(*[]byte)
	*head = r.w.appendHead((*head)[:0], req)
	parts := net.Buffers{*head, req.Body}
	_, werr := parts.WriteTo(c.Conn)
	headPool.Put(head)
	if werr != nil {
		if isTimeout(werr) {
			return false, werr
		}
		// A worker may refuse a body before it has read it: the answer may be there.
		r.broken = true
		_ = c.SetReadDeadline(time.Now().Add(reuseGrace))
	}
	if _, err := c.br.Peek(1); err != nil {
		if werr != nil {
			err = werr
		}
		return false, err
	}
	for range 16 { // interim responses
		if err := r.Header.Read(c.br); err != nil {
			return true, headerError(err)
		}
		code := r.Header.StatusCode()
		if code >= 200 || code < 100 || code == fasthttp.StatusSwitchingProtocols {
			break
		}
	}
	code, length := r.Header.StatusCode(), r.Header.ContentLength()
	switch {
	case code < 100:
		return true, errors.New("malformed response status")
	case code < 200:
		return true, errors.New("interim responses without end, or a protocol switch")
	case code == fasthttp.StatusNoContent || code == fasthttp.StatusNotModified || req.Method == fasthttp.MethodHead:
		r.body.reset(c.br, framingNone, 0)
	case length >= 0:
		r.body.reset(c.br, framingLength, int64(length))
	case length == -1:
		r.body.reset(c.br, framingChunked, 0)
	default:
		r.body.reset(c.br, framingClose, 0)
		r.broken = true
	}
	return true, nil
}

var headPool = sync.Pool{New: func() any { return new([]byte) }}

// appendHead appends the request line and all header fields.
func (w *Worker) appendHead(dst []byte, req *Request) []byte {
	dst = append(dst, req.Method...)
	dst = append(dst, ' ')
	dst = append(dst, w.base.path...)
	dst = append(dst, req.Path...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, w.base.host...)
	dst = append(dst, "\r\n"...)
	dst = append(dst, req.Header...)
	switch {
	case w.cfg.APIKey != "":
		dst = append(dst, "Authorization: Bearer "...)
		dst = append(dst, w.cfg.APIKey...)
		dst = append(dst, "\r\n"...)
	case len(req.Authorization) > 0:
		dst = append(dst, "Authorization: "...)
		dst = append(dst, req.Authorization...)
		dst = append(dst, "\r\n"...)
	}
	if len(req.Body) > 0 || req.Method == fasthttp.MethodPost {
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, int64(len(req.Body)), 10)
		dst = append(dst, "\r\n"...)
	}
	return append(dst, "\r\n"...)
}

// ContentLength returns the length of the body, -1 where the worker did not state it.
func (r *Response) ContentLength() int64 {
	if r.body.framing == framingLength || r.body.framing == framingNone {
		return r.body.left
	}
	return -1
}

// Wait blocks until the first byte of the body or its end has arrived.
func (r *Response) Wait() error {
	if r.body.done {
		return nil
	}
	if _, err := r.body.br.Peek(1); err != nil && !(err == io.EOF && r.body.framing == framingClose) {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		err = r.wrap(PhaseBody, err)
		r.failed(err)
		return err
	}
	r.begun(time.Now())
	return nil
}

// Read gives what has arrived of the body. Its error is io.EOF at the end that the framing
// states, else an *Error.
func (r *Response) Read(p []byte) (int, error) {
	idle := r.limit == "idle_timeout"
	if idle && !r.awaiting {
		if now := time.Now(); now.Sub(r.armed) > r.timeout/idleArm {
			r.arm(now)
		}
	}
	r.awaiting = false
	n, err := r.body.Read(p)
	if n > 0 {
		now := time.Now()
		if !idle {
			r.limit, r.timeout = "idle_timeout", r.w.f.cfg.Timeouts.Idle
			r.arm(now)
		}
		r.begun(now)
	}
	switch {
	case err == io.EOF:
		r.ended()
	case err != nil:
		r.broken = true
		err = r.wrap(PhaseBody, err)
		r.failed(err)
	}
	return n, err
}

func (r *Response) arm(now time.Time) {
	r.armed = now
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.conn != nil && !r.mu.canceled {
		_ = r.mu.conn.SetReadDeadline(now.Add(r.timeout))
	}
}

// Close ends the exchange. The connection is kept for the next request only if the body
// was read to its end.
func (r *Response) Close() error {
	r.stop()
	r.settle()
	r.mu.Lock()
	c, canceled := r.mu.conn, r.mu.canceled
	r.mu.conn = nil
	r.mu.Unlock()
	if c == nil {
		return nil
	}
	if canceled || r.broken || !r.body.done || r.Header.ConnectionClose() {
		r.w.pool.discard(c)
	} else {
		r.w.pool.put(c)
	}
	return nil
}

// cancel closes the connection under a blocked read or write.
func (r *Response) cancel() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.canceled = true
	if r.mu.conn != nil {
		_ = r.mu.conn.Close()
	}
}

func (r *Response) wrap(phase Phase, err error) error {
	e := &Error{Worker: r.w.id, Phase: phase, Err: err}
	if isTimeout(err) {
		e.Limit, e.Timeout = r.limit, r.timeout
	}
	return e
}

// headerError drops the excerpt of the response that fasthttp puts into its errors.
func headerError(err error) error {
	var small *fasthttp.ErrSmallBuffer
	switch {
	case isTimeout(err), errors.Is(err, net.ErrClosed):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return io.ErrUnexpectedEOF
	case errors.As(err, &small):
		return fmt.Errorf("response headers exceed %d bytes", readBufferBytes)
	}
	return errors.New("malformed response headers")
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
