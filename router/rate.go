package router

import "time"

const (
	// startRate is the prefill rate, in tokens per second, of a model that has no
	// sample yet.
	startRate = 8000.0 // not an integer: it divides another constant
	// startRateTokens is the weight of startRate against measured tokens.
	startRateTokens = 4096
	// rateSampleTokens is the least tokens of one sample: below it the fixed cost of
	// a request dominates.
	rateSampleTokens = 2048
	// rateTrust is the number of samples from which a worker's own rate stands
	// alone; below it is shrunk toward the model's.
	rateTrust = 50
	// rateSpread bounds a worker's rate to ¼–4× of the model's.
	rateSpread = 4
	// rateMemory keeps the decayed sums at about 50 samples.
	rateMemory = 0.98
	// rateOutlier bounds one sample to ⅛–8× of the model's rate: a hung engine, or a
	// cached prefix that no event told of, is no measure of its speed.
	rateOutlier = 8
)

// rate is a measured prefill rate: decayed sums of tokens and of the time they took.
type rate struct {
	tokens, seconds float64
	faded           float64 // how much of the start value is forgotten, 0 to 1
	samples         int
}

func (r *rate) add(tokens, seconds float64) {
	r.tokens = r.tokens*rateMemory + tokens
	r.seconds = r.seconds*rateMemory + seconds
	r.faded = 1 - (1-r.faded)*rateMemory
	r.samples++
}

// pooled returns the rate of a model over all its workers, in tokens per second. The
// start value is forgotten like a sample.
func (r *rate) pooled() float64 {
	start := (1 - r.faded) * startRateTokens
	return (r.tokens + start) / (r.seconds + start/startRate)
}

// of returns the rate of one worker of the model: the pooled one, times how the worker
// compares. That is taken between measurements alone. Against the pooled rate, of which
// the start value is a part, the worker that happened to be measured first would look
// faster than its siblings, get every cold prompt for it, and so stay the only one that
// is measured.
func (r *rate) of(model *rate) float64 {
	pool := model.pooled()
	if r.samples == 0 || model.samples == 0 {
		return pool
	}
	k := float64(min(r.samples, rateTrust)) / rateTrust
	compares := r.tokens / r.seconds * model.seconds / model.tokens
	return pool * min(max(1-k+k*compares, 1./rateSpread), rateSpread)
}

// rateWindow gathers one sample: tokens that passed their first token over the time
// in which the rank had a backlog. (Tokens over TTFT would feed back: a longer queue
// would look like a slower worker.)
type rateWindow struct {
	tokens float64
	busy   time.Duration
	since  time.Time // start of the running busy period; zero while idle
	blind  int       // booked requests that will never report a first token
}

// start notes that the backlog became positive.
func (w *rateWindow) start(now time.Time) {
	if w.since.IsZero() {
		w.since = now
	}
}

// stop notes that the backlog became zero.
func (w *rateWindow) stop(now time.Time) {
	if !w.since.IsZero() {
		w.busy += max(now.Sub(w.since), 0)
		w.since = time.Time{}
	}
}

// reset drops what was gathered: work was done there that no first token tells of.
func (w *rateWindow) reset(now time.Time) {
	w.tokens, w.busy = 0, 0
	if !w.since.IsZero() {
		w.since = now
	}
}

// passed counts tokens that passed their first token and returns a sample when one
// is complete.
func (w *rateWindow) passed(tokens float64, now time.Time) (sampleTokens, seconds float64, ok bool) {
	if w.blind > 0 {
		return 0, 0, false
	}
	if !w.since.IsZero() {
		w.busy += now.Sub(w.since)
		w.since = now
	}
	w.tokens += tokens
	if w.tokens < rateSampleTokens || w.busy <= 0 {
		return 0, 0, false
	}
	sampleTokens, seconds = w.tokens, w.busy.Seconds()
	w.tokens, w.busy = 0, 0
	return sampleTokens, seconds, true
}

const (
	startIntercept  = 0.020 // a0, seconds, before the first sample
	interceptTokens = 4096  // larger prefills tell of R, not of a0
	interceptWeight = 0.05
	interceptMax    = 1.0
)

// intercept is a0: the TTFT of an idle worker beyond its prefill.
type intercept struct{ seconds float64 }

// observe takes the TTFT of a request that was alone on its worker.
func (a *intercept) observe(ttft, prefill float64) {
	x := min(max(ttft-prefill, 0), interceptMax)
	a.seconds += interceptWeight * (x - a.seconds)
}
