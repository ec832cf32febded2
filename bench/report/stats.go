package report

import (
	"math"
	"slices"
)

// quantileOf returns the q-quantile of ascending values, type 7: linear between the order
// statistics around (n − 1)·q. It is NaN for no values.
func quantileOf(sorted []float64, q float64) float64 {
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	at := q * float64(n-1)
	i := int(at)
	if i >= n-1 {
		return sorted[n-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// median returns the 0.5-quantile and reorders v.
func median(v []float64) float64 {
	n := len(v)
	if n == 0 {
		return math.NaN()
	}
	i := (n - 1) / 2
	lo := selectKth(v, i)
	if n%2 == 1 {
		return lo
	}
	return lo + 0.5*(slices.Min(v[i+1:])-lo)
}

// selectKth puts the k-th smallest value at v[k], smaller ones before it, and returns it
// (Hoare's selection). The bootstrap takes tens of thousands of medians, which is what
// sorting would be slow for.
func selectKth(v []float64, k int) float64 {
	lo, hi := 0, len(v)-1
	for lo < hi {
		pivot := v[lo+(hi-lo)/2]
		i, j := lo, hi
		for i <= j {
			for v[i] < pivot {
				i++
			}
			for v[j] > pivot {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i++
				j--
			}
		}
		switch {
		case k <= j:
			hi = j
		case k >= i:
			lo = i
		default:
			return v[k]
		}
	}
	return v[k]
}

// Summary describes a set of durations.
type Summary struct {
	Count int    `json:"count"`
	Min   Micros `json:"min_us"`
	P50   Micros `json:"p50_us"`
	P90   Micros `json:"p90_us"`
	P95   Micros `json:"p95_us"`
	P99   Micros `json:"p99_us"`
	Max   Micros `json:"max_us"`
}

// summarise sorts v; nil for no values.
func summarise(v []float64) *Summary {
	if len(v) == 0 {
		return nil
	}
	slices.Sort(v)
	at := func(q float64) Micros { return Micros(math.Round(quantileOf(v, q))) }
	return &Summary{Count: len(v), Min: at(0), P50: at(.5), P90: at(.9), P95: at(.95), P99: at(.99), Max: at(1)}
}

func mean(v []float64) float64 {
	var s float64
	for _, x := range v {
		s += x
	}
	return s / float64(len(v))
}

// deviation is the standard deviation of a sample.
func deviation(v []float64) float64 {
	if len(v) < 2 {
		return 0
	}
	m, s := mean(v), 0.0
	for _, x := range v {
		s += (x - m) * (x - m)
	}
	return math.Sqrt(s / float64(len(v)-1))
}

// studentCDF is P(T ≤ t) of Student's distribution with df degrees of freedom.
func studentCDF(t, df float64) float64 {
	half := 0.5 * incompleteBeta(df/(df+t*t), df/2, 0.5)
	if t > 0 {
		return 1 - half
	}
	return half
}

// studentQuantile inverts studentCDF by bisection.
func studentQuantile(p, df float64) float64 {
	lo, hi := -1e6, 1e6
	for range 200 {
		mid := (lo + hi) / 2
		if studentCDF(mid, df) < p {
			lo = mid
		} else {
			hi = mid
		}
	}
	return (lo + hi) / 2
}

// incompleteBeta is the regularized incomplete beta function I_x(a, b), by Lentz's
// method on its continued fraction (DLMF 8.17.22).
func incompleteBeta(x, a, b float64) float64 {
	if x <= 0 {
		return 0
	}
	if x >= 1 {
		return 1
	}
	if x > (a+1)/(a+b+2) {
		return 1 - incompleteBeta(1-x, b, a)
	}
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab-la-lb+a*math.Log(x)+b*math.Log1p(-x)) / a
	const tiny = 1e-300
	c, d := 1.0, 0.0
	f := 1.0
	for i := range 300 {
		m := float64(i / 2)
		var num float64
		switch {
		case i == 0:
			num = 1
		case i%2 == 0:
			num = m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		default:
			num = -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		}
		d = 1 + num*d
		if math.Abs(d) < tiny {
			d = tiny
		}
		d = 1 / d
		c = 1 + num/c
		if math.Abs(c) < tiny {
			c = tiny
		}
		f *= c * d
		if math.Abs(1-c*d) < 1e-13 {
			break
		}
	}
	return front * (f - 1)
}
