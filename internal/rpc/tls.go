package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// files re-reads what load returns when one of its paths changed. A version
// that cannot be loaded leaves the last good one in use, so that a half-written
// renewal does no harm.
type files[T any] struct {
	paths []string
	load  func() (T, error)

	mu      sync.Mutex // guards what follows
	value   T
	stamps  []stamp
	checked time.Time
}

type stamp struct {
	mod  time.Time
	size int64
}

const recheck = time.Second

func openFiles[T any](load func() (T, error), paths ...string) (*files[T], error) {
	f := &files[T]{load: load, paths: paths}
	stamps, err := f.stat()
	if err != nil {
		return nil, err
	}
	if f.value, err = load(); err != nil {
		return nil, err
	}
	f.stamps, f.checked = stamps, time.Now()
	return f, nil
}

func (f *files[T]) stat() ([]stamp, error) {
	var stamps []stamp
	for _, path := range f.paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("rpc: %w", err)
		}
		stamps = append(stamps, stamp{info.ModTime(), info.Size()})
	}
	return stamps, nil
}

func (f *files[T]) get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.checked) < recheck {
		return f.value
	}
	f.checked = now
	stamps, err := f.stat()
	if err != nil || equal(stamps, f.stamps) {
		return f.value
	}
	if v, err := f.load(); err == nil {
		f.value, f.stamps = v, stamps
	}
	return f.value
}

func equal(a, b []stamp) bool {
	for i := range a {
		if !a[i].mod.Equal(b[i].mod) || a[i].size != b[i].size {
			return false
		}
	}
	return true
}

type identity struct {
	cert *tls.Certificate
	pool *x509.CertPool
}

func (c TLSConfig) load() (identity, error) {
	var id identity
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return id, fmt.Errorf("rpc: tls certificate: %w", err)
		}
		id.cert = &cert
	}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return id, fmt.Errorf("rpc: tls CA: %w", err)
		}
		id.pool = x509.NewCertPool()
		if !id.pool.AppendCertsFromPEM(pem) {
			return id, fmt.Errorf("rpc: tls CA %q holds no certificate", c.CAFile)
		}
	}
	return id, nil
}

func (c TLSConfig) files() (*files[identity], error) {
	var paths []string
	for _, path := range []string{c.CertFile, c.KeyFile, c.CAFile} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return openFiles(c.load, paths...)
}

func (c TLSConfig) server() (*tls.Config, error) {
	f, err := c.files()
	if err != nil {
		return nil, err
	}
	base := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		id := f.get()
		conn := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: base.NextProtos, Certificates: []tls.Certificate{*id.cert}}
		if id.pool != nil {
			conn.ClientCAs, conn.ClientAuth = id.pool, tls.RequireAndVerifyClientCert
		}
		return conn, nil
	}
	return base, nil
}

func (c TLSConfig) client(serverName string) (*tls.Config, error) {
	f, err := c.files()
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, ServerName: serverName}
	if c.CertFile != "" {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.get().cert, nil }
	}
	if c.CAFile != "" {
		// The roots are looked up at each handshake, so that a renewed CA is
		// believed at once: the standard check is replaced by the same check.
		conf.InsecureSkipVerify = true
		conf.VerifyConnection = func(cs tls.ConnectionState) error { return verify(cs, f.get().pool) }
	}
	return conf, nil
}

func verify(cs tls.ConnectionState, roots *x509.CertPool) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("rpc: tls: server sent no certificate")
	}
	opts := x509.VerifyOptions{Roots: roots, DNSName: cs.ServerName, Intermediates: x509.NewCertPool()}
	for _, cert := range cs.PeerCertificates[1:] {
		opts.Intermediates.AddCert(cert)
	}
	_, err := cs.PeerCertificates[0].Verify(opts)
	return err
}
