package proxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router"
)

// answer gives the client the worker's answer. It tells whether the turn was handed over
// to the server, which ends it by closing the stream.
func (t *turn) answer(rc *fasthttp.RequestCtx) (handedOver bool) {
	h := t.resp.Header
	t.status = h.StatusCode()
	rc.Response.SetStatusCode(t.status)
	copyResponseHeaders(&rc.Response.Header, h)
	rc.Response.Header.Set(headerWorker, t.worker.ID())
	t.who.writeLimits(&rc.Response.Header, time.Now())
	if t.explain {
		explain(&rc.Response.Header, t.lease.Decision(), t.tokenize, t.route, time.Since(t.start)-t.tokenize-t.route)
		if state := t.warm.State(); state != "" {
			rc.Response.Header.Set(headerSpeculation, state)
		}
	}
	if !isEventStream(h.ContentType()) {
		return t.whole(rc)
	}
	if !rc.Request.Header.IsHTTP11() {
		return t.collect(rc)
	}
	rc.Request.ReleaseBody(keepBody) // a long generation must not hold its prompt
	t.streamed = true
	// The first byte of the body is here, so the header fields leave with it in one write.
	r := t.newRelay()
	r.beat, r.await, r.beats = t.s.cfg.Heartbeat, t.resp.Await, t.s.metrics.heartbeats
	rc.Response.SetBodyStream(&stream{t: t, r: r}, -1)
	return true
}

func (t *turn) newRelay() *relay {
	r := &relay{
		src: t.resp, lease: t.lease, warm: t.warm, cut: t.cut, start: t.start, broken: t.broken,
		ttft: t.metrics.ttft, itl: t.metrics.itl,
	}
	r.seen.Reset(t.req.N)
	t.relay = r
	return r
}

// broken returns what a stream ends with when its worker failed. A client that left gets
// nothing.
func (t *turn) broken(err error, midway bool) []byte {
	if cause := context.Cause(t.ctx); cause != nil {
		err = cause
	}
	if errors.Is(err, errClientGone) {
		return nil
	}
	t.failure = err
	f := faultUpstream(err)
	t.status = f.status
	t.s.metrics.breaks.Inc()
	t.s.cfg.Logger.Warn("stream broke off", "request_id", t.id, "worker", t.worker.ID(), "reason", err)
	if t.relay.seen.Done {
		return nil
	}
	return f.event(nil, midway)
}

// stream is a relay as the server's body: it ends its turn when it is closed.
type stream struct {
	t *turn
	r *relay
}

func (s *stream) Read(p []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.t.s.panicked(s.t.id, v)
			n, err = 0, errBroken
		}
	}()
	return s.r.Read(p)
}

// Close implements io.Closer; the server calls it on every path.
func (s *stream) Close() error {
	if s.r.err == nil {
		s.t.cancel(errClientGone) // the server could not write
	}
	s.t.end()
	return nil
}

// whole answers with a body that is not a stream. It is collected first, so that the
// client gets all of it or an error.
func (t *turn) whole(rc *fasthttp.RequestCtx) (handedOver bool) {
	length := t.resp.ContentLength()
	if length > collectBytes {
		return t.long(rc, length)
	}
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	for {
		n, err := t.resp.Read(*buf)
		rc.Response.AppendBody((*buf)[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			if cause := context.Cause(t.ctx); cause != nil {
				err = cause
			} else {
				t.s.metrics.breaks.Inc()
			}
			t.fail(rc, faultUpstream(err))
			return false
		}
		if len(rc.Response.Body()) > collectBytes {
			return t.long(rc, -1)
		}
	}
	var seen openai.Stream
	if t.status == fasthttp.StatusOK && len(t.resp.Header.ContentEncoding()) == 0 {
		_ = openai.ParseResponse(rc.Response.Body(), t.req.N, &seen) // what cannot be read has no usage
		t.account(&seen)
		t.warm.Response(rc.Response.Body())
		t.warmEnd.OK, t.warmEnd.Usage = true, seen.UsageOrNone()
	}
	u := seen.UsageOrNone()
	t.lease.Done(router.Outcome{OK: t.status == fasthttp.StatusOK, CachedTokens: u.CachedTokens, PromptTokens: u.PromptTokens, OutputTokens: u.CompletionTokens})
	return false
}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}

// long passes on an answer that is too long to be collected. Its usage stays unread.
func (t *turn) long(rc *fasthttp.RequestCtx, length int64) bool {
	head := append([]byte(nil), rc.Response.Body()...)
	rc.Response.ResetBody()
	t.streamed = true
	size := -1
	if length >= 0 {
		size = int(length)
	}
	rc.Response.SetBodyStream(&passage{t: t, head: head}, size)
	return true
}

// passage is a long body that nobody reads along with.
type passage struct {
	t    *turn
	head []byte // collected before it turned out to be long
	err  error
}

func (p *passage) Read(b []byte) (int, error) {
	if len(p.head) > 0 {
		n := copy(b, p.head)
		p.head = p.head[n:]
		return n, nil
	}
	if p.err != nil {
		return 0, p.err
	}
	n, err := p.t.resp.Read(b)
	if err != nil {
		p.err = err
		if err == io.EOF {
			p.t.lease.Done(router.Outcome{OK: p.t.status == fasthttp.StatusOK, CachedTokens: -1, PromptTokens: -1, OutputTokens: -1})
		} else if !clientLeft(p.t.ctx) {
			p.t.status = faultUpstream(err).status
			p.t.s.metrics.breaks.Inc()
		}
	}
	return n, err
}

func (p *passage) Close() error {
	if p.err == nil {
		p.t.cancel(errClientGone) // the server could not write
	}
	p.t.end()
	return nil
}

// collect reads a stream to its end for an HTTP/1.0 client, which knows no chunks.
func (t *turn) collect(rc *fasthttp.RequestCtx) (handedOver bool) {
	r := t.newRelay()
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	for {
		n, err := r.Read(*buf)
		rc.Response.AppendBody((*buf)[:n])
		if err == io.EOF {
			return false
		}
		if err != nil {
			t.fail(rc, faultUpstream(t.failure))
			return false
		}
		if len(rc.Response.Body()) > collectBytes {
			r.err = errBroken
			t.fail(rc, faultTooLong(collectBytes))
			return false
		}
	}
}
