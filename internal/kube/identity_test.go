package kube_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// identity is a certificate that signs itself, and its key, as a kubeconfig holds them.
func identity(t testing.TB, name string) (cert *x509.Certificate, certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func TestAKubeconfigsClientCertificateIsShown(t *testing.T) {
	t.Parallel()
	known, certPEM, keyPEM := identity(t, "deltaplane")
	_, strangerPEM, strangerKey := identity(t, "stranger")
	trusted := x509.NewCertPool()
	trusted.AddCert(known)
	names := make(chan string, 10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		names <- r.TLS.PeerCertificates[0].Subject.CommonName
		_, _ = fmt.Fprint(w, `{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[]}`)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted}
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	b64 := base64.StdEncoding.EncodeToString
	config := write(t, filepath.Join(dir, "config"), fmt.Sprintf(`
apiVersion: v1
kind: Config
clusters:
- {name: c, cluster: {server: %q, certificate-authority-data: %s}}
users:
- {name: data, user: {client-certificate-data: %s, client-key-data: %s}}
- {name: files, user: {client-certificate: %q, client-key: %q}}
- {name: stranger, user: {client-certificate-data: %s, client-key-data: %s}}
- {name: nobody, user: {}}
contexts:
- {name: data, context: {cluster: c, user: data}}
- {name: files, context: {cluster: c, user: files}}
- {name: stranger, context: {cluster: c, user: stranger}}
- {name: nobody, context: {cluster: c, user: nobody}}
`, server.URL, b64(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})), b64(certPEM), b64(keyPEM),
		write(t, filepath.Join(dir, "crt"), string(certPEM)), write(t, filepath.Join(dir, "key"), string(keyPEM)), b64(strangerPEM), b64(strangerKey)))
	for context, accepted := range map[string]bool{"data": true, "files": true, "stranger": false, "nobody": false} {
		c, err := kube.Load(kube.Config{Kubeconfig: config, Context: context})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		_, err = c.List(t.Context(), podResource, kube.ListOptions{})
		if (err == nil) != accepted || err != nil && !kube.IsCertificate(err) {
			t.Errorf("%s: %v; want it accepted %v, or refused for its certificate", context, err, accepted)
		}
		if err == nil {
			if name := <-names; name != "deltaplane" {
				t.Errorf("%s is known as %q", context, name)
			}
		}
	}
}

// Not parallel: it changes the environment.
func TestInClusterIsWhatThePodWasGiven(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBERNETES_SERVICE_PORT", "")
	if _, err := kube.Load(kube.Config{InCluster: true}); !errors.Is(err, rest.ErrNotInCluster) || !strings.Contains(err.Error(), "in cluster") {
		t.Errorf("outside of a pod: %v", err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "6443")
	const token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	c, err := kube.Load(kube.Config{InCluster: true})
	if _, missing := os.Stat(token); missing != nil {
		if err == nil || !strings.Contains(err.Error(), token) {
			t.Errorf("in a pod without a token: %v, want the token's file named", err)
		}
		return
	}
	if err != nil || c.Address() != "https://[fd00::1]:6443" {
		t.Errorf("in a pod: %v", err)
	}
}
