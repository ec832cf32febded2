package router

import (
	"math"
	"sync"
)

const (
	itlMemory    = 0.9995 // about 2,000 samples
	itlPrior     = 10     // weight of the start values, in samples
	itlSolve     = 32     // samples between two solutions
	itlMaxSample = 5      // a gap counts as at most 5× the expected one: clients stall
	// itlWindow is the least tokens of one sample: single gaps are quantised by the
	// network and by the engine's own batching of chunks.
	itlWindow = 16
)

// itlScale brings the regressors 1, n, KV to about 1.
var itlScale = [3]float64{1, 10, 1e5}

// itlFit fits ITL = a + b·n + c·KV of one model by least squares with exponential
// forgetting, held near the start values by a ridge: n and KV grow together, and a
// fleet that always runs one sequence cannot tell a from b.
type itlFit struct {
	mu struct {
		sync.Mutex
		xx      [3][3]float64
		xy      [3]float64
		samples int
		coef    itl
	}
}

func newITLFit() *itlFit {
	f := &itlFit{}
	f.mu.coef = startITL
	return f
}

// coefficients returns the current fit and its number of samples.
func (f *itlFit) coefficients() (itl, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.coef, f.mu.samples
}

// observe takes the mean gap between tokens, in seconds, seen while n sequences with
// kv KV tokens decoded and nothing was prefilled.
func (f *itlFit) observe(gap, n, kv float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.mu.coef
	gap = min(gap, itlMaxSample*(c.a+c.b*n+c.c*kv))
	x := [3]float64{1 / itlScale[0], n / itlScale[1], kv / itlScale[2]}
	for i := range x {
		for j := range x {
			f.mu.xx[i][j] = f.mu.xx[i][j]*itlMemory + x[i]*x[j]
		}
		f.mu.xy[i] = f.mu.xy[i]*itlMemory + x[i]*gap
	}
	if f.mu.samples++; f.mu.samples%itlSolve == 0 {
		f.mu.coef = solveITL(f.mu.xx, f.mu.xy)
	}
}

// solveITL solves the ridge equations with coefficients ≥ 0: a negative one is fixed
// at zero and the others are solved again.
func solveITL(xx [3][3]float64, xy [3]float64) itl {
	start := [3]float64{startITL.a * itlScale[0], startITL.b * itlScale[1], startITL.c * itlScale[2]}
	for i := range 3 {
		xx[i][i] += itlPrior
		xy[i] += itlPrior * start[i]
	}
	free := [3]bool{true, true, true}
	for {
		t := solve3(xx, xy, free)
		worst := -1
		for i := range 3 {
			if t[i] < 0 && (worst < 0 || t[i] < t[worst]) {
				worst = i
			}
		}
		if worst < 0 {
			return itl{t[0] / itlScale[0], t[1] / itlScale[1], t[2] / itlScale[2]}
		}
		free[worst] = false
	}
}

// solve3 solves m·t = y over the free variables by elimination; the others are 0.
func solve3(m [3][3]float64, y [3]float64, free [3]bool) (t [3]float64) {
	for i := range 3 {
		if !free[i] {
			for j := range 3 {
				m[i][j], m[j][i] = 0, 0
			}
			m[i][i], y[i] = 1, 0
		}
	}
	for c := range 3 {
		p := c
		for r := c + 1; r < 3; r++ {
			if math.Abs(m[r][c]) > math.Abs(m[p][c]) {
				p = r
			}
		}
		m[c], m[p], y[c], y[p] = m[p], m[c], y[p], y[c]
		for r := c + 1; r < 3; r++ {
			k := m[r][c] / m[c][c]
			for j := c; j < 3; j++ {
				m[r][j] -= k * m[c][j]
			}
			y[r] -= k * y[c]
		}
	}
	for c := 2; c >= 0; c-- {
		v := y[c]
		for j := c + 1; j < 3; j++ {
			v -= m[c][j] * t[j]
		}
		t[c] = v / m[c][c]
	}
	return t
}
