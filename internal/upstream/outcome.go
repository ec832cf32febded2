package upstream

import (
	"net/http"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"
)

// judge reads what the status of an answer says of the worker.
func (r *Response) judge() {
	if !r.counts {
		return
	}
	code, now := r.Header.StatusCode(), time.Now()
	r.w.breaker.progress.Store(now.UnixNano())
	pause := RetryAfter(r.Header)
	switch {
	case code < 300:
		return // its body decides
	case pause > 0 && (code == fasthttp.StatusTooManyRequests || code == fasthttp.StatusServiceUnavailable):
		r.w.f.metrics.paused(r.w.id)
		r.w.heard(r.w.breaker.pause(pause, now))
	case code == 500 || code >= 502 && code <= 504:
		r.outcome, r.what = failed, "it answered "+strconv.Itoa(code)
	}
	r.settle()
}

// begun notes bytes of a body.
func (r *Response) begun(now time.Time) {
	if !r.counts {
		return
	}
	b := &r.w.breaker
	b.progress.Store(now.UnixNano())
	if r.flight.waiting {
		b.settle(&r.flight)
		r.w.heard(b.answers(r.flight.sent, now))
	}
}

// ended notes the end of a body.
func (r *Response) ended() {
	if r.counts && r.outcome == neutral {
		r.outcome = succeeded
	}
}

// failed notes that the exchange broke off, unless we did that.
func (r *Response) failed(err error) {
	r.mu.Lock()
	canceled := r.mu.canceled
	r.mu.Unlock()
	if !canceled {
		r.Blame(err.Error())
	}
}

// Blame says that the answer is the failure of its worker, whatever its status: an error
// that came within a stream. what must quote nothing of it.
func (r *Response) Blame(what string) {
	if r.counts {
		r.outcome, r.what = failed, what
	}
}

// settle records the outcome once. One that is neither a success nor a failure by the end
// says nothing: the client left, or the worker refused.
func (r *Response) settle() {
	if !r.counts {
		return
	}
	r.counts = false
	b := &r.w.breaker
	b.settle(&r.flight)
	if r.outcome != neutral {
		r.w.heard(b.record(r.outcome, r.flight.sent, time.Now(), r.what))
	}
}

// maxRetryAfter bounds what a Retry-After may say.
const maxRetryAfter = time.Hour

// RetryAfter reads how long a worker wants to be left alone, from 0, where it does not say,
// to an hour.
func RetryAfter(h *fasthttp.ResponseHeader) time.Duration {
	v := string(h.Peek("Retry-After"))
	if v == "" {
		return 0
	}
	var d time.Duration
	if seconds, err := strconv.Atoi(v); err == nil {
		d = time.Duration(min(max(seconds, 0), int(maxRetryAfter/time.Second))) * time.Second
	} else if at, err := http.ParseTime(v); err == nil {
		d = time.Until(at)
	}
	return min(max(d, 0), maxRetryAfter)
}
