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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
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
	ca := newAuthority(t, t.TempDir())
	ca.issue(t, "server", nil)
	cfg := rpc.ServerConfig{TLS: rpc.TLSConfig{CertFile: ca.files("server").CertFile, KeyFile: ca.files("server").KeyFile}}
	ca.renew(t, listening(t, cfg, rpc.Options{}, &echo{call: func(context.Context, string) error { return nil }}))
}

// renew issues another certificate for the server at addr, and waits until it shows that one.
func (a *authority) renew(t *testing.T, addr string) {
	t.Helper()
	renewed, _ := a.issue(t, "server", nil)
	shown := func() string {
		raw, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		return peerSerial(t, raw, a.dir)
	}
	// The files are looked at once a second.
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for shown() != renewed.SerialNumber.String() {
		if time.Now().After(deadline) {
			t.Fatal("still the old certificate after 30 s")
		}
		<-tick.C
	}
}

// Certificate and key are two files, so there are moments at which they do not fit each other.
func TestNoCallFailsWhileCertificatesAreRenewed(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, t.TempDir())
	ca.issue(t, "server", nil)
	ca.issue(t, "client", nil)
	ca.issue(t, "guest", nil) // who begins with files that do not fit each other is refused
	cfg := rpc.DialConfig{TLS: ca.files("client"), ServerName: "test.local", Extra: []grpc.DialOption{grpc.WithDisableRetry()}}
	addr := listening(t, rpc.ServerConfig{TLS: ca.files("server")}, rpc.Options{}, &echo{call: func(context.Context, string) error { return nil }})
	guest := cfg
	guest.TLS = ca.files("guest")
	conn, err := rpc.Dial(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var callers sync.WaitGroup
	done := make(chan struct{})
	// Without a pause between calls they take the machine from other tests.
	pace := time.NewTicker(2 * time.Millisecond)
	defer pace.Stop()
	stop := sync.OnceFunc(func() {
		close(done)
		callers.Wait()
	})
	defer stop() // before the test ends, however it does
	var calls, connections atomic.Int64
	until := func(call func() error) {
		callers.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-pace.C:
				}
				if err := call(); err != nil {
					t.Errorf("a call failed: %v", err)
					return
				}
			}
		})
	}
	until(func() error {
		calls.Add(1)
		return (&bench{conn: conn}).call(t.Context(), "")
	})
	until(func() error {
		connections.Add(1)
		conn, err := rpc.Dial(addr, guest)
		if err != nil {
			return err
		}
		defer conn.Close()
		return (&bench{conn: conn}).call(t.Context(), "")
	})
	for range 5 {
		ca.issue(t, "client", nil)
		ca.renew(t, addr)
	}
	stop()
	if calls.Load() == 0 || connections.Load() == 0 {
		t.Errorf("%d calls, %d connections", calls.Load(), connections.Load())
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
