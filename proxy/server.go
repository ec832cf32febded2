package proxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/warmroute/warmroute/internal/openai"
)

// Server is the front: the OpenAI endpoint and the admin listener.
type Server struct {
	cfg      Config
	metrics  *metrics
	front    fasthttp.Server
	listen   net.Listener
	admin    net.Listener
	leavers  *departures
	started  time.Time
	draining atomic.Bool
	budget   budget // of retries

	access sync.Mutex                 // orders changes of the two below
	keys   atomic.Pointer[keyring]    // nil lets everybody in
	tls    atomic.Pointer[tls.Config] // nil speaks plain HTTP

	accepting <-chan struct{} // closed once front serves

	mu struct {
		sync.Mutex
		turns map[*turn]struct{} // requests that are being answered
	}
}

// New opens both ports; Run serves them.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register metrics of the proxy: %w", err)
	}
	s := &Server{cfg: cfg, metrics: m, started: time.Now()}
	s.mu.turns = map[*turn]struct{}{}
	s.front = fasthttp.Server{
		Handler:        s.serve,
		ErrorHandler:   s.unreadable,
		ExpectHandler:  s.expect,
		HeaderReceived: s.received,
		ConnState:      s.changed,
		Logger:         frontLog{m},

		ReadTimeout:           cfg.HeaderTimeout,
		IdleTimeout:           cfg.KeepAlive,
		ReadBufferSize:        headerBytes,
		WriteBufferSize:       writeBytes,
		MaxRequestBodySize:    cfg.MaxBodyBytes,
		Concurrency:           math.MaxInt32, // the listener bounds it
		CloseOnShutdown:       true,
		SecureErrorLogMessage: true,
		NoDefaultServerHeader: true,
		NoDefaultContentType:  true,

		DisablePreParseMultipartForm: true,
	}
	if err := s.setKeys(cfg.Keys); err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	if s.listen, err = open(cfg.Listen, "--listen"); err != nil {
		return nil, err
	}
	if s.admin, err = open(cfg.Admin, "--admin"); err != nil {
		_ = s.listen.Close()
		return nil, err
	}
	leavers, err := newDepartures()
	if err != nil {
		_, _ = s.listen.Close(), s.admin.Close()
		return nil, err
	}
	l := &listener{Listener: s.listen, stall: cfg.ClientStall, pace: pace{rate: max(cfg.BodyRate, 0), window: paceWindow}, max: int64(max(cfg.MaxConns, 0)),
		metrics: m, leavers: leavers, accepting: make(chan struct{})}
	s.listen, s.accepting, s.leavers = l, l.accepting, leavers
	if cfg.TLS != nil {
		s.tls.Store(cfg.TLS)
		s.listen = newTLSListener(l, &s.tls, m.tlsFailures.Inc)
	}
	return s, nil
}

// open listens on a TCP address.
func open(addr, flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s %s: the port is in use by another process: stop it or choose another address", flag, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, addr, err)
	}
	return l, nil
}

// Addr returns the address of the OpenAI endpoint.
func (s *Server) Addr() net.Addr { return s.listen.Addr() }

// AdminAddr returns the address of the admin listener.
func (s *Server) AdminAddr() net.Addr { return s.admin.Addr() }

// Run serves until ctx ends, then drains: readiness says no, the port closes after
// DrainDelay, streams may finish within Grace, and what is left is broken off visibly.
func (s *Server) Run(ctx context.Context) error {
	admin := &http.Server{Handler: s.adminHandler(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { failed <- s.front.Serve(s.listen) })
	wg.Go(func() { failed <- admin.Serve(s.admin) })
	wg.Go(s.leavers.run)
	var err error
	select {
	case <-ctx.Done():
		<-s.accepting // a server that has not begun cannot be shut down, and begins later
	case err = <-failed:
	}
	s.drain()
	_ = admin.Close()
	s.leavers.close()
	wg.Wait()
	return err
}

// drain ends the front. It returns when no connection is left.
func (s *Server) drain() {
	s.draining.Store(true)
	if n := s.active(); n > 0 || s.cfg.DrainDelay > 0 {
		s.cfg.Logger.Info("draining", "requests", n, "grace", s.cfg.Grace)
	}
	if s.cfg.DrainDelay > 0 {
		time.Sleep(s.cfg.DrainDelay)
	}
	grace, cancel := context.WithTimeout(context.Background(), s.cfg.Grace)
	defer cancel()
	if s.front.ShutdownWithContext(grace) == nil {
		return
	}
	s.mu.Lock()
	n := len(s.mu.turns)
	for t := range s.mu.turns {
		t.cancel(errDraining)
	}
	s.mu.Unlock()
	s.cfg.Logger.Warn("grace is over: open requests are broken off", "requests", n)
	last, cancel := context.WithTimeout(context.Background(), lingerTime+time.Second)
	defer cancel()
	_ = s.front.ShutdownWithContext(last)
}

func (s *Server) active() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.turns)
}

func (s *Server) retries() int { return max(s.cfg.Retries, 0) }

// serve answers one request.
func (s *Server) serve(rc *fasthttp.RequestCtx) {
	id := requestID(&rc.Request.Header)
	defer func() {
		if v := recover(); v != nil {
			s.panicked(id, v)
			faultPanic().respond(rc, id, "")
		}
	}()
	rc.Response.Header.Set(headerRequestID, id)
	who, fault := s.check(rc)
	if fault != nil {
		s.refuse(rc, fault, id)
		return
	}
	switch path := string(rc.Path()); path {
	case pathChat:
		s.generate(rc, openai.Chat, id, who)
	case pathCompletions:
		s.generate(rc, openai.Completions, id, who)
	case pathModels:
		s.count("models", 200)
		writeJSON(rc, s.modelList(who))
	case pathHealth:
		writeJSON(rc, map[string]string{"status": "ok"})
	case pathReady:
		status, report := s.readiness()
		if _, ok := s.authenticate(&rc.Request.Header); !ok { // names and addresses of workers
			report.Reasons = nil
		}
		rc.SetStatusCode(status)
		writeJSON(rc, report)
	default: // check let only /v1/models/… pass
		name := path[len(pathModels)+1:]
		for _, m := range s.modelList(who).Data {
			if m.ID == name {
				s.count("models", 200)
				writeJSON(rc, m)
				return
			}
		}
		if who.may(name, s.cfg.Aliases[name]) {
			s.refuse(rc, faultModel(name, s.modelNames(who)), id)
		} else {
			s.refuse(rc, faultForbidden(name), id)
		}
	}
	// A worker's copy of the id must not replace ours.
	rc.Response.Header.Set(headerRequestID, id)
}

// The paths of the front.
const (
	pathChat        = "/v1/chat/completions"
	pathCompletions = "/v1/completions"
	pathModels      = "/v1/models"
	pathHealth      = "/healthz"
	pathReady       = "/readyz"
)

// strangerBytes is the largest body that is read of a client without a valid key.
const strangerBytes = 64 << 10

// received says how the body of a request may come whose headers were read.
func (s *Server) received(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	c := fasthttp.RequestConfig{ReadTimeout: s.cfg.BodyTimeout}
	if n := h.ContentLength(); n >= 0 && n <= strangerBytes {
		return c
	}
	if _, ok := s.authenticate(h); !ok {
		c.MaxRequestBodySize = min(strangerBytes, s.cfg.MaxBodyBytes)
	}
	return c
}

// check finds out who sent a request and refuses what can be refused by the headers alone.
func (s *Server) check(rc *fasthttp.RequestCtx) (*caller, *fault) {
	h := &rc.Request.Header
	// Both framings at once are how one request is smuggled within another.
	if h.ContentLength() == -1 && hasContentLength(h.RawHeaders()) {
		return nil, faultFraming()
	}
	// So is a field that one server reads as folded and the next one does not.
	if isFolded(h.RawHeaders()) {
		return nil, faultFolded()
	}
	path, method := string(rc.Path()), string(h.Method())
	health := path == pathHealth || path == pathReady
	if c := clientConn(rc.Conn()); c != nil && !health && c.tooMany() {
		return nil, faultConns(s.cfg.MaxConns)
	}
	who, ok := s.authenticate(h)
	if !ok && !health { // balancers and kubelets have no key
		s.metrics.authFailures.Inc()
		return nil, faultKey()
	}
	switch {
	case path == pathChat || path == pathCompletions:
		if method != http.MethodPost {
			return nil, faultMethod(method, "POST")
		}
	case path == pathModels, health, len(path) > len(pathModels)+1 && path[:len(pathModels)+1] == pathModels+"/":
		if method != http.MethodGet && method != http.MethodHead {
			return nil, faultMethod(method, "GET")
		}
	default:
		return nil, faultNotFound(path)
	}
	if h.ContentLength() > s.cfg.MaxBodyBytes {
		return nil, faultTooLarge(s.cfg.MaxBodyBytes)
	}
	return who, nil
}

// refuse answers with a fault outside of a turn.
func (s *Server) refuse(rc *fasthttp.RequestCtx, f *fault, id string) {
	s.count("other", f.status)
	if f.closeConn {
		if c := clientConn(rc.Conn()); c != nil {
			c.linger.Store(true)
		}
	}
	f.respond(rc, id, "")
}

func (s *Server) count(endpoint string, status int) {
	s.metrics.requests.WithLabelValues(endpoint, class(status)).Inc()
}

// expect decides whether a client that asked first may send its body.
func (s *Server) expect(rc *fasthttp.RequestCtx) int {
	if _, f := s.check(rc); f != nil {
		f.closeConn = true
		s.refuse(rc, f, requestID(&rc.Request.Header))
		return f.status
	}
	return fasthttp.StatusContinue
}

// unreadable answers a request that could not be read. Its connection is closed.
func (s *Server) unreadable(rc *fasthttp.RequestCtx, err error) {
	s.metrics.badRequests.Inc()
	f := faultRead(err, s.cfg.MaxBodyBytes)
	if _, ok := s.authenticate(&rc.Request.Header); !ok && errors.Is(err, fasthttp.ErrBodyTooLarge) {
		s.metrics.authFailures.Inc()
		f = faultKey()
	}
	f.closeConn = true
	s.refuse(rc, f, requestID(&rc.Request.Header))
}

// frontLog takes what fasthttp would log. Every line of it is about a connection that
// broke, may quote a request, and is counted elsewhere.
type frontLog struct{ m *metrics }

func (frontLog) Printf(string, ...any) {}

// modelList is the merged /v1/models: what any worker serves and the aliases of it, as far
// as the caller may use them.
func (s *Server) modelList(who *caller) openai.ModelList {
	l := openai.ModelList{Object: "list", Data: []openai.Model{}}
	served := map[string]openai.Model{}
	for _, m := range s.cfg.Fleet.Models() {
		o := openai.Model{ID: m.ID, Object: "model", Created: s.started.Unix(), OwnedBy: m.OwnedBy, Parent: m.Parent, MaxModelLen: m.MaxModelLen}
		served[m.ID] = o
		if who.may(m.ID, "") {
			l.Data = append(l.Data, o)
		}
	}
	for _, alias := range sortedKeys(s.cfg.Aliases) {
		target, ok := served[s.cfg.Aliases[alias]]
		if _, taken := served[alias]; ok && !taken && who.may(alias, target.ID) {
			target.ID, target.Root = alias, s.cfg.Aliases[alias]
			l.Data = append(l.Data, target)
		}
	}
	return l
}

func (s *Server) modelNames(who *caller) []string {
	var names []string
	for _, m := range s.modelList(who).Data {
		names = append(names, m.ID)
	}
	return names
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func writeJSON(rc *fasthttp.RequestCtx, v any) {
	rc.SetContentType("application/json")
	if err := json.NewEncoder(rc.Response.BodyWriter()).Encode(v); err != nil {
		panic("BUG: encode " + err.Error())
	}
}
