package kubeletapi_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/services/nodeagent/kubeletapi"
)

func TestFewCallersAreReviewedAtOnce(t *testing.T) {
	t.Parallel()
	const most = 16
	c := &cluster{held: make(chan struct{}), inside: make(chan struct{}, most)}
	url, _ := serve(t, c, "")
	web := client(t)
	done := make(chan int, most)
	for range most {
		go func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/healthz", nil)
			if err != nil {
				done <- 0
				return
			}
			r.Header.Set("Authorization", "Bearer slow")
			answer, err := web.Do(r)
			if err != nil {
				done <- 0
				return
			}
			_ = answer.Body.Close()
			done <- answer.StatusCode
		}()
	}
	for range most {
		<-c.inside
	}
	refused := get(t, web, url+"/healthz", "good")
	if refused.Header.Get("Retry-After") == "" {
		t.Error("who is one too many is not asked to come again")
	}
	expect(t, refused, http.StatusTooManyRequests, "too many callers")
	close(c.held)
	for range most {
		if code := <-done; code != http.StatusOK {
			t.Errorf("one of the first callers got %d", code)
		}
	}
	expect(t, get(t, web, url+"/healthz", "good"), http.StatusOK, "ok")
}

// heard sends on when something is logged.
type heard struct {
	slog.Handler
	messages chan string
}

func (h heard) Enabled(context.Context, slog.Level) bool { return true }

func (h heard) Handle(_ context.Context, r slog.Record) error {
	select {
	case h.messages <- r.Message:
	default:
	}
	return nil
}

func TestAReaderThatStopsReadingIsGivenUp(t *testing.T) {
	t.Parallel()
	c := &cluster{}
	messages := make(chan string, 100)
	url, _ := serveAs(t, c, kubeletapi.Config{Stall: 50 * time.Millisecond}, slog.New(heard{slog.DiscardHandler, messages}))
	line := at + "stdout F " + strings.Repeat("x", 64<<10) + "\n"
	if err := os.WriteFile(c.path, bytes.Repeat([]byte(line), 512), 0o600); err != nil { // more than sockets hold
		t.Fatal(err)
	}
	get(t, client(t), url+"/containerLogs/ns/p/c", "good")
	limit := time.After(time.Minute) // the end of a connection by TLS takes five seconds of it
	for {
		select {
		case m := <-messages:
			if strings.Contains(m, "could not be sent to its end") {
				return
			}
		case <-limit:
			t.Fatal("the log is still being sent to somebody who does not read")
		}
	}
}

func TestACertificateWithoutANameIsNobodys(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"admins"}}, NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	url, _ := serve(t, &cluster{}, ca)
	own := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	expect(t, get(t, client(t, own), url+"/healthz", ""), http.StatusUnauthorized, "Unauthorized")
}
