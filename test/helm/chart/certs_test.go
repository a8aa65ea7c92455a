package chart

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
)

// certificate is the Secret of a certificate, or "".
func certificate(o object) string {
	if c, is := o.Object.(*certmanager.Certificate); is {
		return c.Spec.SecretName
	}
	return ""
}

// certificates are the files of NATS, made as docs/install.md says.
func certificates(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command(program(t), "certs", "init", dir, "--hosts", "*.deltaplane-nats").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(dir, "nats")
}

// TestCertificatesAreForTheNamesThatAreCalled compares the names in certificates with the addresses
// in flags.
func TestCertificatesAreForTheNamesThatAreCalled(t *testing.T) { //nolint:paralleltest // Helm keeps its settings in variables
	all := objects(t, cases["everything"])
	names := map[string]bool{}
	for _, o := range all {
		if c, is := o.Object.(*certmanager.Certificate); is {
			for _, n := range c.Spec.DNSNames {
				names[n] = true
			}
		}
	}
	called := 0
	for _, w := range workloads(all) {
		for _, c := range w.template.Spec.Containers {
			for _, arg := range c.Args {
				flag, value, _ := strings.Cut(arg, "=")
				if !strings.HasSuffix(flag, "-url") {
					continue
				}
				for one := range strings.SplitSeq(value, ",") {
					host := strings.Trim(one[strings.LastIndex(one, "//")+2:], "/")
					host, _, _ = strings.Cut(host, ":")
					_, parent, _ := strings.Cut(host, ".")
					called++
					if !names[host] && !names["*."+parent] {
						t.Errorf("%s calls %s, which no certificate is for", w.name, host)
					}
				}
			}
		}
	}
	if called < 8 {
		t.Errorf("%d addresses were found", called)
	}
}
