package gateway_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/gateway"
)

// certified is a gateway before a real API server whose callers show certificates.
type certified struct {
	*tenant
	authority *certs.Authority
	roots     *x509.CertPool
}

// onCertifiedServer is one that passes them on by a mode.
func onCertifiedServer(t *testing.T, mode gateway.ClientCertificates) *certified {
	t.Helper()
	r, file := realServer(t)
	c := &certified{roots: x509.NewCertPool()}
	pki := filepath.Join(filepath.Dir(file), "pki")
	key, err := os.ReadFile(filepath.Join(pki, "ca.key"))
	if err != nil {
		t.Skipf("the authority of the cluster's certificates is not at hand: %v", err)
	}
	cert, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	c.roots.AppendCertsFromPEM(cert)
	if c.authority, err = certs.LoadAuthority(certs.Pair{Cert: cert, Key: key}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	serving := c.issue(t, dir, "serving", certs.Subject{User: "gateway", Hosts: []string{"127.0.0.1"}})
	with := kube.Credentials{Own: true}
	if mode == gateway.FrontProxy {
		proxy := c.issue(t, dir, "proxy", certs.Subject{User: "front-proxy-client"})
		with = kube.Credentials{CertFile: proxy.CertFile, KeyFile: proxy.KeyFile}
	}
	if r.vouching, err = kube.LoadUpstream(kube.Config{Kubeconfig: file}, with); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.vouching.Close)
	r.start(kube.Config{Kubeconfig: file}, func(cfg *gateway.Config) { cfg.TLS, cfg.ClientCertificates = serving, mode })
	r.url = strings.Replace(r.url, "http://", "https://", 1)
	r.client = c.as(t, &certs.Subject{User: "boss", Groups: []string{"system:masters"}})
	r.mirrored("/api/v1/configmaps")
	c.tenant = r.tenant()
	c.create(roleBindings+c.ns+"/rolebindings", `{"metadata":{"name":"jane"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"view"},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"jane"}]}`)
	return c
}

func (c *certified) issue(t *testing.T, dir, name string, s certs.Subject) certs.Config {
	t.Helper()
	return write(t, c.authority, dir, name, s, time.Hour)
}

func write(t *testing.T, by *certs.Authority, dir, name string, s certs.Subject, lifetime time.Duration) certs.Config {
	t.Helper()
	pair, err := by.Issue(s, time.Now(), lifetime)
	if err != nil {
		t.Fatal(err)
	}
	out := certs.Config{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key")}
	for path, text := range map[string][]byte{out.CertFile: pair.Cert, out.KeyFile: pair.Key} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// as is a client with a certificate of the cluster; without one for nil.
func (c *certified) as(t *testing.T, s *certs.Subject) *http.Client {
	t.Helper()
	return c.client(t, c.authority, s)
}

func (c *certified) client(t *testing.T, by *certs.Authority, s *certs.Subject) *http.Client {
	t.Helper()
	cfg := &tls.Config{RootCAs: c.roots, MinVersion: tls.VersionTLS12}
	if s != nil {
		pair, err := by.Issue(*s, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		shown, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{shown}
	}
	tr := &http.Transport{TLSClientConfig: cfg}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// of is the same gateway, asked by another client.
func (c *certified) of(hc *http.Client) *rig {
	r := *c.rig
	r.client = hc
	return &r
}

// whoami is who the API server says that a request through the gateway is of.
func (r *rig) whoami(header ...string) (who string, code int) {
	r.t.Helper()
	resp := r.ask(r.url, http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`,
		append([]string{"Content-Type", "application/json"}, header...)...)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusCreated {
		var status struct{ Message string }
		if err := json.Unmarshal(raw, &status); err != nil {
			r.t.Fatalf("%s: %v", raw, err)
		}
		return status.Message, resp.StatusCode
	}
	var review struct {
		Status struct {
			UserInfo struct {
				Username string
				Groups   []string
			}
		}
	}
	if err := json.Unmarshal(raw, &review); err != nil {
		r.t.Fatalf("%s: %v", raw, err)
	}
	return fmt.Sprint(review.Status.UserInfo.Username, " ", review.Status.UserInfo.Groups), resp.StatusCode
}

func TestRealOwnersOfClientCertificatesReadAndWriteAsThemselves(t *testing.T) {
	t.Parallel()
	for _, mode := range []gateway.ClientCertificates{gateway.Impersonate, gateway.FrontProxy} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			c := onCertifiedServer(t, mode)
			jane := c.of(c.as(t, &certs.Subject{User: "jane", Groups: []string{"readers"}}))
			boss := c.of(c.as(t, &certs.Subject{User: "boss", Groups: []string{"system:masters"}}))
			nobody := c.of(c.as(t, nil))
			_, pair, err := certs.NewAuthority("another", time.Now(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			another, err := certs.LoadAuthority(pair)
			if err != nil {
				t.Fatal(err)
			}
			stranger := c.of(c.client(t, another, &certs.Subject{User: "boss", Groups: []string{"system:masters"}}))
			mine, all := "/api/v1/namespaces/"+c.ns+"/configmaps"+any0, "/api/v1/configmaps"+any0
			robot := "system:serviceaccount:" + c.ns + ":robot"
			for _, tc := range []struct {
				what   string
				who    *rig
				path   string
				header []string
				by     string
				code   int
			}{
				{"a reader, her namespace", jane, mine, nil, "index", 200},
				{"a reader, everything", jane, all, nil, "", 403},
				{"a reader who writes herself a better name", jane, all, []string{"X-Remote-User", "boss", "X-Remote-Group", "system:masters"}, "", 403},
				{"a reader who would be somebody else", jane, all, []string{"Impersonate-User", "boss", "Impersonate-Group", "system:masters"}, "", 403},
				{"a reader who would be what nobody understands", jane, mine, []string{"Impersonate-Group", "system:masters"}, "", 400},
				{"an administrator, everything", boss, all, nil, "index", 200},
				{"an administrator as a service account, its namespace", boss, mine, []string{"Impersonate-User", robot}, "index", 200},
				{"an administrator as a service account, everything", boss, all, []string{"Impersonate-User", robot}, "", 403},
				{"an unknown authority's", stranger, all, nil, "", 401},
				{"an unknown authority's, with a token", stranger, mine, []string{"Authorization", "Bearer " + c.token}, "index", 200},
				{"nobody", nobody, all, nil, "", 401},
				{"a token alone", nobody, mine, []string{"Authorization", "Bearer " + c.token}, "index", 200},
			} {
				by, code, body := tc.who.read(tc.path, tc.header...)
				if by != tc.by || code != tc.code {
					t.Errorf("%s: by %q %d, want by %q %d: %.300s", tc.what, by, code, tc.by, tc.code, body)
				}
			}
			for _, tc := range []struct {
				what   string
				who    *rig
				header []string
				want   string
			}{
				{"a reader", jane, nil, "jane [readers system:authenticated]"},
				{"a reader with the administrator's token", jane, []string{"Authorization", "Bearer " + c.token}, "jane [readers system:authenticated]"},
				{"a reader who writes herself a better name", jane, []string{"X-Remote-User", "boss", "X-Remote-Extra-A", "b"}, "jane [readers system:authenticated]"},
				{"an administrator as somebody", boss, []string{"Impersonate-User", "eve", "Impersonate-Group", "a", "Impersonate-Group", "b"}, "eve [a b system:authenticated]"},
				{"a token", nobody, []string{"Authorization", "Bearer " + c.token}, robot + " [system:serviceaccounts system:serviceaccounts:" + c.ns + " system:authenticated]"},
			} {
				if got, code := tc.who.whoami(tc.header...); got != tc.want {
					t.Errorf("%s is %d %q, want %q", tc.what, code, got, tc.want)
				}
			}
			if said, code := jane.whoami("Impersonate-User", "boss"); code != http.StatusForbidden || !strings.Contains(said, `User "jane" cannot impersonate`) {
				t.Errorf("who may not impersonate is answered %d %q", code, said)
			}
		})
	}
}
