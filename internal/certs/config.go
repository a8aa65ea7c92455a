package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
)

// Config names PEM files. They are read again when they change, so that certificates can be renewed
// without a restart.
type Config struct {
	// CertFile and KeyFile are this side's certificate; a server needs them.
	CertFile, KeyFile string
	// CAFile is what the other side's certificate must descend from. On a server it makes a client
	// certificate compulsory; on a client the system's roots are used without it.
	CAFile string
}

// Validate says when only one of certificate and key is named.
func Validate(c Config) error {
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("tls needs both a certificate file and a key file")
	}
	return nil
}

// Identity is what the files of a [Config] hold; nil is what they do not name.
type Identity struct {
	Certificate *tls.Certificate
	Authorities *x509.CertPool
}

func load(c Config) (Identity, error) {
	var id Identity
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return id, fmt.Errorf("certs: certificate: %w", err)
		}
		id.Certificate = &cert
	}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return id, fmt.Errorf("certs: CA: %w", err)
		}
		id.Authorities = x509.NewCertPool()
		if !id.Authorities.AppendCertsFromPEM(pem) {
			return id, fmt.Errorf("certs: CA %q holds no certificate", c.CAFile)
		}
	}
	return id, nil
}

// Open reads the files.
func Open(c Config) (*Files[Identity], error) {
	var paths []string
	for _, path := range []string{c.CertFile, c.KeyFile, c.CAFile} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return OpenFiles(func() (Identity, error) { return load(c) }, paths...)
}

// Server is the configuration of a server of some protocols (ALPN), which requires client
// certificates where it knows their authorities, unless they are optional.
func Server(c Config, optional bool, protocols ...string) (*tls.Config, error) {
	f, err := Open(c)
	if err != nil {
		return nil, err
	}
	base := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		id := f.Get()
		conn := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, Certificates: []tls.Certificate{*id.Certificate}}
		if id.Authorities != nil {
			conn.ClientCAs, conn.ClientAuth = id.Authorities, tls.RequireAndVerifyClientCert
			if optional {
				conn.ClientAuth = tls.VerifyClientCertIfGiven
			}
		}
		return conn, nil
	}
	return base, nil
}

// Client is the configuration of a client, whose certificate may be renewed; its authorities are
// those of now.
func Client(c Config, serverName string) (*tls.Config, error) {
	f, err := Open(c)
	if err != nil {
		return nil, err
	}
	return clientConfig(c, f, serverName), nil
}

// ClientNow is [Client] for many connections: it returns the configuration of the next one, with
// the authorities of the moment, which its caller may change.
func ClientNow(c Config, serverName string) (func() *tls.Config, error) {
	f, err := Open(c)
	if err != nil {
		return nil, err
	}
	return func() *tls.Config { return clientConfig(c, f, serverName) }, nil
}

func clientConfig(c Config, f *Files[Identity], serverName string, protocols ...string) *tls.Config {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, ServerName: serverName, RootCAs: f.Get().Authorities}
	if c.CertFile != "" {
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.Get().Certificate, nil }
	}
	return conf
}

// Credentials are those of the side that dials by gRPC. The standard check runs at each handshake,
// against the authorities that the file names then and against the host that was dialled, be that a
// name or an IP address.
func Credentials(c Config, serverName string) (credentials.TransportCredentials, error) {
	f, err := Open(c)
	if err != nil {
		return nil, err
	}
	conf := clientConfig(c, f, serverName, "h2")
	return dialer{credentials.NewTLS(conf), conf, f}, nil
}

// dialer believes the authorities of the moment. crypto/tls takes them from its configuration only,
// and its hooks do not learn an IP address that was dialled: thus a configuration for each
// handshake.
type dialer struct {
	credentials.TransportCredentials
	conf  *tls.Config
	files *Files[Identity]
}

// ClientHandshake implements credentials.TransportCredentials.
func (d dialer) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conf := d.conf.Clone()
	conf.RootCAs = d.files.Get().Authorities
	return credentials.NewTLS(conf).ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (d dialer) Clone() credentials.TransportCredentials {
	return dialer{d.TransportCredentials.Clone(), d.conf.Clone(), d.files}
}
