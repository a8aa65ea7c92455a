package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// signer is an authority that signs what a test wants.
type signer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	s := &signer{t: t}
	s.cert, s.key = s.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(24 * time.Hour),
	})
	return s
}

func (s *signer) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Minute)
	parent, by := s.cert, s.key
	if parent == nil {
		parent, by = c, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), by)
	if err != nil {
		s.t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(raw); err != nil {
		s.t.Fatal(err)
	}
	return c, key
}

// of is a certificate of a client.
func (s *signer) of(name pkix.Name, usage x509.ExtKeyUsage, lifetime time.Duration) []*x509.Certificate {
	s.t.Helper()
	c, _ := s.sign(&x509.Certificate{Subject: name, ExtKeyUsage: []x509.ExtKeyUsage{usage}, NotAfter: time.Now().Add(lifetime)})
	return []*x509.Certificate{c}
}

func (s *signer) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})
}

// taking is what takes the certificates of a signer, by a file.
func (s *signer) taking(mode ClientCertificates) *certificates {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, s.pem(), 0o600); err != nil {
		s.t.Fatal(err)
	}
	c, err := newCertificates(Config{Cluster: "prod", ClientCertificates: mode, ClientCA: file}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func TestACertificateIsReadAsAnAPIServerReadsIt(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	c := s.taking(FrontProxy)
	uid := pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}, Value: "u-1"}
	id, err := c.identity(s.of(pkix.Name{CommonName: "jane", Organization: []string{"a", "b"}, ExtraNames: []pkix.AttributeTypeAndValue{uid}}, x509.ExtKeyUsageClientAuth, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if id.User != "jane" || id.UID != "u-1" || !slices.Equal(id.Groups, []string{"a", "b", "system:authenticated"}) || id.Cluster != "prod" {
		t.Errorf("it is %+v", id)
	}
	if extra := id.Extra["authentication.kubernetes.io/credential-id"]; len(extra) != 1 || !strings.HasPrefix(extra[0], "X509SHA256=") {
		t.Errorf("its extra is %q", id.Extra)
	}
	if id, err := s.taking(Impersonate).identity(s.of(pkix.Name{CommonName: "jane"}, x509.ExtKeyUsageClientAuth, time.Hour)); err != nil || len(id.Extra) != 0 {
		t.Errorf("who is impersonated has extra %v, %v", id, err)
	}
}

func TestACertificateCountsForNothing(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	c := s.taking(Impersonate)
	for what, shown := range map[string][]*x509.Certificate{
		"of another authority": newSigner(t).of(pkix.Name{CommonName: "jane"}, x509.ExtKeyUsageClientAuth, time.Hour),
		"for a server":         s.of(pkix.Name{CommonName: "jane"}, x509.ExtKeyUsageServerAuth, time.Hour),
		"without a name":       s.of(pkix.Name{Organization: []string{"system:masters"}}, x509.ExtKeyUsageClientAuth, time.Hour),
		"that has ended":       s.of(pkix.Name{CommonName: "jane"}, x509.ExtKeyUsageClientAuth, -time.Second),
	} {
		if id, err := c.identity(shown); err == nil {
			t.Errorf("one %s is of %+v", what, id)
		}
	}
	unread := &certificates{}
	if _, err := unread.identity(s.of(pkix.Name{CommonName: "jane"}, x509.ExtKeyUsageClientAuth, time.Hour)); !errors.Is(err, errNoAuthorities) {
		t.Errorf("before the authorities are known: %v", err)
	}
}

func TestACertificateThatWasGoodEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner(t)
		known, err := newTrust(string(s.pem()))
		if err != nil {
			t.Fatal(err)
		}
		c := &certificates{}
		c.read.Store(known)
		shown := s.of(pkix.Name{CommonName: "jane"}, x509.ExtKeyUsageClientAuth, time.Minute)
		for range 2 {
			if _, err := c.identity(shown); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute + time.Second)
		if id, err := c.identity(shown); err == nil {
			t.Errorf("it is still of %+v", id)
		}
	})
}

func TestManyCertificatesTakeLittleMemory(t *testing.T) {
	t.Parallel()
	known, err := newTrust(string(newSigner(t).pem()))
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 * maxCertified {
		known.put([32]byte{byte(n), byte(n >> 8)}, certified{})
	}
	if len(known.known) > maxCertified {
		t.Errorf("%d are known", len(known.known))
	}
}

func TestFaultsOfClientCertificatesAreNamed(t *testing.T) {
	t.Parallel()
	tls := certs.Config{CertFile: "a", KeyFile: "b"}
	for want, cfg := range map[string]Config{
		`client certificates "maybe": want impersonate or front-proxy`: {ClientCertificates: "maybe"},
		"client certificates need TLS":                                 {ClientCertificates: Impersonate},
		"a client CA needs client certificates to be taken":            {ClientCA: "ca.crt", TLS: tls},
		"mean nothing to an API server that lets everybody":            {ClientCertificates: FrontProxy, TLS: tls, AllowAll: true},
	} {
		cfg.Admin = telemetry.AdminConfig{Listen: "off"}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if _, err := newCertificates(Config{ClientCertificates: Impersonate, ClientCA: "missing.crt"}, nil); err == nil || !strings.Contains(err.Error(), "missing.crt") {
		t.Errorf("a file that is not there: %v", err)
	}
}
