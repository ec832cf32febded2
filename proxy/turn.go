package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/upstream"
	"github.com/warmroute/warmroute/prefill"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// collectBytes is the largest answer that is collected before any of it goes out, so that
// a worker that dies midway costs the client a clean 502 and not half a JSON object.
// Longer answers are passed on as they come.
const collectBytes = 8 << 20

// keepBody is the largest buffer of a request's body that its connection keeps during a
// stream, for the next request.
const keepBody = 4 << 10

// unknownOutcome is the outcome of a request that failed.
var unknownOutcome = router.Outcome{CachedTokens: -1, PromptTokens: -1, OutputTokens: -1}

var requests = sync.Pool{New: func() any { return new(openai.Request) }}

// turn is one request and all its attempts. It ends once: in the handler where that gives
// the whole answer, else when the server closes the stream.
type turn struct {
	s        *Server
	kind     openai.Kind
	endpoint string
	metrics  *endpointMetrics
	id       string
	who      *caller // nil where no keys are configured
	start    time.Time
	req      *openai.Request
	prompt   *kv.Prompt
	explain  bool
	rank     int // that the client asks for, -1 for none

	ctx    context.Context // ends when the client leaves or the proxy gives up draining
	cancel context.CancelCauseFunc
	client *conn // that is watched; nil for none

	worker *upstream.Worker
	lease  *router.Lease
	resp   *upstream.Response
	cut    bool // usage was asked for by us: its frame is cut out
	died   bool // a worker may have taken the request and died

	warm    *prefill.Turn // nil where no warm-up comes before or after this turn
	warmEnd prefill.End   // what warm is told at the end

	entered bool    // who has a request more under way
	taken   int     // tokens booked with who
	used    int     // tokens that the worker reported; -1: none yet
	edited  *[]byte // the body, where it is not the client's own

	tokenize, route time.Duration
	status          int
	streamed        bool // response headers went out before the answer was whole
	relay           *relay
	failure         error // why a relay broke off
}

// generate answers a chat or completions request.
func (s *Server) generate(rc *fasthttp.RequestCtx, kind openai.Kind, id string, who *caller) {
	t := &turn{s: s, kind: kind, endpoint: kind.String(), metrics: &s.metrics.endpoints[kind], id: id, who: who, start: time.Now(), used: -1, req: requests.Get().(*openai.Request)}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	s.begin(t)
	handedOver := false
	defer func() {
		t.dropEdited()
		if !handedOver {
			t.end()
		}
	}()
	if fault := t.enter(); fault != nil {
		t.fail(rc, fault)
		return
	}
	body, fault := s.body(rc)
	if fault != nil {
		t.fail(rc, fault)
		return
	}
	t.metrics.bodyBytes.Observe(float64(len(body)))
	if body, fault = t.parse(&rc.Request.Header, body); fault != nil {
		t.fail(rc, fault)
		return
	}
	hint := string(rc.Request.Header.Peek(headerSpeculative))
	if !prefill.ValidHint(hint) {
		t.fail(rc, faultHint(hint))
		return
	}
	if t.rank, fault = pinnedRank(&rc.Request.Header); fault != nil {
		t.fail(rc, fault)
		return
	}
	t.explain = string(rc.Request.Header.Peek(headerExplain)) == "1"
	if t.client = clientConn(rc.Conn()); t.client != nil {
		t.client.watch(func() { t.cancel(errClientGone) })
	}
	ns := t.namespace()
	t.warm = s.cfg.Prefill.Arrived(prefill.Arrival{
		Request: t.req, Body: body, Namespace: ns, Key: who.name(&rc.Request.Header), Hint: hint,
	})
	t.identify(body, ns)
	if fault := t.take(); fault != nil {
		t.fail(rc, fault)
		return
	}
	if fault := t.send(rc, body); fault != nil {
		t.fail(rc, fault)
		return
	}
	handedOver = t.answer(rc)
}

// begin counts the turn and makes it one that draining can end.
func (s *Server) begin(t *turn) {
	t.metrics.inflight.Inc()
	s.mu.Lock()
	s.mu.turns[t] = struct{}{}
	s.mu.Unlock()
}

// end gives back everything that the turn holds.
func (t *turn) end() {
	s := t.s
	s.mu.Lock()
	delete(s.mu.turns, t)
	s.mu.Unlock()
	left := clientLeft(t.ctx)
	if t.resp != nil {
		if t.relay != nil && t.relay.seen.Failed {
			t.resp.Blame("an error came within its stream")
		}
		_ = t.resp.Close()
	}
	if t.relay != nil {
		left = left && !t.relay.seen.Done // leaving after [DONE] is normal
		t.account(&t.relay.seen)
		t.relay.close()
	}
	if t.lease != nil {
		t.lease.Done(unknownOutcome)
	}
	t.finishWarm(left) // after the lease, which reads the prompt too
	if t.client != nil {
		t.client.unwatch()
	}
	t.cancel(context.Canceled)
	if left {
		phase := "before_first_byte"
		if t.streamed {
			phase = "streaming"
		}
		s.metrics.disconnects.WithLabelValues(phase).Inc()
		t.status = statusClientGone
	}
	t.settle(left)
	took := time.Since(t.start)
	t.metrics.inflight.Dec()
	t.metrics.e2e.Observe(took.Seconds())
	s.count(t.endpoint, t.status)
	if log := s.cfg.Logger; log.Enabled(context.Background(), slog.LevelDebug) {
		worker := ""
		if t.worker != nil {
			worker = t.worker.ID()
		}
		log.Debug("request", "request_id", t.id, "endpoint", t.endpoint, "model", clip(t.req.Model), "worker", worker,
			"status", t.status, "seconds", took.Seconds())
	}
	requests.Put(t.req)
	t.req = nil
}

// account adds what the answer reported to the counters and teaches the prompt builder.
func (t *turn) account(seen *openai.Stream) {
	m, u := t.s.metrics, seen.UsageOrNone()
	m.unread.Add(float64(seen.Unread))
	t.spend(u)
	if u.PromptTokens >= 0 {
		m.promptTok.Add(float64(u.PromptTokens))
		t.s.cfg.Prompt.Observe(t.req.Model, t.req, t.prompt, u.PromptTokens)
	}
	if u.CompletionTokens >= 0 {
		m.outputTok.Add(float64(u.CompletionTokens))
	}
	if u.CachedTokens >= 0 {
		m.cachedTok.Add(float64(u.CachedTokens))
	} else if u.Known() {
		m.noUsage.Inc()
	}
	if u.Known() && t.worker != nil {
		t.worker.ObserveUsage(u.CachedTokens >= 0, t.lease.Decision().OverlapTokens)
	}
}

// fail answers with a fault.
func (t *turn) fail(rc *fasthttp.RequestCtx, f *fault) {
	if clientLeft(t.ctx) {
		f.closeConn = true // a pipelined request must not run for a client that is gone
	}
	t.status = f.status
	worker := ""
	if t.worker != nil {
		worker = t.worker.ID()
	}
	f.respond(rc, t.id, worker)
	t.who.writeLimits(&rc.Response.Header, time.Now())
}

// body returns the plain body of a request.
func (s *Server) body(rc *fasthttp.RequestCtx) ([]byte, *fault) {
	encoding := string(rc.Request.Header.Peek("Content-Encoding"))
	if encoding == "" || encoding == "identity" {
		return rc.Request.Body(), nil
	}
	body, err := rc.Request.BodyUncompressedWithLimit(s.cfg.MaxBodyBytes)
	switch {
	case err == nil:
		return body, nil
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		f := faultTooLarge(s.cfg.MaxBodyBytes)
		f.closeConn = false // it was read whole
		return nil, f
	case errors.Is(err, fasthttp.ErrContentEncodingUnsupported):
		return nil, faultEncoding(encoding)
	}
	return nil, faultDecoding(encoding)
}

// parse reads the request and puts the model behind an alias and the cache salt that
// applies into it. The body stays right until generate returns.
func (t *turn) parse(h *fasthttp.RequestHeader, body []byte) ([]byte, *fault) {
	if err := openai.ParseRequest(t.kind, body, t.req); err != nil {
		return nil, faultRequest(err)
	}
	edit := openai.Edit{Model: t.s.cfg.Aliases[t.req.Model]}
	if !t.who.may(t.req.Model, edit.Model) {
		t.s.metrics.keyRefusals.WithLabelValues(t.who.Name, "models").Inc()
		return nil, faultForbidden(t.req.Model)
	}
	var fault *fault
	if edit.CacheSalt, fault = t.salt(h); fault != nil {
		return nil, fault
	}
	if !edit.Needed(t.req) {
		return body, nil
	}
	t.edited = editBuffers.Get().(*[]byte)
	*t.edited = openai.Rewrite((*t.edited)[:0], body, t.req, edit)
	body = *t.edited
	if err := openai.ParseRequest(t.kind, body, t.req); err != nil {
		return nil, faultRequest(err)
	}
	return body, nil
}

// salt returns the cache salt that applies: that of the key, which its holder cannot
// change, else the body's, else the header's; "" keeps what the body has.
func (t *turn) salt(h *fasthttp.RequestHeader) (string, *fault) {
	given := h.Peek(headerSalt)
	switch {
	case len(given) > maxSalt || !printable(given):
		return "", faultSalt()
	case t.who != nil && t.who.CacheSalt != "":
		return t.who.CacheSalt, nil
	case t.req.CacheSalt != "":
		return "", nil
	}
	return string(given), nil
}

// namespace returns what keeps the request's prefixes apart from those of others.
func (t *turn) namespace() kv.Namespace {
	ns := kv.Namespace{Salt: t.req.CacheSalt}
	if t.s.cfg.Fleet.LoRA(t.req.Model) {
		ns.LoRA = t.req.Model
	}
	return ns
}

// identify finds out which prefix the prompt has.
func (t *turn) identify(body []byte, ns kv.Namespace) {
	from := time.Now()
	t.prompt = t.s.cfg.Prompt.Build(t.ctx, t.req, body, t.s.cfg.Fleet.Tokenizer(t.req.Model, t.kind), ns, t.req.Model)
	t.tokenize = time.Since(from)
}

// send finds a worker that answers. Before the first byte of an answer another worker is
// tried: after a failed connect, a 502, 503 or 504, and after a worker that took the
// request and died without a word; the latter two within the budget of retries. A worker
// that left before it was asked is no attempt. A request that a worker may have taken
// before it died is sent again once, be it to the same worker on a fresh connection.
func (t *turn) send(rc *fasthttp.RequestCtx, body []byte) *fault {
	s := t.s
	ask := router.Request{
		Model: t.req.Model, Key: t.who.name(&rc.Request.Header), Prompt: t.prompt, MaxTokens: t.req.MaxTokens,
		OutputTokensHint: t.req.OutputTokensHint, FirstTurn: t.req.FirstTurn, Stream: t.req.Stream,
		PinRank: t.rank, Priority: t.who.priority(t.req.Priority),
	}
	var failed error // of the last attempt
	s.budget.request(time.Now())
	for attempt := 0; ; {
		from := time.Now()
		lease, err := s.cfg.Router.Route(t.ctx, &ask)
		t.route += time.Since(from)
		if err != nil {
			if t.resp != nil {
				return nil // the refusal of the last worker is the answer
			}
			if failed != nil && !errors.Is(failed, errWorkerLeft) {
				return t.gaveUp(failed)
			}
			if cause := context.Cause(t.ctx); cause != nil {
				return faultUpstream(cause)
			}
			if n := s.cfg.Fleet.Ranks(t.req.Model); t.rank >= n && n > 0 {
				return faultNoRank(t.rank, n)
			}
			return faultRoute(err, t.req.Model, s.modelNames(t.who))
		}
		if t.resp != nil {
			_ = t.resp.Close()
			t.resp = nil
		}
		if attempt > 0 {
			s.metrics.retries.WithLabelValues(retryReason(failed)).Inc()
		}
		t.lease = lease
		s.cfg.Prefill.Yield(lease.Worker())
		t.warm.Routed(lease, t.prompt)
		failed = t.attempt(rc, body)
		again := attempt < s.retries() && t.ctx.Err() == nil
		attempt++
		var e *upstream.Error
		switch {
		case failed == nil && retryStatus(t.resp.Header.StatusCode()):
			again = again && s.withdraw()
		case failed == nil:
			return nil
		case errors.As(failed, &e) && e.Phase == upstream.PhaseConnect: // it cost no worker anything
		case errors.As(failed, &e) && e.Phase == upstream.PhaseAnswer && e.Limit == "":
			again = again && !t.died && s.withdraw()
			t.died = true
		case errors.Is(failed, errWorkerLeft):
			attempt--
			again = t.ctx.Err() == nil
		default:
			again = false
		}
		if !again {
			if failed == nil {
				return nil
			}
			return t.gaveUp(failed)
		}
		lease.Done(unknownOutcome)
		ask.Exclude = append(ask.Exclude, lease.Worker().ID)
	}
}

// gaveUp is the answer where the last worker that was asked failed. The log has what the
// client does not see: the worker's address.
func (t *turn) gaveUp(failed error) *fault {
	if t.ctx.Err() == nil {
		t.s.cfg.Logger.Warn("no worker answered", "request_id", t.id, "worker", t.worker.ID(), "error", failed)
	}
	return faultUpstream(failed)
}

// editBuffers hold edited bodies while they are sent. A long prompt for each request would
// be most of what the proxy allocates; larger ones than keepEdited are rare.
var editBuffers = sync.Pool{New: func() any { return new([]byte) }}

const keepEdited = 1 << 20

// headerBuffers hold the header fields for a worker while they are sent; headerBytes bounds
// them.
var headerBuffers = sync.Pool{New: func() any { return new([]byte) }}

// dropEdited gives the buffer of the body back. Nobody reads a body once it was sent.
func (t *turn) dropEdited() {
	if t.edited != nil && cap(*t.edited) <= keepEdited {
		editBuffers.Put(t.edited)
	}
	t.edited = nil
}

// errWorkerLeft says that a worker was removed between its choice and its use.
var errWorkerLeft = errors.New("the worker has just left")

func retryStatus(code int) bool { return code == 502 || code == 503 || code == 504 }

func retryReason(failed error) string {
	var e *upstream.Error
	switch {
	case failed == nil:
		return "status"
	case errors.As(failed, &e) && e.Phase != upstream.PhaseConnect:
		return "no_response"
	}
	return "connect"
}

// attempt sends the request to the worker of the lease and waits for the first byte of its
// answer's body.
func (t *turn) attempt(rc *fasthttp.RequestCtx, body []byte) error {
	to := t.lease.Worker()
	w := t.s.cfg.Fleet.Worker(to.ID)
	if w == nil {
		return errWorkerLeft
	}
	t.worker = w
	edit := openai.Edit{IncludeUsage: w.ReportsUsage(), RemoveHints: true}
	t.cut = edit.IncludeUsage && t.req.Stream && !t.req.IncludeUsage
	if edit.Needed(t.req) {
		buf := editBuffers.Get().(*[]byte)
		*buf = openai.Rewrite((*buf)[:0], body, t.req, edit)
		body = *buf
		defer func() { // Do does not use a body after it has returned
			if cap(*buf) <= keepEdited {
				editBuffers.Put(buf)
			}
		}()
	}
	rank := -1
	if t.lease.SendRank() {
		rank = to.Rank
	}
	path := "/v1/chat/completions"
	if t.kind == openai.Completions {
		path = "/v1/completions"
	}
	fields := headerBuffers.Get().(*[]byte)
	defer headerBuffers.Put(fields) // Do does not use them after it has returned
	*fields = appendRequestHeaders((*fields)[:0], &rc.Request.Header, t.id, rank, t.who != nil)
	var authorization []byte // a key of this proxy is for nobody else
	if t.who == nil {
		authorization = rc.Request.Header.Peek("Authorization")
	}
	if t.warm.Wanted() {
		t.warmEnd.Header, t.warmEnd.Authorization = bytes.Clone(*fields), bytes.Clone(authorization)
	}
	resp, err := w.Do(t.ctx, &upstream.Request{
		Method: fasthttp.MethodPost, Path: path, Body: body,
		Header:        *fields,
		Authorization: authorization,
		Generation:    true, Stream: t.req.Stream,
		Predicted: time.Duration(t.lease.Decision().PredictedTTFT * float64(time.Second)),
		Died:      &t.died,
	})
	if err != nil {
		return err
	}
	// Headers alone prove little: vLLM sends them before it computes anything.
	if err := resp.Wait(); err != nil {
		_ = resp.Close()
		if t.ctx.Err() != nil {
			return context.Cause(t.ctx)
		}
		return err
	}
	t.resp = resp
	t.pauseWarming(resp.Header)
	return nil
}

// panicked reports a bug of ours.
func (s *Server) panicked(id string, v any) {
	s.metrics.panics.Inc()
	s.cfg.Logger.Error("BUG: panic while answering a request", "request_id", id, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
}
