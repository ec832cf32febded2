package proxy

import (
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/prefill"
	"github.com/warmroute/warmroute/router"
)

// errBroken makes the server close the connection without the body's end, so that the
// client cannot take what it has for a whole answer.
var errBroken = errors.New("the answer broke off")

// cutBytes is how much of an incomplete event is held back to see whether it only carries
// usage. Such a frame is a few hundred bytes, so a longer one is something else.
const cutBytes = 16 << 10

// booking is what a relay tells the router of an answer.
type booking interface {
	FirstToken()
	Progress(tokens int)
	Done(router.Outcome)
}

// relay passes a stream on as it comes and reads along. Without cut, and with it while whole
// events arrive that stay, a Read is the worker's Read: no byte is copied, held back or
// changed.
type relay struct {
	src   io.Reader
	lease booking
	warm  *prefill.Turn
	// broken returns what the stream ends with when the worker failed with err; midway
	// says that it stands within an event.
	broken func(err error, midway bool) []byte

	// beat is the silence after which the client gets a comment, so that nothing between
	// it and us takes the connection for dead; 0 is never. await waits for more of src for
	// so long and tells whether there is something.
	beat  time.Duration
	await func(time.Duration) bool
	beats prometheus.Counter

	// cut leaves out frames that only carry usage: the proxy asked for them, not the
	// client. Events are then passed on once they are whole, or too long to be one.
	cut  bool
	buf  []byte // cut: what is held back, then what was read; nil while nothing is held
	hold int    // cut: start of what is held back in buf
	base int64  // cut: offset in the stream of buf[0]
	cuts []span // cut: frames to leave out, as offsets in the stream

	out  []byte // ready for the client before anything else is read
	err  error  // returned once out is empty
	scan openai.Scanner
	seen openai.Stream
	fed  int64 // bytes of the stream that were read

	lastFed byte // the last of them

	start, last time.Time     // of the request, and of the last token
	firstToken  time.Duration // after start; 0 before it
	due         int           // tokens of the first read, until the router is told of them
	ttft, itl   prometheus.Observer
	done        bool
}

type span struct{ from, to int64 }

var cutBuffers = sync.Pool{New: func() any { b := make([]byte, 2*cutBytes); return &b }}

// Read implements io.Reader for the server, which flushes after each.
func (r *relay) Read(p []byte) (int, error) {
	r.tellFirst() // the client has it
	for {
		if len(r.out) > 0 {
			n := copy(p, r.out)
			r.out = r.out[n:]
			return n, nil
		}
		if r.err != nil {
			return 0, r.err
		}
		if r.silent() {
			r.out = heartbeat
			r.beats.Inc()
			continue
		}
		if r.buf != nil {
			r.fill()
			continue
		}
		n, err := r.src.Read(p)
		r.base = r.fed
		r.observe(p[:n])
		if r.cut && (err != nil || len(r.cuts) > 0 || r.scan.Settled() < r.fed) {
			r.buf = append((*cutBuffers.Get().(*[]byte))[:0], p[:n]...)
			r.pass(err)
			continue
		}
		r.base = r.fed
		if err != nil {
			r.end(err)
		}
		if n > 0 {
			return n, nil
		}
	}
}

// heartbeat is a comment, which is no event: clients pass over it. The blank line serves
// those that split a stream at blank lines.
var heartbeat = slices.Clip([]byte(": heartbeat\n\n"))

// silent waits for more of the stream and tells whether it is time for a heartbeat. There
// is none within an event nor behind the last.
func (r *relay) silent() bool {
	if r.beat == 0 || r.seen.Done {
		return false
	}
	sent := r.fed
	if r.cut {
		sent = r.base + int64(r.hold)
	}
	// A CRLF's LF counts to the event behind it.
	between := sent == r.scan.Settled() || sent == r.scan.Settled()+1 && r.lastFed == '\n'
	return between && !r.await(r.beat)
}

// observe reads along with the next bytes of the stream.
func (r *relay) observe(chunk []byte) {
	if len(chunk) == 0 {
		return
	}
	before := r.seen.Deltas
	r.fed += int64(len(chunk))
	r.lastFed = chunk[len(chunk)-1]
	r.scan.Feed(chunk)
	for ev, ok := r.scan.Next(); ok; ev, ok = r.scan.Next() {
		r.event(ev)
	}
	r.tokens(r.seen.Deltas - before)
}

func (r *relay) event(ev openai.Event) {
	r.warm.Observe(ev)
	if f := r.seen.Observe(ev); f&openai.FrameUsageOnly != 0 && r.cut && ev.Start >= r.base {
		r.cuts = append(r.cuts, span{ev.Start, ev.End})
	}
}

// tokens books n more tokens of output. A delta is about one token; usage, at the end,
// corrects the count.
func (r *relay) tokens(n int) {
	if n == 0 {
		return
	}
	now := time.Now()
	if r.last.IsZero() {
		r.firstToken = now.Sub(r.start)
		r.ttft.Observe(r.firstToken.Seconds())
		r.last, r.due = now, n
		return
	}
	r.tellFirst()
	r.itl.Observe(now.Sub(r.last).Seconds() / float64(n))
	r.last = now
	r.lease.Progress(n)
}

// tellFirst tells the router of the first tokens where that is due. What the router learns
// from them, the prompt's blocks included, is not on their way to the client.
func (r *relay) tellFirst() {
	if n := r.due; n > 0 {
		r.due = 0
		r.lease.FirstToken()
		r.lease.Progress(n)
	}
}

// fill gives buf back where nothing of it is held, else reads more of the stream into it.
// What was ready before has been taken.
func (r *relay) fill() {
	r.base += int64(r.hold)
	r.buf = r.buf[:copy(r.buf, r.buf[r.hold:])]
	r.hold = 0
	held := len(r.buf)
	if held == 0 {
		r.drop()
		return
	}
	n, err := r.src.Read(r.buf[held:cap(r.buf)])
	r.buf = r.buf[:held+n]
	r.observe(r.buf[held:])
	r.pass(err)
}

// pass makes the whole events of buf ready, and all of it at the stream's end.
func (r *relay) pass(err error) {
	if err != nil {
		r.end(err)
		return
	}
	ready := int(max(r.scan.Settled()-r.base, 0))
	if len(r.buf)-ready > cutBytes {
		ready = len(r.buf)
	}
	r.release(ready)
}

// release makes the first ready bytes of buf the client's, without the frames to cut.
func (r *relay) release(ready int) {
	r.hold = ready
	r.out = r.buf[:ready]
	for i := len(r.cuts) - 1; i >= 0; i-- {
		from, to := int(r.cuts[i].from-r.base), int(r.cuts[i].to-r.base)
		// A CRLF's LF counts to the event behind it. It stays where the frame leaves none
		// in its place: clients that know no lone CR would not see the event before end.
		if r.out[from] == '\n' && r.out[to-1] == '\n' {
			from++
		}
		r.out = append(r.out[:from], r.out[to:]...)
	}
	r.cuts = r.cuts[:0]
}

// end deals with the end of the worker's stream, or with its failure.
func (r *relay) end(err error) {
	midway := r.scan.Settled() < r.fed
	if err == io.EOF {
		if ev, ok := r.scan.Close(); ok {
			before := r.seen.Deltas
			r.event(ev)
			r.tokens(r.seen.Deltas - before)
		}
		r.err = io.EOF
		r.finish(!r.seen.Failed && (r.seen.Done || r.seen.Complete()))
	} else {
		r.err = errBroken
		r.finish(false)
	}
	if r.buf != nil {
		r.release(len(r.buf))
		r.out = r.out[:len(r.out):len(r.out)]
	}
	if r.err != io.EOF {
		r.out = append(r.out, r.broken(err, midway)...)
	}
}

// finish gives the booking back, once.
func (r *relay) finish(ok bool) {
	if r.done {
		return
	}
	r.done = true
	r.tellFirst()
	u := r.seen.UsageOrNone()
	r.lease.Done(router.Outcome{OK: ok, CachedTokens: u.CachedTokens, PromptTokens: u.PromptTokens, OutputTokens: u.CompletionTokens})
}

// close gives back what the relay holds.
func (r *relay) close() {
	r.finish(false)
	r.drop()
}

// drop gives buf back: a stream that waits for its next token holds none.
func (r *relay) drop() {
	if r.buf != nil {
		b := r.buf[:cap(r.buf)]
		r.buf, r.out = nil, nil
		cutBuffers.Put(&b)
	}
}
