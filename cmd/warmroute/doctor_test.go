package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/internal/upstream"
)

// TestDoctor_LinesAndJSON: one line a check, FAIL in capitals, and an error where a check
// failed; the same as JSON.
func TestDoctor_LinesAndJSON(t *testing.T) {
	s, err := sim.NewServer(sim.Config{Events: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Engine: sim.EngineConfig{SpeedUp: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	template := func(endpoint string) string { return strings.Replace(endpoint, "127.0.0.1", "{host}", 1) }
	out, err := execute("doctor", s.URL()+",id=gpu1", "--events", template(s.EventsEndpoint(0)), "--replay", template(s.ReplayEndpoint(0)))
	if err != nil || strings.Contains(out, "warn") || strings.Contains(out, "FAIL") || strings.Count(out, "\n") != 13 || !strings.HasPrefix(out, "gpu1 at "+s.URL()+"\n  ok  reach") {
		t.Errorf("%v:\n%s", err, out)
	}
	if err := s.SetFaults(sim.Faults{Status: 500}); err != nil {
		t.Fatal(err)
	}
	out, err = execute("doctor", s.URL())
	if err == nil || !strings.Contains(err.Error(), "1 of 1 workers failed a check") || !strings.Contains(out, "  FAIL  generation") {
		t.Errorf("%v:\n%s", err, out)
	}
	out, err = execute("doctor", s.URL(), "--no-generate", "--json")
	var list []upstream.Diagnosis
	if e := json.Unmarshal([]byte(out), &list); err != nil || e != nil || len(list) != 1 || list[0].URL != s.URL() || len(list[0].Findings) < 9 {
		t.Errorf("%v %v:\n%s", err, e, out)
	}
}

func TestDoctor_ReadsWorkers(t *testing.T) {
	c := doctorConfig{Events: "tcp://{host}:5557", Replay: "tcp://{host}:5657", APIKey: "k"}
	list, err := c.workers([]string{"http://gpu1:8000", "http://[::1]:8000", "http://gpu2,events=tcp://other:1,api_key=own"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"tcp://gpu1:5557 tcp://gpu1:5657 k", "tcp://[::1]:5557 tcp://[::1]:5657 k", "tcp://other:1  own"} {
		if got := list[i].Events + " " + list[i].Replay + " " + list[i].APIKey; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
