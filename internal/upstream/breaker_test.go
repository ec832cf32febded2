package upstream

import (
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// clock is the time that a breaker under test is told.
type clock struct{ time.Time }

func (c *clock) pass(d time.Duration) { c.Time = c.Add(d) }

func newClock() *clock { return &clock{time.Unix(1_000_000, 0)} }

// fail records n failures of requests sent just now.
func (c *clock) fail(b *breaker, n int) {
	for range n {
		b.record(failed, c.Time, c.Time, "it answered 500")
	}
}

func (c *clock) succeed(b *breaker, n int) {
	for range n {
		b.record(succeeded, c.Time, c.Time, "")
	}
}

// state demands the state of a breaker.
func demand(t *testing.T, b *breaker, want, when string) {
	t.Helper()
	if got, reason := b.standing(); got != want {
		t.Fatalf("%s: %s (%s), want %s", when, got, reason, want)
	}
}

func TestBreaker_OpensInARow(t *testing.T) {
	var b breaker
	c := newClock()
	c.fail(&b, failuresInRow-1)
	c.succeed(&b, 1)
	c.fail(&b, failuresInRow-1)
	b.record(neutral, c.Time, c.Time, "")
	demand(t, &b, "closed", "a success between failures")
	c.fail(&b, 1)
	demand(t, &b, "open", "five in a row")
	n, changed := b.flush()
	if !changed || n.ejected != ejectInRow || n.router.Level != levelEjected || n.router.Trial || !strings.Contains(n.router.Reason, "500") {
		t.Errorf("%+v", n)
	}
	if _, changed := b.flush(); changed {
		t.Error("the same news twice")
	}
}

func TestBreaker_OpensByShare(t *testing.T) {
	f := func(what string, good, bad int, apart time.Duration, want string) {
		t.Helper()
		var b breaker
		c := newClock()
		for range max(good, bad) { // never many of one kind in a row
			if bad > 0 {
				c.fail(&b, 1)
				bad--
			}
			if got, _ := b.standing(); got == "open" {
				break
			}
			if good > 0 {
				c.succeed(&b, 1)
				good--
			}
			c.pass(apart)
		}
		demand(t, &b, want, what)
	}
	f("half of 20", 10, 10, 0, "closed") // the 20th is a success: it takes a failure to open
	f("half of 22", 11, 11, 0, "open")
	f("half of 18", 9, 9, 0, "closed")
	f("a third", 20, 10, 0, "closed")
	f("half, but over 40 s", 20, 20, 2*time.Second, "closed")
}

func TestBreaker_TrialsBackOff(t *testing.T) {
	var b breaker
	c := newClock()
	c.fail(&b, failuresInRow)
	want := minBackoff
	for i := range 8 {
		from := c.Time
		ask := false
		for !ask {
			c.pass(10 * time.Millisecond)
			ask, _ = b.tick(c.Time)
		}
		if d := c.Sub(from); d < want*3/4 || d > want*5/4+10*time.Millisecond {
			t.Errorf("trial %d after %v, want %v ± 25 %%", i+1, d, want)
		}
		demand(t, &b, "trial", "after the back-off")
		b.answered(broken, c.Time, "it answered 500")
		demand(t, &b, "open", "the trial failed")
		if n, _ := b.flush(); n.ejected != "" && i > 0 || n.router.Level != levelEjected+min(i+1, 8) {
			t.Errorf("after %d trials: %+v", i+1, n)
		}
		want = min(2*want, maxBackoff)
	}
	c.pass(maxBackoff * 5 / 4)
	b.tick(c.Time)
	b.answered(generates, c.Time, "")
	demand(t, &b, "closed", "the trial succeeded")
	if n, _ := b.flush(); !n.back || n.router.Level != 0 || n.state != stateClosed {
		t.Errorf("%+v", n)
	}

	// Failing again soon, it is out for as long as before; after a quiet time it is not.
	for _, quiet := range []time.Duration{maxBackoff - time.Second, maxBackoff} {
		c.pass(quiet)
		from := c.Time
		c.fail(&b, failuresInRow)
		for ask := false; !ask; ask, _ = b.tick(c.Time) {
			c.pass(10 * time.Millisecond)
		}
		if long := c.Sub(from) > 2*minBackoff; long != (quiet < maxBackoff) {
			t.Errorf("after %v of quiet it was out for %v", quiet, c.Sub(from))
		}
		b.answered(generates, c.Time, "")
	}
}

func TestBreaker_RealRequestsTryWhereNoProbeCan(t *testing.T) {
	var b breaker
	c := newClock()
	c.fail(&b, failuresInRow)
	b.flush()
	offered := 0
	for range 100 { // nobody takes the trials: another is offered each time
		c.pass(100 * time.Millisecond)
		if ask, _ := b.tick(c.Time); ask {
			b.answered(unable, c.Time, "")
		}
		if n, _ := b.flush(); n.router.Trial {
			offered++
			if n.router.Level != levelEjected || n.state != stateTrial {
				t.Fatalf("%+v", n)
			}
		}
	}
	if offered < 7 || offered > 13 {
		t.Errorf("%d trials in 10 s", offered)
	}
	b.record(failed, c.Time, c.Time, "it answered 503")
	demand(t, &b, "open", "the request that tried it failed")
	c.pass(3 * time.Second)
	b.tick(c.Time)
	b.answered(unable, c.Time, "")
	b.answers(c.Time, c.Time)
	demand(t, &b, "closed", "the request that tried it is answered")
}

// TestBreaker_OneTrialAtATime: while a client's request tries a worker that hangs, no other
// is sent there.
func TestBreaker_OneTrialAtATime(t *testing.T) {
	var b breaker
	c := newClock()
	c.fail(&b, failuresInRow)
	c.pass(2 * time.Second)
	b.tick(c.Time)
	b.answered(unable, c.Time, "")
	if n, _ := b.flush(); !n.router.Trial {
		t.Fatal("no trial")
	}
	var one flight
	c.pass(time.Second)
	sent := c.Time
	b.begin(&one, sent, true, 0)
	for range 600 {
		c.pass(time.Second)
		if ask, _ := b.tick(c.Time); ask {
			t.Fatal("another trial beside one that waits")
		}
	}
	b.settle(&one)
	b.record(failed, sent, c.Time, "first_byte_timeout")
	demand(t, &b, "open", "the trial ran into its limit")
	c.pass(1400 * time.Millisecond)
	if ask, _ := b.tick(c.Time); ask {
		t.Error("the back-off did not double")
	}
	c.pass(1200 * time.Millisecond)
	if ask, _ := b.tick(c.Time); !ask {
		t.Error("no trial after the back-off")
	}
}

// TestBreaker_OldRequestsProveNothing: what was sent before a change of state says nothing
// of the new one.
func TestBreaker_OldRequestsProveNothing(t *testing.T) {
	var b breaker
	c := newClock()
	before := c.Time
	c.pass(time.Second)
	c.fail(&b, failuresInRow)
	c.pass(100 * time.Millisecond)
	b.record(succeeded, before, c.Time, "")
	b.answers(before, c.Time)
	demand(t, &b, "open", "an old stream ended well")
	c.pass(2 * time.Second)
	b.tick(c.Time)
	for range failuresInRow {
		b.record(failed, before, c.Time, "connection reset")
	}
	demand(t, &b, "trial", "old streams broke off")
	b.answered(generates, c.Time, "")
	for range failuresInRow {
		b.record(failed, before, c.Time, "first_byte_timeout")
	}
	demand(t, &b, "closed", "old requests ran into their limit")
	b.record(succeeded, c.Time, c.Time, "")
	c.fail(&b, failuresInRow)
	demand(t, &b, "open", "new ones fail again")
	b.record(succeeded, c.Time, c.Time, "")
	demand(t, &b, "closed", "a request that went there for want of others was answered")
}

func TestBreaker_PauseIsBounded(t *testing.T) {
	var b breaker
	c := newClock()
	b.pause(3*time.Second, c.Time)
	n, _ := b.flush()
	if n.router.Level != levelPaused || n.state != stateClosed || !strings.Contains(n.router.Reason, "Retry-After") {
		t.Errorf("%+v", n)
	}
	b.pause(time.Second, c.Time) // does not shorten it
	c.pass(2 * time.Second)
	if _, changed := b.tick(c.Time); changed {
		t.Error("the pause ended early")
	}
	c.pass(time.Second)
	if _, changed := b.tick(c.Time); !changed {
		t.Error("the pause did not end")
	}
	if n, _ := b.flush(); n.router.Level != 0 || n.router.Reason != "" {
		t.Errorf("%+v", n)
	}
	b.pause(time.Hour, c.Time)
	c.pass(maxPause)
	b.tick(c.Time)
	if n, _ := b.flush(); n.router.Level != 0 {
		t.Errorf("a pause of an hour lasts longer than %v: %+v", maxPause, n)
	}
}

func TestBreaker_ResetForgets(t *testing.T) {
	var b breaker
	c := newClock()
	c.fail(&b, failuresInRow)
	b.pause(time.Minute, c.Time)
	b.flush()
	b.reset(c.Time)
	if n, changed := b.flush(); !changed || n.router != (news{}).router || n.back {
		t.Errorf("%+v", n)
	}
	c.fail(&b, failuresInRow-1)
	demand(t, &b, "closed", "failures before the reset do not count")
}

// TestBreaker_SuspectsByComparison tells when a worker is asked whether it is stuck.
func TestBreaker_SuspectsByComparison(t *testing.T) {
	f := func(what string, stream bool, predicted, sign, at time.Duration, want bool) {
		t.Helper()
		var b breaker
		c := newClock()
		start := c.Time
		var one flight
		b.begin(&one, start, stream, predicted)
		if sign > 0 {
			b.progress.Store(start.Add(sign).UnixNano())
		}
		if ask, _ := b.tick(start.Add(at)); ask != want {
			t.Errorf("%s: asked %v", what, ask)
		}
		b.settle(&one)
		b.settle(&one)
		if b.mu.flights != (flights{}) {
			t.Errorf("%s: flights remain", what)
		}
		if ask, _ := b.tick(start.Add(time.Hour)); ask && !want {
			t.Errorf("%s: asked though nothing is owed", what)
		}
	}
	f("short prompt", true, 50*time.Millisecond, 0, 3*time.Second, true)
	f("short prompt, soon", true, 50*time.Millisecond, 0, 2900*time.Millisecond, false)
	f("long prompt", true, 12*time.Second, 0, 119*time.Second, false)
	f("long prompt, overdue", true, 12*time.Second, 0, 120*time.Second, true)
	f("others progress", true, 50*time.Millisecond, 9*time.Second, 10*time.Second, false)
	f("others progressed", true, 50*time.Millisecond, 9*time.Second, 12*time.Second, true)
	f("whole answer", false, 50*time.Millisecond, 0, 59*time.Second, false)
	f("whole answer, overdue", false, 50*time.Millisecond, 0, time.Minute, true)
}

func TestBreaker_StuckUntilItMoves(t *testing.T) {
	var b breaker
	c := newClock()
	var one, two flight
	b.begin(&one, c.Time, true, 0)
	c.pass(time.Second)
	b.begin(&two, c.Time, true, 0)
	c.pass(3 * time.Second)
	if ask, _ := b.tick(c.Time); !ask {
		t.Fatal("not asked")
	}
	if ask, _ := b.tick(c.Time); ask {
		t.Fatal("asked twice at once")
	}
	b.answered(generates, c.Time, "")
	demand(t, &b, "closed", "it generates")
	c.pass(overdueStream)
	b.tick(c.Time)
	c.pass(time.Second)
	b.progress.Store(c.UnixNano())
	b.answered(broken, c.Time, "one token took too long")
	demand(t, &b, "closed", "it moved while it was asked")
	c.pass(overdueStream)
	if ask, _ := b.tick(c.Time); !ask {
		t.Fatal("not asked again")
	}
	c.pass(askTimeout)
	b.answered(broken, c.Time, "one token took too long")
	demand(t, &b, "open", "it is stuck")
	if n, _ := b.flush(); n.ejected != ejectStuck {
		t.Errorf("%+v", n)
	}
	c.pass(100 * time.Millisecond)
	b.progress.Store(c.UnixNano()) // an old request gets its first byte
	b.tick(c.Time)
	demand(t, &b, "closed", "it moves")
}

func TestRetryAfter_ReadsBothForms(t *testing.T) {
	f := func(v string, want time.Duration) {
		t.Helper()
		var h fasthttp.ResponseHeader
		if v != "" {
			h.Set("Retry-After", v)
		}
		if d := RetryAfter(&h); d < want-time.Second || d > want {
			t.Errorf("%q: %v, want %v", v, d, want)
		}
	}
	f("", 0)
	f("7", 7*time.Second)
	f("-1", 0)
	f("99999999999", time.Hour)
	f("soon", 0)
	f(time.Now().Add(20*time.Second).UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT"), 20*time.Second)
	f("Mon, 02 Jan 2006 15:04:05 GMT", 0)
	if s := string(oneToken(`a"b`)); !strings.HasPrefix(s, `{"model":"a\"b","prompt":`) {
		t.Errorf("%s", s)
	}
}
