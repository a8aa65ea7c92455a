package admission_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/services/controllers/admission"
)

var update = flag.Bool("update", false, "write deploy/admission.yaml")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func request(op admissionv1.Operation, object string) *admissionv1.AdmissionRequest {
	return &admissionv1.AdmissionRequest{
		UID: "u", Operation: op, Object: runtime.RawExtension{Raw: []byte(object)},
		Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
	}
}

func TestAReviewAddsDefaultTolerations(t *testing.T) {
	t.Parallel()
	const notReady = `{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}`
	const unreachable = `{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}`
	const other = `{"key":"foo","operator":"Equal","value":"bar","effect":"NoSchedule"}`
	for _, c := range []struct {
		name  string
		req   *admissionv1.AdmissionRequest
		patch string // "" none
		code  int32  // 0 allowed
	}{
		{"none: both, in order", request("CREATE", `{"spec":{}}`), `[{"op":"add","path":"/spec/tolerations","value":[` + notReady + `,` + unreachable + `]}]`, 0},
		{"an empty list", request("CREATE", `{"spec":{"tolerations":[]}}`), `[{"op":"add","path":"/spec/tolerations","value":[` + notReady + `,` + unreachable + `]}]`, 0},
		{"unrelated: both appended", request("UPDATE", `{"spec":{"tolerations":[`+other+`]}}`), `[{"op":"add","path":"/spec/tolerations/-","value":` + notReady + `},{"op":"add","path":"/spec/tolerations/-","value":` + unreachable + `}]`, 0},
		{"one missing", request("CREATE", `{"spec":{"tolerations":[`+unreachable+`]}}`), `[{"op":"add","path":"/spec/tolerations/-","value":` + notReady + `}]`, 0},
		{"asked again", request("CREATE", `{"spec":{"tolerations":[`+notReady+`,`+unreachable+`]}}`), "", 0},
		{"a delete", request("DELETE", ``), "", 0},
		{"not JSON", request("CREATE", `{`), "", 400},
		{"no spec", request("CREATE", `{}`), "", 400},
		{"null", request("CREATE", `null`), "", 400},
		{"seconds that are no number", request("CREATE", `{"spec":{"tolerations":[{"tolerationSeconds":"x"}]}}`), "", 400},
	} {
		resp := admission.Review(c.req, taint.StandardDefaults())
		code := int32(0)
		if resp.Result != nil {
			code = resp.Result.Code
		}
		if resp.Allowed != (c.code == 0) || code != c.code || string(resp.Patch) != c.patch || resp.UID != "u" || (resp.PatchType != nil) != (c.patch != "") {
			t.Errorf("%s: allowed %v, code %d, patch %s; want code %d, patch %s", c.name, resp.Allowed, code, resp.Patch, c.code, c.patch)
		}
	}
	status := request("UPDATE", `{"spec":{}}`)
	status.SubResource = "status"
	if resp := admission.Review(status, taint.StandardDefaults()); !resp.Allowed || resp.Patch != nil {
		t.Errorf("a sub-resource is patched: %+v", resp)
	}
	wrong := request("CREATE", `{"spec":{}}`)
	wrong.Kind.Kind = "Service"
	if resp := admission.Review(wrong, taint.StandardDefaults()); resp.Allowed || resp.Result.Code != 400 {
		t.Errorf("a wrong object is not a bad request: %+v", resp)
	}
	wrong.Resource.Resource = "services"
	if resp := admission.Review(wrong, taint.StandardDefaults()); resp.Allowed || resp.Result.Code != 400 {
		t.Errorf("a wrong resource is not a bad request: %+v", resp)
	}
}

// certificate writes a certificate for 127.0.0.1 and returns a pool that trusts it.
func certificate(t *testing.T, dir string, serial int64) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, data := range map[string][]byte{"tls.crt": public, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(public)
	return pool
}

func TestTheWebhookServesOverTLSAndTakesRenewedCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pool := certificate(t, dir, 1)
	s, err := admission.New(admission.Config{
		Listen: "127.0.0.1:0", CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"), Defaults: &taint.Defaults{NotReady: 5, Unreachable: 6},
	}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	addr, err := s.Addr(ctx)
	if err != nil {
		t.Fatal(err)
	}
	post := func(pool *x509.CertPool, kind, body string) (int, string, error) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
		resp, err := client.Post("https://"+addr+admission.Path, kind, strings.NewReader(body))
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		var b bytes.Buffer
		if _, err := b.ReadFrom(resp.Body); err != nil {
			return 0, "", err
		}
		return resp.StatusCode, b.String(), nil
	}
	good, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request("CREATE", `{"spec":{}}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	code, body, err := post(pool, "application/json", string(good))
	var review admissionv1.AdmissionReview
	if err != nil || code != http.StatusOK || json.Unmarshal([]byte(body), &review) != nil {
		t.Fatalf("answer %d %q, %v", code, body, err)
	}
	if review.Kind != "AdmissionReview" || review.Response == nil || review.Response.UID != "u" || !strings.Contains(string(review.Response.Patch), `"tolerationSeconds":6`) {
		t.Errorf("review = %s", body)
	}
	for _, c := range []struct {
		name, kind, body string
		code             int
	}{
		{"another content type", "text/plain", string(good), http.StatusUnsupportedMediaType},
		{"not JSON", "application/json", "{", http.StatusBadRequest},
		{"another version", "application/json", `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{}}`, http.StatusBadRequest},
		{"no request", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, http.StatusBadRequest},
		{"too large", "application/json", `"` + strings.Repeat("x", 9<<20) + `"`, http.StatusRequestEntityTooLarge},
	} {
		if code, body, err := post(pool, c.kind, c.body); err != nil || code != c.code {
			t.Errorf("%s: %d %s, %v; want %d", c.name, code, body, err, c.code)
		}
	}
	renewed := certificate(t, dir, 2)
	if _, _, err := post(renewed, "application/json", string(good)); err != nil {
		t.Errorf("after a renewal: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := post(renewed, "application/json", string(good)); err != nil {
		t.Errorf("while a renewal is half written: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil on a clean stop", err)
	}
}

func TestFaultsOfTheConfigurationAreReportedTogether(t *testing.T) {
	t.Parallel()
	err := admission.Config{Listen: "nowhere", Defaults: &taint.Defaults{NotReady: -3}}.Validate()
	for _, want := range []string{"listen", "certificate file", "not-ready are negative: -3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("faults do not name %q: %v", want, err)
		}
	}
	if _, err := admission.New(admission.Config{CertFile: "none", KeyFile: "none"}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a certificate that is not there is accepted")
	}
}

const header = `# Installs the webhook of "deltaplane serve controllers --admission-listen". Put the PEM of the authority that signed its
# certificate into caBundle, in base64. Kept equal to admission.Manifest by a test (-update writes it).
`

func TestTheManifestInDeployIsTheGeneratedOne(t *testing.T) {
	t.Parallel()
	got, err := admission.Manifest(admission.Target{Namespace: "deltaplane", Service: "deltaplane-admission"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("..", "..", "..", "deploy", "admission.yaml")
	if *update {
		if err := os.WriteFile(path, append([]byte(header), got...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(header+string(got), string(have)); diff != "" {
		t.Errorf("deploy/admission.yaml (-generated +file):\n%s", diff)
	}
	byURL, err := admission.Manifest(admission.Target{URL: "https://10.0.0.1:8443", CABundle: []byte("x")})
	if err != nil || !strings.Contains(string(byURL), "url: https://10.0.0.1:8443"+admission.Path) {
		t.Errorf("by URL: %s, %v", byURL, err)
	}
	for _, bad := range []admission.Target{{}, {URL: "http://h"}, {URL: "https://h", Service: "s"}, {Service: "s"}} {
		if _, err := admission.Manifest(bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func FuzzEveryPatchIsOneOrTwoChanges(f *testing.F) {
	f.Add(`{"spec":{}}`)
	f.Add(`{"spec":{"tolerations":[{"key":"node.kubernetes.io/not-ready"}]}}`)
	f.Fuzz(func(t *testing.T, object string) {
		resp := admission.Review(request("CREATE", object), taint.StandardDefaults())
		if resp.Patch == nil {
			return
		}
		var changes []struct{ Value json.RawMessage }
		if err := json.Unmarshal(resp.Patch, &changes); err != nil || len(changes) == 0 || len(changes) > 2 {
			t.Fatal(fmt.Sprintf("patch %s", resp.Patch), err)
		}
	})
}
