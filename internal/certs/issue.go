package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"
)

// Pair is a certificate and its key, PEM.
type Pair struct{ Cert, Key []byte }

// Subject says whose certificate it is. User and groups are what a server of ours takes them for:
// the common name and the organizations. With hosts, names and IP addresses, it may serve as well
// as call.
type Subject struct {
	User   string
	Groups []string
	Hosts  []string
}

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  any
}

// skew is how much later than the issuer another machine may think it is earlier.
const skew = 5 * time.Minute

// NewAuthority makes an authority, and what to keep of it.
func NewAuthority(name string, now time.Time, lifetime time.Duration) (*Authority, Pair, error) {
	c, err := template(now, lifetime)
	if err != nil {
		return nil, Pair{}, err
	}
	c.Subject.CommonName = name
	c.IsCA, c.MaxPathLenZero = true, true
	c.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	pair, err := sign(c, nil)
	if err != nil {
		return nil, Pair{}, err
	}
	a, err := LoadAuthority(pair)
	return a, pair, err
}

// LoadAuthority reads an authority that was made before.
func LoadAuthority(p Pair) (*Authority, error) {
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, fmt.Errorf("certs: authority: %w", err)
	}
	if !pair.Leaf.IsCA {
		return nil, errors.New("certs: authority: the certificate is not one of an authority")
	}
	return &Authority{pair.Leaf, pair.PrivateKey}, nil
}

// Issue makes a key and its certificate, which ends no later than the authority's own.
func (a *Authority) Issue(s Subject, now time.Time, lifetime time.Duration) (Pair, error) {
	if s.User == "" {
		return Pair{}, errors.New("certs: issue: the user is empty")
	}
	c, err := template(now, lifetime)
	if err != nil {
		return Pair{}, err
	}
	if c.NotAfter.After(a.cert.NotAfter) {
		c.NotAfter = a.cert.NotAfter
	}
	c.Subject = pkix.Name{CommonName: s.User, Organization: s.Groups}
	c.KeyUsage = x509.KeyUsageDigitalSignature
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, host := range s.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, host)
		}
	}
	if len(s.Hosts) > 0 {
		c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return sign(c, a)
}

func template(now time.Time, lifetime time.Duration) (*x509.Certificate, error) {
	if lifetime <= 0 {
		return nil, fmt.Errorf("certs: lifetime %v: want more than nothing", lifetime)
	}
	return &x509.Certificate{NotBefore: now.Add(-skew), NotAfter: now.Add(lifetime), BasicConstraintsValid: true}, nil
}

// sign makes a key for a certificate, which signs itself without an authority.
func sign(c *x509.Certificate, by *Authority) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("certs: make a key: %w", err)
	}
	if by == nil {
		by = &Authority{c, key}
	}
	cert, err := x509.CreateCertificate(rand.Reader, c, by.cert, key.Public(), by.key)
	if err != nil {
		return Pair{}, fmt.Errorf("certs: sign: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("certs: encode a key: %w", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}, nil
}

// Signed reports whether the authority signed a certificate, PEM, for these names, and until when
// it is valid.
func (a *Authority) Signed(cert []byte, s Subject) (until time.Time, ok bool) {
	c, err := parse(cert)
	if err != nil || c.CheckSignatureFrom(a.cert) != nil || c.Subject.CommonName != s.User || !same(c.Subject.Organization, s.Groups) {
		return time.Time{}, false
	}
	for _, host := range s.Hosts {
		if c.VerifyHostname(host) != nil {
			return time.Time{}, false
		}
	}
	return c.NotAfter, true
}

func same(a, b []string) bool {
	has := map[string]bool{}
	for _, s := range a {
		has[s] = true
	}
	for _, s := range b {
		if !has[s] {
			return false
		}
	}
	return len(a) == len(b)
}

// parse is the first certificate of a PEM file.
func parse(data []byte) (*x509.Certificate, error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, errors.New("certs: no certificate is in it")
}
