package events

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// natsServer runs a real server on addr ("127.0.0.1:0" takes a free port).
func natsServer(t *testing.T, addr string, change func(*server.Options)) *server.Server {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	opts := &server.Options{Host: host, NoSigs: true, NoLog: true}
	if port == "0" {
		opts.Port = server.RANDOM_PORT
	} else if p, err := net.LookupPort("tcp", port); err == nil {
		opts.Port = p
	}
	if change != nil {
		change(opts)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(5 * time.Second) {
		t.Fatalf("nats-server on %s does not start", addr)
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

// eventually polls until ok holds.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", within, what)
		case <-tick.C:
		}
	}
}

func openBus(t *testing.T, cfg BusConfig) *Bus {
	t.Helper()
	b, err := OpenBus(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func roundTrip(t *testing.T, from, to *nats.Conn) {
	t.Helper()
	sub, err := to.SubscribeSync("round.trip")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	if err := to.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := from.Publish("round.trip", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.NextMsg(5 * time.Second); err != nil {
		t.Fatal(err)
	}
}

func TestBus_EmbeddedOpensNoPort(t *testing.T) {
	b := openBus(t, BusConfig{})
	roundTrip(t, b.Local(), b.Local())
	if b.External() != nil || !b.Connected() || b.Addr() != "" {
		t.Fatalf("external %v, connected %v, addr %q", b.External(), b.Connected(), b.Addr())
	}
}

func TestBus_EmbeddedServesOthers(t *testing.T) {
	cert, key := writeCert(t, "127.0.0.1")
	a := openBus(t, BusConfig{Listen: "127.0.0.1:0", Token: "secret", Cert: cert, Key: key})
	b := openBus(t, BusConfig{URL: "tls://" + a.Addr(), Token: "secret", CA: cert})
	roundTrip(t, b.External(), a.Local())
	roundTrip(t, a.Local(), b.External())
}

func TestBus_ErrorsNameTheFlag(t *testing.T) {
	plain := natsServer(t, "127.0.0.1:0", nil).Addr().String()
	locked := natsServer(t, "127.0.0.1:0", func(o *server.Options) { o.Username, o.Password = "u", "p" }).Addr().String()
	cert, key := writeCert(t, "127.0.0.1")
	other, _ := writeCert(t, "127.0.0.1")
	secure := natsServer(t, "127.0.0.1:0", func(o *server.Options) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		o.TLSConfig, o.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}, true
	}).Addr().String()
	missing := filepath.Join(t.TempDir(), "no.pem")
	notPEM := filepath.Join(t.TempDir(), "not.pem")
	if err := os.WriteFile(notPEM, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(cfg BusConfig, want ...string) {
		t.Helper()
		b, err := OpenBus(cfg)
		if err == nil {
			b.Close()
			t.Fatalf("%+v: no error", cfg)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("error %q does not say %q", err, w)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error %q shows a password", err)
		}
	}
	f(BusConfig{URL: "http://x:1"}, "--nats", "scheme", "nats://host:4222")
	f(BusConfig{URL: "nats://"}, "--nats", "host is missing")
	f(BusConfig{URL: "nats://u:hunter2@h:port"}, "--nats", "port")
	f(BusConfig{URL: "nats://" + locked}, "--nats "+"nats://"+locked, "--nats-user")
	f(BusConfig{URL: "nats://u:hunter2@" + locked}, "--nats", "--nats-user")
	f(BusConfig{URL: "nats://" + locked, User: "u", Password: "hunter2"}, "--nats-user")
	f(BusConfig{URL: "tls://" + plain}, "has no TLS")
	f(BusConfig{URL: "nats://" + secure, CA: other}, "--nats-ca")
	f(BusConfig{URL: "tls://" + secure}, "not trusted")
	f(BusConfig{URL: "nats://" + secure, CA: missing}, "--nats-ca", "no.pem")
	f(BusConfig{URL: "nats://" + secure, CA: notPEM}, "--nats-ca", "not.pem", "PEM")
	f(BusConfig{URL: "nats://" + secure, CA: cert, Cert: cert, Key: missing}, "--nats-cert")
	f(BusConfig{Listen: plain}, "--nats-listen", plain, "free address")
	f(BusConfig{Listen: "nonsense"}, "--nats-listen", "host:port")

	b := openBus(t, BusConfig{URL: "nats://" + secure, CA: cert})
	roundTrip(t, b.External(), b.External())
	c := openBus(t, BusConfig{URL: "nats://" + locked, User: "u", Password: "p"})
	roundTrip(t, c.External(), c.External())
}

func TestBus_DialsForEver(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	var log logBuffer
	b := openBus(t, BusConfig{URL: "nats://" + addr, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if b.Connected() {
		t.Fatal("connected to nothing")
	}
	if !strings.Contains(log.String(), "--nats") {
		t.Fatalf("the log does not name the flag: %s", log.String())
	}
	s := natsServer(t, addr, nil)
	eventually(t, 5*time.Second, "connected", b.Connected)
	if n := strings.Count(log.String(), "cannot be reached"); n != 1 {
		t.Fatalf("said %d times:\n%s", n, log.String())
	}
	roundTrip(t, b.External(), b.External())
	s.Shutdown()
	s.WaitForShutdown()
	eventually(t, 5*time.Second, "disconnected", func() bool { return !b.Connected() })
	natsServer(t, addr, nil)
	eventually(t, 5*time.Second, "connected again", b.Connected)
}

// logBuffer is a bytes.Buffer for several goroutines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// writeCert writes a self-signed certificate of host and its key as PEM files.
func writeCert(t *testing.T, host string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(host)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kder, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: kder}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
