package prefill

import (
	"context"
	"strings"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// Warmup is one prefill-only request, ready to be sent.
type Warmup struct {
	Worker        kv.WorkerRank
	Path          string // of the worker's endpoint
	Body          []byte // for Path
	Header        []byte // lines "Name: value\r\n", request id and rank included
	Authorization []byte // the client's, for workers without a key of their own
}

// Answer is what a worker said to a warm-up.
type Answer struct {
	Status     int
	Void       bool          // status 200, but its body is no answer of an engine, or an error
	RetryAfter time.Duration // 0: not told
	Usage      openai.Usage  // openai.NoUsage where there is none
}

// ok tells whether the worker did what was asked.
func (a *Answer) ok() bool { return a.Status == 200 && !a.Void }

// Sender delivers one warm-up and reads the answer to its end. It is called from many
// goroutines and returns soon after ctx ends; ending it must close the connection, which
// is how an engine learns of a cancellation.
type Sender interface {
	Prefill(ctx context.Context, w *Warmup) (Answer, error)
}

// failure names what went wrong with a warm-up that was sent.
func failure(a Answer, err error) string {
	switch {
	case err != nil && strings.Contains(err.Error(), context.DeadlineExceeded.Error()):
		return "timeout"
	case err != nil:
		return "connection"
	case a.Status == 429 || a.Status == 503:
		return "busy"
	case a.Status >= 500:
		return "http_5xx"
	case a.Status >= 400:
		return "http_4xx"
	case a.Void:
		return "void"
	}
	return "http_other"
}

// answered is the outcome that the router gets of an answer.
func answered(a Answer) router.Outcome {
	u := a.Usage
	if u == (openai.Usage{}) {
		u = openai.NoUsage
	}
	return router.Outcome{OK: a.ok(), CachedTokens: u.CachedTokens, PromptTokens: u.PromptTokens, OutputTokens: u.CompletionTokens}
}

// noOutcome is that of a warm-up without an answer.
var noOutcome = router.Outcome{CachedTokens: -1, PromptTokens: -1, OutputTokens: -1}
