package jinja

import (
	"sync"
	"time"
	"unsafe"
)

// Defaults of Env.
const (
	defaultMaxOutput = 64 << 20
	defaultMaxSteps  = 1_000_000
	defaultMaxDepth  = 200
)

// stepBytes is the number of bytes of text made on the way (not output) that count as
// one step.
const stepBytes = 256

// scanBytes is the number of bytes looked at (compared, searched, counted) that count
// as one step.
const scanBytes = 1024

// stopEvery is after how many steps Env.Stop is asked.
const stopEvery = 1024

// Env holds the clock and the bounds of a Render. A zero field has its default.
type Env struct {
	Now       func() time.Time // for strftime_now; time.Now. Set it to make prompts repeatable
	MaxOutput int              // bytes of output, and of any one text made on the way; 64 MiB
	MaxSteps  int              // loop rounds, calls, 16 tokens run, 256 bytes of text made; 1,000,000
	MaxDepth  int              // nested macro calls and recursive loops; 200
	Stop      func() bool      // asked every 1,024 steps; true ends the Render. nil is never
}

// Template is a parsed template. It is immutable and safe for concurrent use.
type Template struct {
	body  []stmt
	root  *scope
	names []string // of the context, by ctx slot

	readsParts bool
}

// state is one Render.
type state struct {
	out      []byte // the caller's dst, grown
	base     int    // length of dst before the Render
	ctx      []Value
	fr       *frame
	stack    []Value // arguments of the calls that are being evaluated
	free     []*frame
	loops    []*loopObj
	values   []Value // arena for small lists
	text     []byte  // arena for small strings
	scratch  []byte
	captured Value // text of the block whose filters run
	steps    int   // that are left
	stopAt   int   // steps left at which stop is asked; 0 where it is nil
	stop     func() bool
	maxOut   int
	depth    int
	maxDepth int
	line     int
	now      func() time.Time
}

// frame holds the variables of one activation of the template, a macro, a call block
// or a recursive loop.
type frame struct {
	slots []Value
	up    *frame // of the function around
}

var states = sync.Pool{New: func() any { return new(state) }}

// Render appends the text of the template to dst and returns it. vars hold the
// variables; neither they nor anything they hold is changed, and nothing of them is
// kept. On an error, an *Error, it returns dst unchanged.
func (t *Template) Render(dst []byte, vars *Dict, env *Env) ([]byte, error) {
	if env == nil {
		env = &Env{}
	}
	st := states.Get().(*state)
	st.start(dst, env)
	err := st.run(t, vars)
	out := st.out
	st.reset()
	states.Put(st)
	if err != nil {
		return dst, err
	}
	return out, nil
}

func (st *state) start(dst []byte, env *Env) {
	orDefault := func(n, def int) int {
		if n > 0 {
			return n
		}
		return def
	}
	st.out, st.base = dst, len(dst)
	st.maxOut = orDefault(env.MaxOutput, defaultMaxOutput)
	st.steps = orDefault(env.MaxSteps, defaultMaxSteps)
	st.maxDepth = orDefault(env.MaxDepth, defaultMaxDepth)
	st.stop, st.stopAt = env.Stop, 0
	if st.stop != nil {
		st.stopAt = max(st.steps-stopEvery, 0)
	}
	if st.now = env.Now; st.now == nil {
		st.now = time.Now
	}
	st.line, st.depth = 1, 0
}

// run executes t. All errors of a Render arrive here as panics.
func (st *state) run(t *Template, vars *Dict) (err error) {
	defer func() {
		if e := recovered(recover(), st.line); e != nil {
			err = e
		}
	}()
	st.bindContext(t.names, vars)
	st.fr = st.newFrame(t.root.fn.slots, nil)
	t.root.enter(st)
	st.exec(t.body)
	st.checkOutput()
	st.release(st.fr)
	return nil
}

// bindContext looks every free name of the template up once: variables first, then
// the globals.
func (st *state) bindContext(names []string, vars *Dict) {
	st.ctx = st.ctx[:0]
	for _, name := range names {
		v, ok := Value{}, false
		if vars != nil {
			v, ok = vars.Get(name)
		}
		if !ok {
			if v, ok = globals[name]; !ok {
				v = undefined(name)
			}
		}
		st.ctx = append(st.ctx, v)
	}
}

// reset lets go of everything that the Render used and keeps small buffers.
func (st *state) reset() {
	const keep = 64 << 10
	clear(st.ctx)
	clear(st.stack[:cap(st.stack)])
	clear(st.values[:cap(st.values)])
	st.stack, st.values, st.text, st.scratch = st.stack[:0], st.values[:0], st.text[:0], st.scratch[:0]
	if cap(st.scratch) > keep {
		st.scratch = nil
	}
	if cap(st.stack) > keep/int(unsafe.Sizeof(Value{})) {
		st.stack = nil
	}
	if len(st.free) > 32 {
		clear(st.free[32:])
		st.free = st.free[:32]
	}
	st.out, st.now, st.stop, st.fr, st.captured = nil, nil, nil, nil, Value{}
}

// scan counts the steps of looking at n bytes of text.
func (st *state) scan(n int) {
	if n >= scanBytes {
		st.charge(n / scanBytes)
	}
}

// charge counts n steps.
func (st *state) charge(n int) {
	if st.steps -= n; st.steps < st.stopAt {
		st.checkSteps()
	}
}

func (st *state) checkSteps() {
	if st.steps < 0 {
		failLimit("template takes too many steps")
	}
	if st.stop() {
		failLimit("template takes too long")
	}
	st.stopAt = max(st.steps-stopEvery, 0)
}

// bound refuses a text of n bytes that is longer than the output may be.
func (st *state) bound(n int) {
	if n-st.base > st.maxOut {
		failLimit("text is too long")
	}
}

func (st *state) checkOutput() {
	if len(st.out)-st.base > st.maxOut {
		failLimit("output is too long")
	}
}

// newFrame returns a frame of n unset slots.
func (st *state) newFrame(n int, up *frame) *frame {
	var f *frame
	if last := len(st.free) - 1; last >= 0 {
		f = st.free[last]
		st.free = st.free[:last]
	} else {
		f = new(frame)
	}
	if cap(f.slots) < n {
		f.slots = make([]Value, n, n+8)
	}
	f.slots, f.up = f.slots[:n], up
	for i := range f.slots {
		f.slots[i] = missing
	}
	return f
}

// release gives a frame back that no macro can refer to.
func (st *state) release(f *frame) {
	clear(f.slots)
	f.up = nil
	st.free = append(st.free, f)
}

// newValues returns room for n values that live at most as long as the Render.
func (st *state) newValues(n int) []Value {
	const chunk = 512
	st.charge(n / 8)
	if n > 64 {
		return make([]Value, n)
	}
	if len(st.values)+n > cap(st.values) {
		st.values = make([]Value, 0, chunk)
	}
	start := len(st.values)
	st.values = st.values[:start+n]
	return st.values[start : start+n : start+n]
}

// build returns the text that f appends, as a string that lives as long as the Render.
func (st *state) build(f func([]byte) []byte) string {
	buf := st.scratch
	st.scratch = nil // f may need one too
	b := f(buf[:0])
	s := st.copyText(b)
	st.scratch = b[:0]
	return s
}

// copyText returns b as a string that lives as long as the Render.
func (st *state) copyText(b []byte) string {
	room := st.newText(len(b))
	copy(room, b)
	return unsafe.String(unsafe.SliceData(room), len(room))
}

// newText returns room for a text of n bytes. Its bytes must not change once a Value
// holds them.
func (st *state) newText(n int) []byte {
	const chunk = 16 << 10
	st.bound(n)
	st.charge(n / stepBytes)
	if n > chunk/8 {
		return make([]byte, n)
	}
	if len(st.text)+n > cap(st.text) {
		st.text = make([]byte, 0, chunk)
	}
	start := len(st.text)
	st.text = st.text[:start+n]
	return st.text[start : start+n : start+n]
}

// concat returns a + b.
func (st *state) concat(a, b string) string {
	if a == "" {
		return b
	}
	if b == "" {
		return a
	}
	room := st.newText(len(a) + len(b))
	copy(room[copy(room, a):], b)
	return unsafe.String(unsafe.SliceData(room), len(room))
}
