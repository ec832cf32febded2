package sim

import (
	"fmt"
	"time"
)

// StepWork is what one engine step computes: the input of a Profile.
type StepWork struct {
	PrefillTokens  int // prompt tokens computed in this step, over all sequences
	DecodeSeqs     int // sequences that get one more token from their cached KV
	KVTokens       int // KV tokens those sequences attend to
	CapacityTokens int // KV tokens the engine can hold
}

// Profile says how long one step takes before speed-up.
type Profile interface {
	Step(w StepWork) time.Duration
}

// LinearProfile is the default cost model. Every step pays Base; prefill tokens are
// computed at PrefillRate; each decoding sequence and each KV token it attends to adds
// its share. A zero field takes its default.
type LinearProfile struct {
	PrefillRate float64       // prompt tokens per second; default 8,000
	Base        time.Duration // cost of any step; default 8 ms
	PerSeq      time.Duration // per decoding sequence; default 100 µs
	PerKVToken  time.Duration // per KV token of decoding sequences; default 20 ns
}

// Step implements Profile.
func (p LinearProfile) Step(w StepWork) time.Duration {
	if p.PrefillRate == 0 {
		p.PrefillRate = 8000
	}
	if p.Base == 0 {
		p.Base = 8 * time.Millisecond
	}
	if p.PerSeq == 0 {
		p.PerSeq = 100 * time.Microsecond
	}
	if p.PerKVToken == 0 {
		p.PerKVToken = 20 * time.Nanosecond
	}
	return p.Base +
		time.Duration(float64(w.PrefillTokens)/p.PrefillRate*float64(time.Second)) +
		time.Duration(w.DecodeSeqs)*p.PerSeq +
		time.Duration(w.KVTokens)*p.PerKVToken
}

// PolynomialProfile is the published cost model of Dynamo's mocker: prefill is
// quadratic in the step's prompt tokens, decode quadratic in the share of the KV
// capacity that is attended to.
type PolynomialProfile struct{}

// Step implements Profile.
func (PolynomialProfile) Step(w StepWork) time.Duration {
	var ms float64
	if t := float64(w.PrefillTokens); t > 0 {
		ms += 4.209989e-7*t*t + 1.518344e-2*t + 16.50142
	}
	if w.DecodeSeqs > 0 {
		p := min(float64(w.KVTokens)/float64(max(w.CapacityTokens, 1)), 1)
		ms += max(1, -25.74*p*p+54.01*p+5.74)
	}
	return time.Duration(ms * float64(time.Millisecond))
}

// ParseProfile returns the profile that a flag or file names: "linear" or
// "polynomial".
func ParseProfile(name string) (Profile, error) {
	switch name {
	case "", "linear":
		return LinearProfile{}, nil
	case "polynomial":
		return PolynomialProfile{}, nil
	}
	return nil, fmt.Errorf("profile %q is unknown: use linear or polynomial", name)
}
