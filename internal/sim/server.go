package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/kvwire"
)

// Server is a simulated worker: an engine per DP rank behind an engine's HTTP and
// event wires. Safe for concurrent use.
type Server struct {
	cfg        Config
	layout     kvwire.Layout
	vocabulary vocabulary
	listener   *listener
	http       *fasthttp.Server
	ranks      []*rank
	turn       atomic.Uint32 // breaks ties between ranks
	served     atomic.Uint64 // request ids
	refused    atomic.Uint64 // requests refused at MaxQueue

	faults    atomic.Pointer[Faults]
	downTimer *time.Timer
	dice      struct {
		sync.Mutex
		*rand.Rand
	}
	closing atomic.Bool
	stop    chan struct{} // closed when Run gives up on requests
}

// NewServer binds the worker's sockets; nothing is served before Run.
func NewServer(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, stop: make(chan struct{})}
	s.vocabulary.model = cfg.Model
	s.layout, _ = kvwire.ParseLayout(cfg.Layout)
	s.dice.Rand = rand.New(rand.NewPCG(cfg.Seed, 0xfa17))
	for i := range cfg.DPRanks {
		s.ranks = append(s.ranks, newRank(s, i))
	}
	s.downTimer = time.NewTimer(time.Hour)
	s.downTimer.Stop()
	ln := cfg.Listener
	if ln == nil {
		var err error
		if ln, err = net.Listen("tcp", cfg.Listen); err != nil {
			return nil, fmt.Errorf("--listen %s: %w", cfg.Listen, err)
		}
	}
	if err := s.openPublishers(); err != nil {
		_ = ln.Close()
		return nil, err
	}
	s.listener = newListener(ln)
	s.http = &fasthttp.Server{
		Handler:            s.serve,
		Name:               string(cfg.Like) + "-sim",
		NoDefaultDate:      true,
		MaxRequestBodySize: cfg.MaxBodyBytes,
		ReadBufferSize:     64 << 10,
		ReadTimeout:        readTimeout,
		IdleTimeout:        keepAlive,
		ConnState:          connState,
		Concurrency:        maxConns,
		Logger:             quiet{},
	}
	_ = s.SetFaults(cfg.Faults) // validated above
	return s, nil
}

// quiet drops fasthttp's log lines: broken connections are this server's daily bread.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// keepAlive is how long both engines' HTTP servers keep an idle connection,
// readTimeout bounds how long a request may take to arrive.
const (
	keepAlive   = 5 * time.Second
	readTimeout = time.Minute
)

// maxConns bounds the open connections; more are answered with 503 and closed.
const maxConns = 16384

// portTries bounds the search for consecutive free ports.
const portTries = 50

func (s *Server) openPublishers() error {
	if s.cfg.Events == "" {
		return nil
	}
	var err error
	for range portTries {
		if err = s.tryPublishers(); err == nil || !strings.HasSuffix(s.cfg.Events, ":0") && !strings.HasSuffix(s.cfg.Replay, ":0") {
			break
		}
	}
	return err
}

// tryPublishers binds a publisher for each rank; those after the first take the ports
// that follow the first one's.
func (s *Server) tryPublishers() error {
	events, replay := s.cfg.Events, s.cfg.Replay
	for i, r := range s.ranks {
		cfg := kvwire.PublisherConfig{
			Endpoint: events, Connect: s.cfg.EventsConnect, ReplayEndpoint: replay, Topic: s.cfg.Topic,
			TopicFrame: s.layout == kvwire.LayoutVLLM026, BufferSteps: s.cfg.BufferSteps,
		}
		var err error
		if i > 0 {
			if cfg.Endpoint, err = rankEndpoint(events, i); err == nil && replay != "" {
				cfg.ReplayEndpoint, err = rankEndpoint(replay, i)
			}
		}
		if err == nil {
			r.publisher, err = kvwire.NewPublisher(cfg)
		}
		if err != nil {
			s.closePublishers()
			flag := "--events"
			if strings.HasPrefix(err.Error(), "replay: ") {
				flag = "--replay"
			}
			return fmt.Errorf("%s, rank %d: %w", flag, i, err)
		}
		if i == 0 {
			events, replay = withPort(events, r.publisher.Addr()), withPort(replay, r.publisher.ReplayAddr())
		}
	}
	return nil
}

// closePublishers gives back sockets that were bound and never run.
func (s *Server) closePublishers() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for _, r := range s.ranks {
		if r.publisher != nil {
			_ = r.publisher.Run(ended)
			r.publisher = nil
		}
	}
}

// withPort returns endpoint with the port of bound.
func withPort(endpoint, bound string) string {
	if endpoint == "" {
		return ""
	}
	return endpoint[:strings.LastIndexByte(endpoint, ':')] + bound[strings.LastIndexByte(bound, ':'):]
}

// rankEndpoint returns the endpoint of DP rank r: the port of the first plus r.
func rankEndpoint(endpoint string, r int) (string, error) {
	i := strings.LastIndexByte(endpoint, ':')
	if !strings.HasPrefix(endpoint, "tcp://") || i < len("tcp://") {
		return "", fmt.Errorf("endpoint %q: must be tcp://host:port", endpoint)
	}
	port, err := strconv.Atoi(endpoint[i+1:])
	if err != nil || port < 0 || port+r > 65535 {
		return "", fmt.Errorf("endpoint %q: port must be a number up to 65535", endpoint)
	}
	return endpoint[:i+1] + strconv.Itoa(port+r), nil
}

// URL returns the base URL of the HTTP side.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// EventsEndpoint returns where a rank publishes KV events, "" without events.
func (s *Server) EventsEndpoint(rank int) string {
	if p := s.ranks[rank].publisher; p != nil {
		return p.Addr()
	}
	return ""
}

// ReplayEndpoint returns where a rank replays KV events, "" without a replay socket.
func (s *Server) ReplayEndpoint(rank int) string {
	if p := s.ranks[rank].publisher; p != nil {
		return p.ReplayAddr()
	}
	return ""
}

// Truth returns what a rank's prefix cache holds.
func (s *Server) Truth(rank int) Truth {
	r := s.ranks[rank]
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.engine.Truth()
}

// Stats returns a rank's numbers.
func (s *Server) Stats(rank int) Stats {
	r := s.ranks[rank]
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.engine.Stats()
}

// Run serves until ctx ends, lets requests finish for the grace period, breaks the
// rest off and returns when every goroutine has. It is called once.
func (s *Server) Run(ctx context.Context) error {
	engines, stopEngines := context.WithCancel(context.Background())
	defer stopEngines()
	var wg sync.WaitGroup
	failed := make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	for _, r := range s.ranks {
		wg.Go(func() { r.run(engines) })
		if r.publisher != nil {
			wg.Go(func() {
				if err := r.publisher.Run(engines); err != nil && engines.Err() == nil {
					fail(fmt.Errorf("publish KV events of rank %d: %w", r.number, err))
				}
			})
		}
	}
	wg.Go(func() {
		for {
			select {
			case <-engines.Done():
				return
			case <-s.downTimer.C:
				s.listener.setDown(false)
			}
		}
	})
	wg.Go(func() {
		if err := s.accept(&wg); err != nil {
			fail(err)
		}
	})

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.closing.Store(true)
	_ = s.listener.Close()
	if !s.drain() {
		close(s.stop)
		s.listener.cut(nil)
	}
	stopEngines()
	wg.Wait()
	s.downTimer.Stop()
	return err
}

// accept serves each connection on a goroutine of its own, which wg waits for:
// fasthttp's own accept loop leaves a goroutine behind for seconds.
func (s *Server) accept(wg *sync.WaitGroup) error {
	for {
		c, err := s.listener.Accept()
		switch {
		case err == nil && s.closing.Load():
			_ = c.Close()
		case err == nil:
			wg.Go(func() { _ = s.http.ServeConn(c) }) // its errors are the client's
		case s.closing.Load():
			return nil
		case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED):
			time.Sleep(acceptRetry)
		default:
			return fmt.Errorf("accept on %s: %w", s.listener.Addr(), err)
		}
	}
}

// acceptRetry is the pause after running out of file descriptors.
const acceptRetry = 20 * time.Millisecond

// drain closes idle connections until none is left or the grace period ends; false
// when some are left.
func (s *Server) drain() bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(s.cfg.Grace); ; <-tick.C {
		if s.listener.closeIdle() == 0 {
			return true
		}
		if !time.Now().Before(end) {
			return false
		}
	}
}

var errQueueFull = errors.New("the engine's queue is full")

// pick returns the rank for a request: the pinned one, or the least loaded.
func (s *Server) pick(pinned int) *rank {
	if pinned >= 0 {
		return s.ranks[pinned]
	}
	if len(s.ranks) == 1 {
		return s.ranks[0]
	}
	start := int(s.turn.Add(1))
	best, least := (*rank)(nil), 0
	for i := range s.ranks {
		r := s.ranks[(start+i)%len(s.ranks)]
		if l := r.load(); best == nil || l < least {
			best, least = r, l
		}
	}
	return best
}
