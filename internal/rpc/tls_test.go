package rpc_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// authority is a CA that writes certificates into a directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	a := &authority{dir: dir}
	a.cert, a.key = a.issue(t, "ca", nil)
	return a
}

func (a *authority) issue(t *testing.T, name string, mod func(*x509.Certificate)) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<60))
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{"test.local"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: a.cert == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	if a.cert != nil {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	if mod != nil {
		mod(c)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(a.dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *authority) files(name string) rpc.TLSConfig {
	return rpc.TLSConfig{CertFile: filepath.Join(a.dir, name+".crt"), KeyFile: filepath.Join(a.dir, name+".key"), CAFile: filepath.Join(a.dir, "ca.crt")}
}

func TestTLSAsksBothSidesForACertificate(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t, t.TempDir()), newAuthority(t, t.TempDir())
	ca.issue(t, "server", nil)
	ca.issue(t, "client", nil)
	other.issue(t, "client", nil)
	e := &echo{call: func(context.Context, string) error { return nil }}
	stranger := other.files("client")
	stranger.CAFile = filepath.Join(ca.dir, "ca.crt")
	believer := ca.files("client")
	believer.CAFile = filepath.Join(other.dir, "ca.crt")
	for name, c := range map[string]struct {
		d    rpc.DialConfig
		want codes.Code
	}{
		"both known":             {rpc.DialConfig{TLS: ca.files("client")}, codes.OK},
		"client without":         {rpc.DialConfig{TLS: rpc.TLSConfig{CAFile: filepath.Join(ca.dir, "ca.crt")}}, codes.Unavailable},
		"client of another CA":   {rpc.DialConfig{TLS: stranger}, codes.Unavailable},
		"server of another CA":   {rpc.DialConfig{TLS: believer}, codes.Unavailable},
		"server of another name": {rpc.DialConfig{TLS: ca.files("client"), ServerName: "elsewhere.local"}, codes.Unavailable},
		"client in plain text":   {rpc.DialConfig{}, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, rpc.ServerConfig{TLS: ca.files("server")}, rpc.Options{}, e, c.d)
			if err := b.call(t.Context(), ""); rpc.Code(err) != c.want {
				t.Errorf("call: %v, want %v", err, c.want)
			}
		})
	}
}

func TestARenewedCertificateIsUsedWithoutARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := newAuthority(t, dir)
	ca.issue(t, "server", nil)
	srv, err := rpc.NewServer(rpc.ServerConfig{TLS: rpc.TLSConfig{CertFile: ca.files("server").CertFile, KeyFile: ca.files("server").KeyFile}}, rpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	srv.RegisterService(&echoDesc, &echo{call: func(context.Context, string) error { return nil }})
	lis, err := rpc.Listen(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, lis) }()
	defer func() { cancel(); <-done }()
	serial := func() string {
		var got string
		raw, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		got = peerSerial(t, raw, dir)
		return got
	}
	first := serial()
	renewed, _ := ca.issue(t, "server", nil)
	// The files are looked at once a second.
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for serial() != renewed.SerialNumber.String() {
		if time.Now().After(deadline) {
			t.Fatalf("still the certificate %s after 10 s", first)
		}
		<-tick.C
	}
}

func peerSerial(t *testing.T, raw net.Conn, dir string) string {
	t.Helper()
	roots := x509.NewCertPool()
	data, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots.AppendCertsFromPEM(data)
	conn := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: "test.local", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}
