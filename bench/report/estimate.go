package report

import (
	"math"
	"math/rand/v2"
	"slices"
)

const (
	confidence = 0.95
	power      = 0.8 // of the smallest detectable effect
	resamples  = 1000
	// tailSamples is how many values a block needs before its p99 is compared: at 1,100 a
	// p99 ratio has an interval of about −27 %/+38 %.
	tailSamples = 2000
	// minEffect is the smallest change that is called one. Smaller ones can be real and
	// are of no use to anybody.
	minEffect = 0.005
)

// Estimate is the ratio treatment / baseline of one statistic, over pairs of blocks.
type Estimate struct {
	Name   string  `json:"name"`
	A      Micros  `json:"a_us"` // mean over blocks
	B      Micros  `json:"b_us"`
	Ratio  float64 `json:"ratio"` // exp of the mean log ratio
	Low    float64 `json:"low"`   // 95 % interval
	High   float64 `json:"high"`
	Pairs  int     `json:"pairs"`
	P      float64 `json:"p"`                // t-test that the ratio is 1
	Holm   float64 `json:"p_holm,omitempty"` // P corrected for all turns
	Method string  `json:"method"`           // "t" or "bootstrap": the wider interval

	logs []float64 // of each pair
}

// differs tells whether the interval leaves out 1 by an effect worth the word.
func (e *Estimate) differs() bool {
	return (e.Low > 1 || e.High < 1) && math.Abs(math.Log(e.Ratio)) >= math.Log1p(minEffect)
}

// detectable is the smallest change, as a share, that this design finds in 80 of 100
// repetitions.
func (e *Estimate) detectable() float64 {
	df := float64(e.Pairs - 1)
	half := (math.Log(e.High) - math.Log(e.Low)) / 2
	se := deviation(e.logs) / math.Sqrt(float64(e.Pairs))
	return max(1-math.Exp(-(half+studentQuantile(power, df)*se)), minEffect)
}

// pair holds the records of the two blocks of one pair.
type pair struct{ a, b []Record }

// statistic is a value of a block, NaN where the block has none. It may reorder v.
type statistic func(v []float64) float64

func quantile(q float64) statistic {
	return func(v []float64) float64 {
		slices.Sort(v)
		return quantileOf(v, q)
	}
}

func average(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	return mean(v)
}

// estimate compares a statistic of a measure over pairs by the t-interval of their log
// ratios. ok is false where some block has no value.
func estimate(name string, pairs []pair, m measure, keep func(*Record) bool, s statistic) (e Estimate, ok bool) {
	e = Estimate{Name: name, Pairs: len(pairs), Method: "t"}
	var sumA, sumB float64
	for _, p := range pairs {
		a, b := s(values(p.a, m, keep)), s(values(p.b, m, keep))
		if !(a > 0) || !(b > 0) {
			return e, false
		}
		sumA, sumB = sumA+a, sumB+b
		e.logs = append(e.logs, math.Log(b/a))
	}
	if len(pairs) < 2 {
		return e, false
	}
	k := float64(len(pairs))
	e.A, e.B = Micros(sumA/k), Micros(sumB/k)
	center, se := mean(e.logs), deviation(e.logs)/math.Sqrt(k)
	half := studentQuantile(0.5+confidence/2, k-1) * se
	e.Ratio, e.Low, e.High = math.Exp(center), math.Exp(center-half), math.Exp(center+half)
	e.P = 1
	switch {
	case se > 0:
		e.P = 2 * studentCDF(-math.Abs(center)/se, k-1)
	case center != 0:
		e.P = 0
	}
	return e, true
}

// widen replaces the t-interval by the hierarchical bootstrap's where that is wider:
// pairs of blocks are drawn with replacement, and in each of them conversations, the
// same ones in both arms. Turns of a conversation are not independent of each other, and
// blocks are not of a machine's mood.
func (e *Estimate) widen(pairs []pair, m measure, keep func(*Record) bool, s statistic, seed uint64) {
	type talks struct{ a, b [][]float64 }
	var drawn []talks
	for _, p := range pairs {
		drawn = append(drawn, talks{conversations(p.a, m, keep), conversations(p.b, m, keep)})
	}
	r := rand.New(rand.NewPCG(seed, 0x626f6f74))
	var va, vb []float64
	logs := make([]float64, 0, resamples)
	for range resamples {
		sum, n := 0.0, 0
		for range drawn {
			t := &drawn[r.IntN(len(drawn))]
			va, vb = va[:0], vb[:0]
			users := max(len(t.a), len(t.b))
			for range users {
				u := r.IntN(users)
				if u < len(t.a) {
					va = append(va, t.a[u]...)
				}
				if u < len(t.b) {
					vb = append(vb, t.b[u]...)
				}
			}
			if d := math.Log(s(vb) / s(va)); !math.IsNaN(d) && !math.IsInf(d, 0) {
				sum += d
				n++
			}
		}
		if n > 0 {
			logs = append(logs, sum/float64(n))
		}
	}
	if len(logs) < resamples/2 {
		return
	}
	slices.Sort(logs)
	low, high := quantileOf(logs, 0.5-confidence/2), quantileOf(logs, 0.5+confidence/2)
	if high-low > math.Log(e.High)-math.Log(e.Low) {
		e.Low, e.High, e.Method = math.Exp(low), math.Exp(high), "bootstrap"
	}
}

// conversations returns the values of each user, indexed by user.
func conversations(records []Record, m measure, keep func(*Record) bool) [][]float64 {
	var out [][]float64
	for i := range records {
		q := &records[i]
		for q.User >= len(out) {
			out = append(out, nil)
		}
		if !q.OK || q.Step > 0 || keep != nil && !keep(q) {
			continue
		}
		if v, ok := m(q); ok {
			out[q.User] = append(out[q.User], v)
		}
	}
	return out
}

// holm corrects the p-values of a family of estimates (Holm 1979).
func holm(es []Estimate) {
	order := make([]int, len(es))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		switch {
		case es[i].P < es[j].P:
			return -1
		case es[i].P > es[j].P:
			return 1
		}
		return i - j
	})
	highest := 0.0
	for rank, i := range order {
		highest = max(highest, min(1, es[i].P*float64(len(es)-rank)))
		es[i].Holm = highest
	}
}
