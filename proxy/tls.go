package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
)

// LoadTLS reads the certificate chain and key of the OpenAI endpoint from PEM files. With
// clientCA, a PEM file of authorities, a client needs a certificate that one of them
// signed; "" asks for none.
func LoadTLS(cert, key, clientCA string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("tls.cert and tls.key (--tls-cert, --tls-key): %w", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if clientCA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(clientCA)
	if err != nil {
		return nil, fmt.Errorf("tls.client_ca (--tls-client-ca): %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls.client_ca (--tls-client-ca): %s holds no PEM certificate", clientCA)
	}
	return c, nil
}

// tlsListener speaks TLS on the connections of a listener.
type tlsListener struct {
	net.Listener
	config  *tls.Config
	onError func() // after each handshake that failed
}

// newTLSListener serves the configuration that current has at each handshake.
func newTLSListener(l net.Listener, current *atomic.Pointer[tls.Config], onError func()) *tlsListener {
	return &tlsListener{l, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return current.Load(), nil },
	}, onError}
}

func (l *tlsListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tlsConn{Conn: tls.Server(nc, l.config), onError: l.onError}, nil
}

// tlsConn is the side of a conn that TLS has opened.
type tlsConn struct {
	*tls.Conn
	silence
	onError func()
	failed  bool // the handshake did
}

// Handshake tells a client that speaks plain HTTP so, in words that it can read.
func (c *tlsConn) Handshake() error {
	err := c.Conn.Handshake()
	if err == nil {
		return nil
	}
	c.failed = true
	c.onError()
	var record tls.RecordHeaderError
	if errors.As(err, &record) && record.Conn != nil && plainHTTP(record.RecordHeader) {
		_, _ = record.Conn.Write(faultPlain().plain())
	}
	return err
}

// plainHTTP tells whether the first bytes of a client are those of an HTTP request.
func plainHTTP(head [5]byte) bool {
	switch string(head[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		return true
	}
	return false
}

func (c *tlsConn) Read(p []byte) (int, error) {
	if c.failed {
		return 0, io.EOF // nobody can read an answer
	}
	n, err := c.Conn.Read(p)
	return n, c.heard(p[:max(n, 0)], err)
}
