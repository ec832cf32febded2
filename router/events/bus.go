package events

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// BusConfig says which NATS servers carry the events. The zero value embeds one that
// only this process can reach.
type BusConfig struct {
	// URL joins an external server or cluster (nats://host:4222, tls://…, several
	// joined by commas). "" uses the embedded server alone. Flag --nats.
	URL string
	// Listen opens the embedded server to others at host:port. Flag --nats-listen.
	Listen string
	// CA verifies the external server; Cert and Key are this client's certificate. With
	// Listen and no URL they are the embedded server's own. PEM files.
	CA, Cert, Key string
	// InsecureSkipVerify accepts any certificate. For experiments only.
	InsecureSkipVerify bool
	// User and Password, or Token, authenticate here and at a listening embedded server.
	User, Password, Token string
	// Name is shown in the server's list of connections (default "warmroute").
	Name   string
	Logger *slog.Logger
}

// Bus owns the NATS connections of the process.
type Bus struct {
	server   *server.Server
	local    *nats.Conn
	external *nats.Conn
}

// OpenBus starts the embedded server and, with a URL, joins the external one. A server
// that cannot be reached is dialled for ever; one that refuses us is an error, because
// waiting does not mend a wrong password.
func OpenBus(cfg BusConfig) (*Bus, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := new(Bus)
	var err error
	if b.server, err = startServer(cfg); err != nil {
		return nil, err
	}
	b.local, err = nats.Connect("", append(cfg.options(new(lastWords)), nats.InProcessServer(b.server))...)
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("connect to the embedded NATS server: %w", err)
	}
	if cfg.URL != "" {
		if b.external, err = dial(cfg); err != nil {
			b.Close()
			return nil, err
		}
	}
	return b, nil
}

// Local returns the connection to the embedded server.
func (b *Bus) Local() *nats.Conn { return b.local }

// External returns the connection to the external server, nil without one.
func (b *Bus) External() *nats.Conn { return b.external }

// Shared returns the connection over which other proxies can be heard: the external one,
// else that to the embedded server where it listens; nil where nobody else can be on it.
func (b *Bus) Shared() *nats.Conn {
	if b.external != nil {
		return b.external
	}
	if b.Addr() != "" {
		return b.local
	}
	return nil
}

// Connected tells whether events can arrive from outside this process.
func (b *Bus) Connected() bool {
	if b.external != nil {
		return b.external.IsConnected()
	}
	return b.local.IsConnected()
}

// Addr returns where the embedded server listens, "" when it does not.
func (b *Bus) Addr() string {
	if a, ok := b.server.Addr().(*net.TCPAddr); ok && a != nil {
		return a.String()
	}
	return ""
}

// Close ends the connections and the embedded server.
func (b *Bus) Close() {
	for _, nc := range []*nats.Conn{b.local, b.external} {
		if nc != nil {
			nc.Close()
		}
	}
	b.server.Shutdown()
	b.server.WaitForShutdown()
}

func startServer(cfg BusConfig) (*server.Server, error) {
	opts := &server.Options{
		ServerName:    "warmroute",
		DontListen:    cfg.Listen == "",
		NoSigs:        true,
		Username:      cfg.User,
		Password:      cfg.Password,
		Authorization: cfg.Token,
	}
	if cfg.Listen != "" {
		host, port, err := net.SplitHostPort(cfg.Listen)
		if err == nil {
			opts.Host = cmp.Or(host, "0.0.0.0")
			opts.Port, err = strconv.Atoi(port)
		}
		if err != nil {
			return nil, fmt.Errorf("--nats-listen %q: %w; use host:port", cfg.Listen, err)
		}
		if opts.Port == 0 {
			opts.Port = server.RANDOM_PORT
		}
		if cfg.URL == "" && cfg.Cert != "" {
			t, err := cfg.tls()
			if err != nil {
				return nil, err
			}
			t.ClientCAs, t.RootCAs = t.RootCAs, nil
			if t.ClientCAs != nil {
				t.ClientAuth = tls.RequireAndVerifyClientCert
			}
			opts.TLSConfig, opts.TLS, opts.TLSTimeout = t, true, 5
		}
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	log := &serverLog{log: cfg.Logger}
	s.SetLoggerV2(log, false, false, false)
	s.Start()
	for until := time.Now().Add(10 * time.Second); !s.ReadyForConnections(20 * time.Millisecond); {
		why := log.fatal()
		if why == "" && time.Now().Before(until) {
			continue
		}
		why = cmp.Or(why, "it does not start")
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("embedded NATS server on --nats-listen %q: %s; choose a free address", cfg.Listen, why)
	}
	return s, nil
}

// dial joins the external server.
func dial(cfg BusConfig) (*nats.Conn, error) {
	shown, err := checkURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	said := new(lastWords)
	opts := cfg.options(said)
	if cfg.CA != "" || cfg.Cert != "" || cfg.InsecureSkipVerify {
		t, err := cfg.tls()
		if err != nil {
			return nil, err
		}
		opts = append(opts, nats.Secure(t))
	}
	nc, err := nats.Connect(cfg.URL, append(opts, nats.Timeout(3*time.Second))...)
	if err == nil {
		return nc, nil
	}
	if fix := refusal(err); fix != "" {
		return nil, fmt.Errorf("--nats %s: %w; %s", shown, err, fix)
	}
	said.changed(trouble(err))
	cfg.Logger.Error("NATS cannot be reached, trying for ever", "url", shown, "err", err,
		"fix", "start the server, or correct --nats")
	nc, err = nats.Connect(cfg.URL, append(opts, nats.RetryOnFailedConnect(true))...)
	if err != nil {
		return nil, fmt.Errorf("--nats %s: %w", shown, err)
	}
	return nc, nil
}

// refusal says how to mend a connection error that trying again does not; "" for those
// that may pass.
func refusal(err error) string {
	var unknownCA x509.UnknownAuthorityError
	var wrongHost x509.HostnameError
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	text := err.Error()
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked),
		strings.Contains(strings.ToLower(text), "authorization violation"):
		return "give --nats-user and --nats-password, or --nats-token, that the server knows"
	case errors.Is(err, nats.ErrSecureConnRequired):
		return "the server wants TLS: use tls:// and --nats-ca"
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "the server has no TLS: use nats:// and drop the --nats-ca and --nats-cert flags"
	case errors.As(err, &unknownCA), errors.As(err, &wrongHost), errors.As(err, &cert):
		return "its certificate is not trusted: give the CA that signed it with --nats-ca, and a host name that is in it"
	case errors.As(err, &alert), strings.Contains(text, "tls: certificate required"), strings.Contains(text, "tls: bad certificate"):
		return "the server wants a client certificate: give --nats-cert and --nats-key"
	case errors.As(err, &record):
		return "this port does not speak the NATS protocol with TLS"
	}
	return ""
}

// checkURL checks the servers of a URL list and returns it without passwords.
func checkURL(list string) (shown string, err error) {
	var out []string
	for _, s := range strings.Split(list, ",") {
		s = strings.TrimSpace(s)
		full := s
		if !strings.Contains(s, "://") {
			full = "nats://" + s
		}
		u, err := url.Parse(full)
		if err != nil {
			var perr *url.Error
			if errors.As(err, &perr) {
				err = perr.Err // the URL in it may hold a password
			}
			return "", fmt.Errorf("--nats: %w; use nats://host:4222", err)
		}
		switch u.Scheme {
		case "nats", "tls", "ws", "wss":
		default:
			return "", fmt.Errorf("--nats %s: scheme %q is unknown; use nats://host:4222 or tls://host:4222", u.Redacted(), u.Scheme)
		}
		if u.Hostname() == "" {
			return "", fmt.Errorf("--nats %s: the host is missing; use nats://host:4222", u.Redacted())
		}
		out = append(out, u.Redacted())
	}
	return strings.Join(out, ","), nil
}

func (cfg *BusConfig) tls() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: cfg.InsecureSkipVerify}
	if cfg.CA != "" {
		pem, err := os.ReadFile(cfg.CA)
		if err != nil {
			return nil, fmt.Errorf("--nats-ca: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--nats-ca %s: holds no PEM certificate", cfg.CA)
		}
	}
	if cfg.Cert != "" || cfg.Key != "" {
		c, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
		if err != nil {
			return nil, fmt.Errorf("--nats-cert and --nats-key: %w", err)
		}
		t.Certificates = []tls.Certificate{c}
	}
	return t, nil
}

// options are those of both connections. Nothing is buffered while a server is away:
// what is missed is asked for again, and old deltas would only delay the new.
func (cfg *BusConfig) options(said *lastWords) []nats.Option {
	log := cfg.Logger
	opts := []nats.Option{
		nats.Name(cmp.Or(cfg.Name, "warmroute")),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(func(attempts int) time.Duration {
			d := min(100*time.Millisecond<<min(attempts, 4), time.Second)
			return d/2 + rand.N(d/2)
		}),
		nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			if sub != nil {
				log.Warn("NATS subscription lost messages", "subject", sub.Subject, "err", err)
			} else if said.changed(trouble(err)) {
				log.Error("NATS refuses", "err", err, "fix", refusal(err))
			}
		}),
		nats.DisconnectErrHandler(func(nc *nats.Conn, err error) {
			if err != nil && said.changed(trouble(err)) {
				log.Warn("NATS connection is down, trying for ever", "err", err)
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil && said.changed(trouble(err)) {
				log.Warn("NATS cannot be reached", "err", err, "fix", cmp.Or(refusal(err), "start the server, or correct --nats"))
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			said.changed("")
			log.Info("NATS connection is up", "url", nc.ConnectedUrlRedacted())
		}),
	}
	if cfg.Token != "" {
		opts = append(opts, nats.Token(cfg.Token))
	} else if cfg.User != "" {
		opts = append(opts, nats.UserInfo(cfg.User, cfg.Password))
	}
	return opts
}

// trouble is the kind of a connection error: one that wants the same of the user reads
// differently from attempt to attempt and is said once.
func trouble(err error) string { return cmp.Or(refusal(err), "unreachable") }

// lastWords keeps one log line from repeating.
type lastWords struct {
	mu   sync.Mutex
	text string
}

func (l *lastWords) changed(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text == text {
		return false
	}
	l.text = text
	return true
}

// serverLog passes the embedded server's log on and keeps what ended it.
type serverLog struct {
	log  *slog.Logger
	last lastWords
}

func (l *serverLog) fatal() string {
	l.last.mu.Lock()
	defer l.last.mu.Unlock()
	return l.last.text
}

func (l *serverLog) Noticef(f string, v ...any) { l.log.Debug("nats-server: " + fmt.Sprintf(f, v...)) }
func (l *serverLog) Debugf(f string, v ...any)  {}
func (l *serverLog) Tracef(f string, v ...any)  {}
func (l *serverLog) Warnf(f string, v ...any)   { l.log.Warn("nats-server: " + fmt.Sprintf(f, v...)) }
func (l *serverLog) Errorf(f string, v ...any)  { l.log.Warn("nats-server: " + fmt.Sprintf(f, v...)) }
func (l *serverLog) Fatalf(f string, v ...any) {
	l.last.changed(fmt.Sprintf(f, v...))
	l.log.Error("nats-server: " + fmt.Sprintf(f, v...))
}
