package rpc

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// files re-reads what load returns when the content of one of its paths changed.
// A version that cannot be loaded leaves the last good one in use, so that a
// half-written renewal does no harm.
type files[T any] struct {
	paths []string
	load  func() (T, error)

	mu      sync.Mutex // guards what follows
	value   T
	content [sha256.Size]byte // of the version that was looked at last
	checked time.Time
}

const recheck = time.Second

func openFiles[T any](load func() (T, error), paths ...string) (*files[T], error) {
	f := &files[T]{load: load, paths: paths}
	content, err := digest(paths...)
	if err != nil {
		return nil, err
	}
	if f.value, err = load(); err != nil {
		return nil, err
	}
	f.content, f.checked = content, time.Now()
	return f, nil
}

// digest is over the content: a change may leave a file's time and size as they were.
func digest(paths ...string) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return sum, fmt.Errorf("rpc: %w", err)
		}
		part := sha256.Sum256(data)
		h.Write(part[:])
	}
	h.Sum(sum[:0])
	return sum, nil
}

func (f *files[T]) get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.checked) < recheck {
		return f.value
	}
	f.checked = now
	content, err := digest(f.paths...)
	if err != nil || content == f.content {
		return f.value
	}
	f.content = content
	if v, err := f.load(); err == nil {
		f.value = v
	} else {
		f.content = [sha256.Size]byte{} // may have been read while it was written
	}
	return f.value
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

// client makes the credentials of the side that dials. The standard check runs at each handshake,
// against the authorities that the file names then and against the host that was dialled, be that a
// name or an IP address.
func (c TLSConfig) client(serverName string) (credentials.TransportCredentials, error) {
	f, err := c.files()
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, ServerName: serverName}
	if c.CertFile != "" {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.get().cert, nil }
	}
	return clientCreds{credentials.NewTLS(conf), conf, f}, nil
}

// clientCreds believes the authorities of the moment. crypto/tls takes them from its configuration
// only, and its hooks do not learn an IP address that was dialled: thus a configuration for each
// handshake.
type clientCreds struct {
	credentials.TransportCredentials
	conf  *tls.Config
	files *files[identity]
}

// ClientHandshake implements credentials.TransportCredentials.
func (c clientCreds) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conf := c.conf.Clone()
	conf.RootCAs = c.files.get().pool
	return credentials.NewTLS(conf).ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (c clientCreds) Clone() credentials.TransportCredentials {
	return clientCreds{c.TransportCredentials.Clone(), c.conf.Clone(), c.files}
}
