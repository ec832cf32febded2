package router

// costInput is one candidate as the cost sees it. Tokens are counts, times seconds.
type costInput struct {
	prompt  float64 // tokens of our prompt
	overlap float64 // tokens of it that the worker holds
	backlog float64 // tokens booked there that are not past their first token
	rate    float64 // R, prefill tokens per second
	n       float64 // sequences in flight there
	kv      float64 // KV tokens of those sequences, each counted in full
	held    float64 // KV tokens of those sequences, shared blocks counted once
	own     float64 // KV tokens that ours adds to held
	cap     float64 // KV tokens that fit; 0: not known
	maxSeqs float64 // sequences that run at once; 0: not known
	itl     itl
	output  float64 // L, expected output tokens of this turn
	turns   float64 // F, expected turns that this choice binds
	must    float64 // tokens that must go
	evict   float64 // those, each weighted by e^(−idle age/τ)
}

// itl holds the coefficients of ITL = a + b·n + c·KV, in seconds.
type itl struct{ a, b, c float64 }

// startITL is the fit before the first sample: 8 ms a step, 0.1 ms a sequence, 20 ns
// a KV token.
var startITL = itl{8e-3, 1e-4, 20e-9}

// costTerms are the terms of one candidate's cost in seconds.
type costTerms struct {
	queue   float64 // backlog / R
	slot    float64 // wait for a sequence slot or for KV room
	prefill float64 // P
	decode  float64 // ½·F·L·ΔITL
	stall   float64 // ¼·n·P
	evict   float64 // E
}

func (t costTerms) total() float64 {
	return t.queue + t.slot + t.prefill + t.decode + t.stall + t.evict
}

// wait is the time until our prefill starts.
func (t costTerms) wait() float64 { return t.queue + t.slot }

// cost computes the terms of one candidate.
func (in costInput) cost() costTerms {
	// One more sequence there costs every step b for itself and c for the context it
	// shares the memory bus with; the factor ½ charges each pair of sequences once.
	delta := in.itl.b*in.n + in.itl.c*in.kv
	p := max(in.prompt-in.overlap, 0) / in.rate
	return costTerms{
		queue:   in.backlog / in.rate,
		slot:    in.slots() * in.output * (in.itl.a + delta),
		prefill: p,
		decode:  0.5 * in.turns * in.output * delta,
		stall:   0.25 * in.n * p,
		evict:   in.evict / in.rate,
	}
}

// slots is the number of whole answers that must end there before ours can start:
// the sequences beyond the engine's limit, in units of that limit, and the KV tokens
// beyond 95 % of its capacity, in units of what runs: at most 1, as a prompt that does
// not fit alone waits for all of them and no longer. An unknown limit counts as none.
func (in costInput) slots() float64 {
	s := 0.0
	if in.maxSeqs > 0 {
		s += max(in.n+1-in.maxSeqs, 0) / in.maxSeqs
	}
	if in.cap > 0 && in.held > 0 {
		s += min(max(in.held+in.own-0.95*in.cap, 0)/in.held, 1)
	}
	return s
}
