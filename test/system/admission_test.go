package system

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// The API server's own plug-in is off, and deploy/admission.yaml is installed, by URL.
func TestRealAPIServersGiveDefaultTolerationsByTheWebhook(t *testing.T) {
	t.Parallel()
	k := startKube(t, "--nodes", "1", "--api-arg=--disable-admission-plugins=DefaultTolerationSeconds",
		"--api-arg=--feature-gates=TaintTolerationComparisonOperators=true")
	cert, key, authority := serverCertificate(t)
	address := embeddedtest.Ports(t, 1)[0]
	p := k.startPlane(t, nil, []string{
		"--controllers", "tainteviction", "--numeric-tolerations", "--admission-listen", address, "--admission-tls-cert", cert, "--admission-tls-key", key,
		"--default-not-ready-toleration-seconds", "120", "--default-unreachable-toleration-seconds", "60",
	})
	p.run(t, "controllers")
	p.ready(t, "controllers")
	before := k.tolerations(t, "before", nil)
	if len(before) != 0 {
		t.Fatalf("a pod has %v before the webhook is installed, want none", before)
	}
	text, err := os.ReadFile("../../deploy/admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var hook admissionregistrationv1.MutatingWebhookConfiguration
	if err := yaml.UnmarshalStrict(text, &hook); err != nil {
		t.Fatal(err)
	}
	client := &hook.Webhooks[0].ClientConfig
	client.URL, client.CABundle = new("https://"+address+*client.Service.Path), authority
	client.Service = nil
	if err := k.api.create(t.Context(), "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", hook, nil); err != nil {
		t.Fatal(err)
	}

	notReady := toleration("node.kubernetes.io/not-ready", new(int64(120)))
	away := toleration(unreachable, new(int64(60)))
	n := 0
	eventually(t, 20*time.Second, "the API server calls the webhook", func(context.Context) error {
		n++
		if got := k.tolerations(t, fmt.Sprintf("first-%d", n), nil); len(got) != 2 {
			return fmt.Errorf("a pod has %v", got)
		}
		return nil
	})

	other := corev1.Toleration{Key: "foo", Operator: corev1.TolerationOpEqual, Value: "bar", Effect: corev1.TaintEffectNoSchedule}
	keyless := corev1.Toleration{Operator: corev1.TolerationOpExists}
	anyEffect := corev1.Toleration{Key: unreachable, Operator: corev1.TolerationOpExists}
	own := func(key string) corev1.Toleration { return toleration(key, new(int64(700))) }
	// The rows of TestForgivenessAdmission, less those that the API server itself refuses.
	for name, c := range map[string]struct{ given, want []corev1.Toleration }{
		"none":                    {nil, []corev1.Toleration{notReady, away}},
		"unrelated":               {[]corev1.Toleration{other}, []corev1.Toleration{other, notReady, away}},
		"not-ready-only":          {[]corev1.Toleration{own(notReady.Key)}, []corev1.Toleration{own(notReady.Key), away}},
		"unreachable-only":        {[]corev1.Toleration{own(away.Key)}, []corev1.Toleration{own(away.Key), notReady}},
		"both":                    {[]corev1.Toleration{own(notReady.Key), own(away.Key)}, []corev1.Toleration{own(notReady.Key), own(away.Key)}},
		"unreachable-any-effect":  {[]corev1.Toleration{anyEffect}, []corev1.Toleration{anyEffect, notReady}},
		"keyless-exists":          {[]corev1.Toleration{keyless}, []corev1.Toleration{keyless}},
		"for-ever-as-a-daemonset": {[]corev1.Toleration{toleration(notReady.Key, nil), toleration(away.Key, nil)}, []corev1.Toleration{toleration(notReady.Key, nil), toleration(away.Key, nil)}},
	} {
		if diff := cmp.Diff(c.want, k.tolerations(t, name, c.given)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		// An update asks again, and changes nothing.
		if diff := cmp.Diff(c.want, k.touch(t, name)); diff != "" {
			t.Errorf("%s, updated (-want +got):\n%s", name, diff)
		}
	}
	// A pod from before gets what it lacks with its next update.
	if diff := cmp.Diff([]corev1.Toleration{notReady, away}, k.touch(t, "before")); diff != "" {
		t.Errorf("a pod from before the webhook, updated (-want +got):\n%s", diff)
	}
	if reviews := p.metric(t, "controllers", `deltaplane_admission_reviews_total{result="patched"}`); reviews < 7 {
		t.Errorf("the webhook counts %.0f patched pods, want those of this test", reviews)
	}
	numericTolerations(t, k)
	p.kill(t, "controllers")
	if got := k.tolerations(t, "unattended", nil); len(got) != 0 {
		t.Errorf("without the webhook a pod has %v, want that it passes unchanged", got)
	}
}

// numericTolerations taints the node with a number: what Gt and Lt say of it holds.
func numericTolerations(t *testing.T, k *kubeCluster) {
	w := k.watch(t)
	stays := map[string]bool{}
	for operator, values := range map[corev1.TolerationOperator]map[string]bool{
		"Gt": {"4": true, "5": false}, "Lt": {"6": true, "5": false}, corev1.TolerationOpEqual: {"5": true, "6": false},
	} {
		for value, want := range values {
			name := strings.ToLower(string(operator)) + "-" + value
			pod := &corev1.Pod{Spec: corev1.PodSpec{
				NodeName: "node-1", Containers: []corev1.Container{{Name: "main", Image: "none"}},
				Tolerations: []corev1.Toleration{{Key: "level", Operator: operator, Value: value, Effect: corev1.TaintEffectNoExecute}},
			}}
			pod.APIVersion, pod.Kind, pod.Name = "v1", "Pod", name
			if err := k.api.create(t.Context(), podsPath, pod, nil); err != nil {
				t.Fatal(err)
			}
			stays[name] = want
		}
	}
	taints := []corev1.Taint{{Key: "level", Value: "5", Effect: corev1.TaintEffectNoExecute}}
	if err := k.api.merge(t.Context(), "/api/v1/nodes/node-1", map[string]any{"spec": map[string]any{"taints": taints}}); err != nil {
		t.Fatal(err)
	}
	w.until(t, 10*time.Second, "pods that do not tolerate the number go", func() string {
		for name, want := range stays {
			if !want && w.evicted(name).IsZero() {
				return name + " stays"
			}
		}
		return ""
	})
	w.stays(t, time.Second, "the others", func() string {
		for name, want := range stays {
			if want && !w.evicted(name).IsZero() {
				return name + " was evicted"
			}
		}
		return ""
	})
}

func toleration(key string, seconds *int64) corev1.Toleration {
	return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}
}

// tolerations creates a pod and returns those it came to have.
func (k *kubeCluster) tolerations(t *testing.T, name string, given []corev1.Toleration) []corev1.Toleration {
	t.Helper()
	pod := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: given, Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
	pod.APIVersion, pod.Kind, pod.Name = "v1", "Pod", name
	if err := k.api.create(t.Context(), podsPath, pod, pod); err != nil {
		t.Fatalf("create pod %s: %v", name, err)
	}
	return pod.Spec.Tolerations
}

// touch updates a pod's labels and returns its tolerations.
func (k *kubeCluster) touch(t *testing.T, name string) []corev1.Toleration {
	t.Helper()
	if err := k.api.merge(t.Context(), podsPath+"/"+name, map[string]any{"metadata": map[string]any{"labels": map[string]string{"touched": "yes"}}}); err != nil {
		t.Fatalf("update pod %s: %v", name, err)
	}
	var pod corev1.Pod
	if err := k.api.get(t.Context(), podsPath+"/"+name, &pod); err != nil {
		t.Fatal(err)
	}
	return pod.Spec.Tolerations
}

// serverCertificate makes files with a certificate for 127.0.0.1 that signs itself, and returns it
// as PEM too.
func serverCertificate(t *testing.T) (cert, key string, authority []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for path, text := range map[string][]byte{cert: authority, key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, authority
}
