package proxy

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/upstream"
)

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), next: 2}
	a.key = newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.file(), "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// file is the authority's own certificate.
func (a *authority) file() string { return filepath.Join(a.dir, "ca.pem") }

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// sign writes a certificate for 127.0.0.1 of that name and its key, and returns the files.
func (a *authority) sign(name string) (cert, key string) {
	a.t.Helper()
	k := newKey(a.t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(a.next), Subject: pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.next++
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	writePEM(a.t, cert, "CERTIFICATE", der)
	writePEM(a.t, key, "EC PRIVATE KEY", raw)
	return cert, key
}

// load is LoadTLS of a fresh certificate.
func (a *authority) load(name, clientCA string) *tls.Config {
	a.t.Helper()
	cert, key := a.sign(name)
	c, err := LoadTLS(cert, key, clientCA)
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

func (a *authority) client(name string) tls.Certificate {
	a.t.Helper()
	pair, err := tls.LoadX509KeyPair(a.sign(name))
	if err != nil {
		a.t.Fatal(err)
	}
	return pair
}

// over sends a request over TLS and returns the answer and the server's name.
func (r *rig) over(c *tls.Config, raw string) (status int, server string, err error) {
	nc, err := tls.Dial("tcp", r.Addr().String(), c)
	if err != nil {
		return 0, "", err
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(nc, raw)
	resp, _, err := readResponse(bufio.NewReader(nc))
	if err != nil {
		return 0, "", err
	}
	return resp.StatusCode, nc.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

// TestTLS_CertificateIsReplaced: a new certificate is shown at the next handshake, a stream
// that is open goes on, and files that do not fit change nothing.
func TestTLS_CertificateIsReplaced(t *testing.T) {
	goOn, started := make(chan struct{}), make(chan struct{}, 1)
	w := startWorker(t, func(c *call) bool {
		if c.n > 1 {
			return echo(c)
		}
		c.sse()
		c.chunk(delta("a"))
		started <- struct{}{}
		await(goOn)
		c.chunk(delta("b") + finish + doneEnd)
		c.end()
		return true
	})
	a := newAuthority(t, "ca")
	r := newRig(t, setup{proxy: Config{TLS: a.load("first", "")}}, w)
	client := &tls.Config{RootCAs: a.pool()}
	stream := r.dial()
	_, _ = io.WriteString(stream, request(pathChat, "", streamBody))
	receive(t, started)
	if _, name, err := r.over(client, request(pathChat, "", plainBody)); err != nil || name != "first" {
		t.Fatalf("%q %v", name, err)
	}
	if err := r.SetAccess(nil, a.load("second", "")); err != nil {
		t.Fatal(err)
	}
	if _, name, err := r.over(client, request(pathChat, "", plainBody)); err != nil || name != "second" {
		t.Errorf("after the change: %q %v", name, err)
	}
	if err := r.SetAccess(nil, nil); err == nil || !strings.Contains(err.Error(), "restart") {
		t.Errorf("TLS was turned off: %v", err)
	}
	close(goOn)
	if _, got, err := readResponse(bufio.NewReader(stream)); err != nil || got != delta("a")+delta("b")+finish+doneEnd {
		t.Errorf("the open stream: %q %v", got, err)
	}
	_ = stream.Close()
	for _, old := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
		if _, _, err := r.over(&tls.Config{RootCAs: a.pool(), MinVersion: old, MaxVersion: old}, ""); err == nil {
			t.Errorf("version %x is accepted", old)
		}
	}
	if _, _, err := r.over(&tls.Config{RootCAs: a.pool(), NextProtos: []string{"h2"}}, ""); err == nil {
		t.Error("a client that only speaks HTTP/2 is accepted")
	}
	eventually(t, "failures are counted", func() bool { return r.metric("warmroute_proxy_tls_handshake_failures_total") == 3 })
	r.stop()

	plain := newRig(t, setup{}, startWorker(t, echo))
	if err := plain.SetAccess(nil, a.load("late", "")); err == nil {
		t.Error("TLS was turned on")
	}
	plain.stop()
}

// TestTLS_ClientCertificates: with client_ca only its clients come in, and a change of it
// counts for those that came in before.
func TestTLS_ClientCertificates(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	r := newRig(t, setup{proxy: Config{TLS: ours.load("server", ours.file())}}, startWorker(t, echo))
	// TLS 1.3 tells a client that it is not wanted with the first read.
	ask := func(cache tls.ClientSessionCache, certs ...tls.Certificate) error {
		_, _, err := r.over(&tls.Config{RootCAs: ours.pool(), Certificates: certs, ClientSessionCache: cache}, request(pathChat, "", plainBody))
		return err
	}
	cache := tls.NewLRUClientSessionCache(4)
	good := ours.client("good")
	if err := ask(cache, good); err != nil {
		t.Errorf("a client of ours: %v", err)
	}
	if err := ask(nil); err == nil {
		t.Error("a client without a certificate came in")
	}
	if err := ask(nil, theirs.client("bad")); err == nil {
		t.Error("a client of theirs came in")
	}
	if n := r.metric("warmroute_proxy_requests_total"); n != 1 {
		t.Errorf("%v requests were counted", n)
	}
	if n := r.metric("warmroute_proxy_malformed_requests_total"); n != 0 {
		t.Errorf("a failed handshake counts as %v malformed requests", n)
	}
	if err := r.SetAccess(nil, ours.load("server2", theirs.file())); err != nil {
		t.Fatal(err)
	}
	if err := ask(cache, good); err == nil {
		t.Error("a session of before came in")
	}
	r.stop()
}

// TestTLS_SilentClientHearsNothing: a connection that was opened ahead of its first request
// is closed after the handshake without an answer; one that began a request gets its 408.
func TestTLS_SilentClientHearsNothing(t *testing.T) {
	a := newAuthority(t, "ca")
	r := newRig(t, setup{proxy: Config{HeaderTimeout: 100 * time.Millisecond, TLS: a.load("s", "")}}, startWorker(t, echo))
	for _, sent := range []string{"", "POST / HTTP/1.1\r\n"} {
		c := r.dial().(*tls.Conn)
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, sent)
		got, err := io.ReadAll(c)
		if err != nil || (len(got) > 0) != (sent != "") || sent != "" && !strings.HasPrefix(string(got), "HTTP/1.1 408") {
			t.Errorf("after %q: %q, %v", sent, got, err)
		}
		_ = c.Close()
	}
	c, err := net.Dial("tcp", r.Addr().String()) // who never greets is let go too
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if got, err := io.ReadAll(c); len(got) > 0 || err != nil {
		t.Errorf("without a handshake: %q, %v", got, err)
	}
	_ = c.Close()
	r.stop()
}

// TestTLS_PlainHTTPIsToldSo: the commonest mistake gets an answer that can be read.
func TestTLS_PlainHTTPIsToldSo(t *testing.T) {
	a := newAuthority(t, "ca")
	r := newRig(t, setup{proxy: Config{TLS: a.load("s", "")}}, startWorker(t, echo))
	for raw, want := range map[string]string{
		"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n": "https",
		request(pathChat, "", plainBody):             "https",
		"SSH-2.0-x\r\n\r\n\r\n\r\n":                  "",
	} {
		c, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(c, raw)
		resp, body, err := readResponse(bufio.NewReader(c))
		switch {
		case want == "" && resp != nil:
			t.Errorf("%.10q: %v", raw, resp)
		case want != "" && (err != nil || resp.StatusCode != 400 || !strings.Contains(parseError(t, body).Message, want)):
			t.Errorf("%.10q: %v %v %s", raw, err, resp, body)
		}
		_ = c.Close()
	}
	r.stop()
}

func TestLoadTLS_BadFiles(t *testing.T) {
	a := newAuthority(t, "ca")
	cert, key := a.sign("a")
	_, other := a.sign("b")
	for _, f := range []struct{ cert, key, ca, want string }{
		{"nowhere", key, "", "tls.cert"},
		{cert, "nowhere", "", "tls.key"},
		{cert, other, "", "tls.key"},
		{key, key, "", "tls.cert"},
		{cert, key, "nowhere", "tls.client_ca"},
		{cert, key, key, "tls.client_ca"},
	} {
		if _, err := LoadTLS(f.cert, f.key, f.ca); err == nil || !strings.Contains(err.Error(), f.want) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// TestTLS_WorkersAskForOurCertificate: mutual TLS towards a worker, with a certificate that
// is renewed under way.
func TestTLS_WorkersAskForOurCertificate(t *testing.T) {
	a := newAuthority(t, "ca")
	names := make(chan string, 8)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := serveWorker(t, tls.NewListener(l, a.load("worker", a.file())), func(c *call) bool {
		s := c.Conn.(*tls.Conn)
		names <- s.ConnectionState().PeerCertificates[0].Subject.CommonName
		echo(c)
		return false // the next request dials
	})
	cert, key := a.sign("proxy")
	config := upstream.WorkerConfig{ID: "w", URL: "https://" + l.Addr().String(), Engine: upstream.EngineOpenAI, CA: a.file(), Cert: cert, Key: key}
	r := newRig(t, setup{workers: []upstream.WorkerConfig{config}})
	ask := func(want string) {
		t.Helper()
		if resp, body := r.post("", plainBody); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
		if got := receive(t, names); got != want {
			t.Errorf("the worker was shown %q", got)
		}
	}
	ask("proxy")
	c2, k2 := a.sign("renewed")
	for from, to := range map[string]string{c2: cert, k2: key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	ask("renewed")
	if err := os.WriteFile(cert, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	ask("renewed")
	r.stop()
	w.stop()
	for want, c := range map[string]upstream.WorkerConfig{
		"go together":   {URL: config.URL, Cert: key},
		"cert and key:": {URL: config.URL, Cert: "nowhere", Key: key},
		"not https":     {URL: "http://127.0.0.1:1", Cert: cert, Key: key},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
