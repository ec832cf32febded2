package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warmroute/warmroute/bench/report"
)

// recentTurns is how many of the last turns the live TTFT is the median of.
const recentTurns = 100

// progress shows a run while it goes: one line that is rewritten on a terminal, a plain
// line every ten seconds elsewhere.
type progress struct {
	w       io.Writer
	tty     bool
	verbose bool
	turns   int // of a conversation
	began   time.Time
	quit    chan struct{}
	done    sync.WaitGroup

	mu struct {
		sync.Mutex
		total, answered, failed int
		prefix                  string
		recent                  []report.Micros // ring of the last TTFTs
	}
}

func newProgress(w io.Writer, turns, total int, verbose bool) *progress {
	p := &progress{w: w, tty: terminal(w), verbose: verbose, turns: turns, began: time.Now(), quit: make(chan struct{})}
	p.mu.total = total
	return p
}

// terminal tells whether w is a character device that takes control sequences.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// start shows the state until stop, which waits for the last line.
func (p *progress) start() {
	every := 10 * time.Second
	if p.tty {
		every = 250 * time.Millisecond
	}
	p.done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.show()
			case <-p.quit:
				return
			}
		}
	})
}

func (p *progress) stop() {
	close(p.quit)
	p.done.Wait()
	if p.tty {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func (p *progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.lineLocked(time.Since(p.began))
	if p.tty {
		fmt.Fprintf(p.w, "\r\x1b[K%s", line)
		return
	}
	fmt.Fprintln(p.w, line)
}

func (p *progress) lineLocked(elapsed time.Duration) string {
	m := &p.mu
	s := fmt.Sprintf("%s%d of %d turns", m.prefix, m.answered+m.failed, m.total)
	if m.failed > 0 {
		s += fmt.Sprintf(", %d failed", m.failed)
	}
	if len(m.recent) > 0 {
		sorted := slices.Clone(m.recent)
		slices.Sort(sorted)
		s += fmt.Sprintf(", TTFT p50 of the last %d: %s", len(sorted), shown(sorted[len(sorted)/2]))
	}
	return s + ", " + elapsed.Round(time.Second).String()
}

// block names the block that starts.
func (p *progress) block(i, of int, treatment bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	arm := "A"
	if treatment {
		arm = "B"
	}
	p.mu.prefix = fmt.Sprintf("block %d of %d (%s): ", i+1, of, arm)
}

// turn counts a turn and prints it where every turn is wanted.
func (p *progress) turn(q *report.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.OK {
		if len(p.mu.recent) < recentTurns {
			p.mu.recent = append(p.mu.recent, q.TTFT)
		} else {
			p.mu.recent[p.mu.answered%recentTurns] = q.TTFT
		}
		p.mu.answered++
	} else {
		p.mu.failed++
	}
	if p.verbose {
		clear := ""
		if p.tty {
			clear = "\r\x1b[K"
		}
		fmt.Fprintf(p.w, "%s%s\n", clear, turnLine(q, p.turns))
	}
}

// turnLine is the line of one turn.
func turnLine(q *report.Record, turns int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "user %d turn %d/%d: ", q.User, q.Turn+1, turns)
	if !q.OK {
		fmt.Fprintf(&b, "failed, %s: %s", q.Failure, q.Error)
		return b.String()
	}
	fmt.Fprintf(&b, "TTFT %s", shown(q.TTFT))
	switch {
	case q.FirstOutput == nil:
		b.WriteString(", no visible output")
	case *q.FirstOutput != q.TTFT:
		fmt.Fprintf(&b, ", first output %s", shown(*q.FirstOutput))
	}
	fmt.Fprintf(&b, ", E2E %s", shown(q.E2E))
	if q.CompletionTokens != nil {
		fmt.Fprintf(&b, ", %d tokens", *q.CompletionTokens)
	}
	if q.PromptTokens != nil {
		fmt.Fprintf(&b, ", prompt %d", *q.PromptTokens)
	}
	if q.CachedTokens != nil {
		fmt.Fprintf(&b, ", cached %d", *q.CachedTokens)
	}
	if q.Worker != "" {
		b.WriteString(", " + q.Worker)
	}
	if q.Speculation != "" {
		b.WriteString(", speculation " + q.Speculation)
	}
	return b.String()
}

// shown is a time for people: milliseconds below ten seconds.
func shown(m report.Micros) string {
	d := time.Duration(m)
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
