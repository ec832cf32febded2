package testcluster

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestSeed_HasTheCeilingOfTheBenchmark(t *testing.T) {
	w := Seed(3, 7)
	c := &w.Conversations[0]
	if len(w.Conversations) != 3 || len(c.Turns) != 12 || &c.Prefix[0] != &w.Conversations[2].Prefix[0] {
		t.Fatal("three conversations of twelve turns over one shared array wanted")
	}
	prompt, fresh := 0, 0
	for i := range c.Turns {
		prompt += 35_000 + (i+1)*3_000 + i*1_000
		fresh += 3_000
	}
	if got := 1 - float64(fresh)/float64(prompt); math.Abs(got-0.95) > 1e-9 {
		t.Errorf("ceiling of reuse %.4f, want 0.95", got)
	}
	if got := c.tokens(); got != 35_000+12*4_000 {
		t.Errorf("history of %d tokens", got)
	}
}

func TestSession_PromptsAreGrowingPrefixesOfOneHistory(t *testing.T) {
	w := Agents(1, 3)
	s := &session{conv: &w.Conversations[0]}
	var before []uint32
	for i, turn := range s.conv.Turns {
		r := s.next(0)
		if !slices.Equal(r.seq.Tokens[:len(before)], before) {
			t.Fatalf("prompt of turn %d does not start with the history", i)
		}
		if got := len(r.seq.Tokens) - len(before); i > 0 && got != turn.InputTokens {
			t.Fatalf("turn %d adds %d tokens, want %d", i, got, turn.InputTokens)
		}
		for k := range turn.OutputTokens {
			s.history = append(s.history, r.seq.Output(k))
		}
		before = s.history
		s.turn++
	}
	if len(before) != s.conv.tokens() || cap(before) != len(before) {
		t.Errorf("history of %d tokens (capacity %d), want %d in one array", len(before), cap(before), s.conv.tokens())
	}
}

func TestTokens_StreamsDiffer(t *testing.T) {
	seen := map[uint32]int{}
	for stream := range uint64(64) {
		for i := range 64 {
			seen[token(stream, i)]++
		}
	}
	if len(seen) < 4_000 {
		t.Errorf("4,096 tokens of 64 streams have %d values", len(seen))
	}
}

func TestAgents_HaveTheStatisticsOfTheTraces(t *testing.T) {
	w := Agents(400, 11)
	var steps, output, input, think, context []float64
	for _, c := range w.Conversations {
		n := len(c.Prefix)
		steps = append(steps, float64(len(c.Turns)))
		for i, turn := range c.Turns {
			output = append(output, float64(turn.OutputTokens))
			if i > 0 {
				input = append(input, float64(turn.InputTokens))
				think = append(think, turn.Think.Seconds())
			}
			n += turn.InputTokens
			context = append(context, float64(n))
			n += turn.OutputTokens
		}
		if n > agentContextTokens+16_013 {
			t.Fatalf("a session of %d tokens", n)
		}
	}
	for _, x := range []struct {
		name    string
		values  []float64
		p50, by float64
	}{
		{"steps", steps, 23, .2}, {"output", output, 216, .1}, {"input", input, 377, .1},
		{"think", think, 10, .1}, {"context", context, 39_000, .1},
	} {
		if l := summarise(x.values); math.Abs(l.P50/x.p50-1) > x.by {
			t.Errorf("%s: p50 %.0f, mean %.0f, p99 %.0f; want a p50 near %.0f", x.name, l.P50, l.Mean, l.P99, x.p50)
		}
	}
}

func TestWorkloads_AreFunctionsOfTheirSeed(t *testing.T) {
	for _, generate := range []func(seed uint64) Workload{
		func(seed uint64) Workload { return Agents(20, seed) },
		func(seed uint64) Workload { return Siblings(20, 1_000, 50, 10, time.Second, seed) },
	} {
		a, b, other := generate(1), generate(1), generate(2)
		if !slices.EqualFunc(a.Conversations, b.Conversations, func(x, y Conversation) bool {
			return x.ID == y.ID && slices.Equal(x.Prefix, y.Prefix) && slices.Equal(x.Turns, y.Turns)
		}) {
			t.Errorf("%s: two workloads of one seed differ", a.Name)
		}
		if slices.Equal(a.Conversations[0].Prefix, other.Conversations[0].Prefix) {
			t.Errorf("%s: two seeds share their prefix", a.Name)
		}
	}
}
