package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// secrets are what clients need to talk to the API server.
type secrets struct {
	ca    []byte // PEM
	token string // of a member of system:masters
}

// FrontProxy is the common name of a certificate whose owner the API server believes when it says,
// in X-Remote-User and X-Remote-Group, whose request it passes on.
const FrontProxy = "front-proxy-client"

// makeSecrets writes a new certificate authority, the API server's key pair, the key that signs
// service account tokens, and the administrator's token to DIR/pki. Certificates for clients can be
// issued by the authority.
func (f folder) makeSecrets() (secrets, error) {
	var s secrets
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return s, err
	}
	from := time.Now().Add(-time.Hour)
	authority := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "deltaplane-kube"},
		NotBefore:             from,
		NotAfter:              from.AddDate(1, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return s, err
	}
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return s, err
	}
	server := &x509.Certificate{
		SerialNumber: new(big.Int).Add(serial, big.NewInt(1)),
		Subject:      pkix.Name{CommonName: "kube-apiserver"},
		NotBefore:    from,
		NotAfter:     from.AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost", "kubernetes", "kubernetes.default.svc"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1)},
	}
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return s, err
	}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, authority, &serverKey.PublicKey, authorityKey)
	if err != nil {
		return s, err
	}
	signingKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return s, err
	}
	s.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authorityDER})
	s.token = rand.Text()
	files := map[string][]byte{
		"ca.crt":     s.ca,
		"server.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: serverDER}),
		"tokens.csv": []byte(s.token + ",admin,admin,system:masters\n"),
	}
	keys := map[string]*ecdsa.PrivateKey{"ca.key": authorityKey, "server.key": serverKey, "service-account.key": signingKey}
	for name, key := range keys {
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return s, err
		}
		files[name] = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	}
	for name, text := range files {
		if err := os.WriteFile(f.path("pki", name), text, 0o600); err != nil {
			return s, err
		}
	}
	return s, nil
}

// writeKubeconfig writes DIR/kubeconfig. It is JSON, which is YAML too.
func (f folder) writeKubeconfig(server string, s secrets) error {
	const name = "deltaplane-kube"
	text, err := json.MarshalIndent(map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": name,
		"clusters": []any{map[string]any{"name": name, "cluster": map[string]any{
			"server":                     server,
			"certificate-authority-data": base64.StdEncoding.EncodeToString(s.ca),
		}}},
		"users":    []any{map[string]any{"name": "admin", "user": map[string]any{"token": s.token}}},
		"contexts": []any{map[string]any{"name": name, "context": map[string]any{"cluster": name, "user": "admin"}}},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("cluster: kubeconfig: %w", err)
	}
	if err := os.WriteFile(f.path("kubeconfig"), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("cluster: kubeconfig: %w", err)
	}
	return nil
}
