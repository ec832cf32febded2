package upstream

import (
	"bytes"
	"time"
)

// Await waits at most d until Read has something to give: bytes of the body, its end, or a
// failure. false says that the worker was silent. The idle limit goes on over any number of
// calls; once it has passed Await returns true and Read says so.
func (r *Response) Await(d time.Duration) bool {
	if r.body.ready() {
		return true
	}
	now := time.Now()
	if !r.awaiting {
		r.awaiting = true
		r.armed = now
	}
	limit := r.armed.Add(r.timeout)
	until := now.Add(d)
	last := !until.Before(limit)
	if last {
		until = limit
	}
	r.setReadDeadline(until)
	for !r.body.ready() {
		if _, err := r.body.br.Peek(r.body.br.Buffered() + 1); err == nil {
			continue
		} else if isTimeout(err) && !last {
			r.setReadDeadline(limit)
			return false
		}
		break // Read meets it too
	}
	r.setReadDeadline(limit)
	return true
}

func (r *Response) setReadDeadline(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.conn != nil && !r.mu.canceled {
		_ = r.mu.conn.SetReadDeadline(t)
	}
}

// ready tells whether a Read would not wait: a byte of the body is in the buffer, or the
// line that ends it.
func (b *body) ready() bool {
	if b.done {
		return true
	}
	buf, _ := b.br.Peek(b.br.Buffered())
	if b.framing != framingChunked || b.left > 0 {
		return len(buf) > 0
	}
	if b.tail {
		i := bytes.IndexByte(buf, '\n')
		if i < 0 {
			return false
		}
		buf = buf[i+1:]
	}
	i := bytes.IndexByte(buf, '\n')
	return i >= 0 && (buf[0] == '0' || len(buf) > i+1)
}
