package prompt

import "sync"

const (
	startBytesPerToken = 4
	minBytesPerToken   = 1
	maxBytesPerToken   = 16
	ratioWeight        = 0.1 // of one sample in the moving average
	ratioMinTokens     = 64  // smaller prompts are mostly template
	maxRatios          = 1024
)

// ratios learns the bytes of canonical text per token, model by model. It converts
// lengths of text where no tokens are known.
type ratios struct {
	mu struct {
		sync.Mutex
		byModel map[string]float64
	}
}

func (r *ratios) of(model string) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.mu.byModel[model]; ok {
		return v
	}
	return startBytesPerToken
}

// learn takes one sample and tells whether there was room for it.
func (r *ratios) learn(model string, bytes, tokens int) bool {
	if tokens < ratioMinTokens || bytes <= 0 {
		return true
	}
	sample := min(max(float64(bytes)/float64(tokens), minBytesPerToken), maxBytesPerToken)
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.mu.byModel[model]
	if !ok {
		if len(r.mu.byModel) >= maxRatios {
			return false
		}
		if r.mu.byModel == nil {
			r.mu.byModel = make(map[string]float64)
		}
		v = startBytesPerToken
	}
	r.mu.byModel[model] = v + ratioWeight*(sample-v)
	return true
}
