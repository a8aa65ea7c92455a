package kubeletapi_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/services/nodeagent/kubeletapi"
)

// cluster is an API server's reviews, and a node's one pod, of which the log is in a file.
type cluster struct {
	path    string
	running atomic.Bool
	away    atomic.Bool
	held    chan struct{}          // holds the reviews of the token "slow"; nil is none
	inside  chan struct{}          // gets one for each of these
	asked   atomic.Pointer[string] // the last review of access
}

func (c *cluster) ReviewToken(_ context.Context, token, audience string) (*access.Identity, string, error) {
	if token == "slow" {
		c.inside <- struct{}{}
		<-c.held
		token = "good"
	}
	switch {
	case c.away.Load():
		return nil, "", errors.New("the API server is away")
	case token == "good" || token == "poor":
		return &access.Identity{User: token, Groups: []string{"from" + audience}}, "", nil
	}
	return nil, "unknown", nil
}

func (c *cluster) ReviewAccess(_ context.Context, id *access.Identity, a access.Attributes) (bool, string, error) {
	c.asked.Store(new(fmt.Sprintf("%s %v %s %s/%s/%s", id.User, id.Groups, a.Verb, a.Resource, a.Subresource, a.Name)))
	return id.User != "poor", "RBAC", nil
}

func (c *cluster) Log(namespace, pod, container string, previous bool) (string, func() bool, error) {
	switch {
	case namespace != "ns" || pod != "p":
		return "", nil, fmt.Errorf("pod %q does not exist: %w", pod, kubeletapi.ErrNotFound)
	case previous || container != "c":
		return "", nil, fmt.Errorf("container %q in pod %q is waiting to start: ContainerCreating", container, pod)
	}
	return c.path, c.running.Load, nil
}

const at = "2020-11-28T10:00:00Z "

// serve serves the API, with a CA for client certificates if one is named, and returns where.
func serve(t *testing.T, c *cluster, ca string) (url string, stop func()) {
	t.Helper()
	return serveAs(t, c, kubeletapi.Config{ClientCA: ca}, slog.New(slog.DiscardHandler))
}

func serveAs(t *testing.T, c *cluster, cfg kubeletapi.Config, log *slog.Logger) (url string, stop func()) {
	t.Helper()
	cfg.Node, cfg.Listen, cfg.Hosts = "n", "127.0.0.1:0", []string{"127.0.0.1"}
	c.path = filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(c.path, []byte(at+"stdout F one\n"+at+"stderr F two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := kubeletapi.New(cfg, c, c, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	lis, err := s.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, lis) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	}
	t.Cleanup(stop)
	return "https://" + lis.Addr().String(), stop
}

// client trusts every server, as API servers do by default.
func client(t *testing.T, own ...tls.Certificate) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: own}} //nolint:gosec // a test's
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// get asks with a token, if there is one.
func get(t *testing.T, c *http.Client, url, token string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// expect reads an answer to its end.
func expect(t *testing.T, answer *http.Response, code int, text string) {
	t.Helper()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != code || !strings.Contains(string(body), text) || code == http.StatusOK && string(body) != text {
		t.Errorf("%s: %d, %v, %q: want %d and %q", answer.Request.URL, answer.StatusCode, err, body, code, text)
	}
}

func TestLogsAreServedToWhoMayGetTheNodesProxy(t *testing.T) {
	t.Parallel()
	c := &cluster{}
	url, _ := serve(t, c, "")
	log, web := url+"/containerLogs/ns/p/c", client(t)
	expect(t, get(t, web, log, ""), http.StatusUnauthorized, "Unauthorized")
	expect(t, get(t, web, log, "stolen"), http.StatusUnauthorized, "Unauthorized")
	expect(t, get(t, web, log, "poor"), http.StatusForbidden, "Forbidden (user=poor, verb=get, resource=nodes, subresource=proxy)")
	expect(t, get(t, web, log, "good"), http.StatusOK, "one\ntwo\n")
	if got := *c.asked.Load(); got != "good [from] get nodes/proxy/n" {
		t.Errorf("reviewed %q", got)
	}
	expect(t, get(t, web, url+"/healthz", "good"), http.StatusOK, "ok")
	expect(t, get(t, web, url+"/healthz", ""), http.StatusUnauthorized, "Unauthorized")
	expect(t, get(t, web, url+"/exec/ns/p/c", "good"), http.StatusNotFound, "not found")
	c.away.Store(true)
	expect(t, get(t, web, log, "good"), http.StatusInternalServerError, "the API server does not answer")
}

func TestAClientCertificateIsACaller(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pairs := map[string]tls.Certificate{}
	for _, name := range []string{"known", "stranger"} {
		ca, pem, err := certs.NewAuthority(name, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), pem.Cert, 0o600); err != nil {
			t.Fatal(err)
		}
		pair, err := ca.Issue(certs.Subject{User: "kube-apiserver", Groups: []string{"admins"}}, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if pairs[name], err = tls.X509KeyPair(pair.Cert, pair.Key); err != nil {
			t.Fatal(err)
		}
	}
	c := &cluster{}
	url, _ := serve(t, c, filepath.Join(dir, "known"))
	expect(t, get(t, client(t, pairs["known"]), url+"/containerLogs/ns/p/c", ""), http.StatusOK, "one\ntwo\n")
	if got := *c.asked.Load(); got != "kube-apiserver [admins system:authenticated] get nodes/proxy/n" {
		t.Errorf("reviewed %q", got)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/containerLogs/ns/p/c", nil)
	if err != nil {
		t.Fatal(err)
	}
	forced := client(t)
	forced.Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return new(pairs["stranger"]), nil // whatever authorities the server names
	}
	if answer, err := forced.Do(r); err == nil {
		_ = answer.Body.Close()
		t.Errorf("a certificate of another authority: %d", answer.StatusCode)
	}
	expect(t, get(t, client(t), url+"/containerLogs/ns/p/c", "good"), http.StatusOK, "one\ntwo\n")
}

func TestWhatIsAskedOfALogByItsQuery(t *testing.T) {
	t.Parallel()
	url, _ := serve(t, &cluster{}, "")
	for query, want := range map[string]string{
		"tailLines=1": "two\n", "timestamps=true&limitBytes=34": "2020-11-28T10:00:00.000000000Z one\n"[:34], "sinceTime=2020-11-28T11:00:00Z": "", "sinceTime=2020-11-28T09:00:00Z": "one\ntwo\n",
		"stream=Stderr": "two\n", "stream=Stdout": "one\n", "stream=All&follow=1": "one\ntwo\n", "sinceSeconds=99999999999999": "one\ntwo\n",
	} {
		expect(t, get(t, client(t), url+"/containerLogs/ns/p/c?"+query, "good"), http.StatusOK, want)
	}
	for query, want := range map[string]string{
		"tailLines=-1": `tailLines="-1": want a number of at least 0`, "limitBytes=0": "limitBytes", "sinceSeconds=x": "sinceSeconds", "sinceTime=now": "sinceTime",
		"sinceTime=2026-11-28T09:00:00Z&sinceSeconds=1": "without sinceSeconds", "follow=perhaps": "follow", "stream=both": "stream",
	} {
		expect(t, get(t, client(t), url+"/containerLogs/ns/p/c?"+query, "good"), http.StatusUnprocessableEntity, want)
	}
	expect(t, get(t, client(t), url+"/containerLogs/ns/other/c", "good"), http.StatusNotFound, `pod "other" does not exist`)
	expect(t, get(t, client(t), url+"/containerLogs/ns/p/c?previous=true", "good"), http.StatusBadRequest, "is waiting to start: ContainerCreating")
}

func TestALogIsReadSinceSomeSecondsAgo(t *testing.T) {
	t.Parallel()
	c := &cluster{}
	url, _ := serve(t, c, "")
	recent := time.Now().Format(time.RFC3339) + " stdout F recent\n"
	if err := os.WriteFile(c.path, []byte(at+"stdout F old\n"+recent), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, get(t, client(t), url+"/containerLogs/ns/p/c?sinceSeconds=3600", "good"), http.StatusOK, "recent\n")
}

func TestALogIsFollowedUntilItsContainerOrTheAgentEnds(t *testing.T) {
	t.Parallel()
	c := &cluster{}
	c.running.Store(true)
	url, stop := serve(t, c, "")
	followed := bufio.NewScanner(get(t, client(t), url+"/containerLogs/ns/p/c?follow=true&tailLines=0", "good").Body)
	f, err := os.OpenFile(c.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, text := range []string{"three", "four"} {
		if _, err := f.WriteString(at + "stdout F " + text + "\n"); err != nil {
			t.Fatal(err)
		}
		if !followed.Scan() || followed.Text() != text {
			t.Fatalf("%q, %v: want %q", followed.Text(), followed.Err(), text)
		}
	}
	c.running.Store(false)
	if followed.Scan() || followed.Err() != nil {
		t.Errorf("after the container's end: %q, %v", followed.Text(), followed.Err())
	}
	c.running.Store(true)
	followed = bufio.NewScanner(get(t, client(t), url+"/containerLogs/ns/p/c?follow=true", "good").Body)
	for _, text := range []string{"one", "two", "three", "four"} {
		if !followed.Scan() || followed.Text() != text {
			t.Fatalf("%q, %v: want %q", followed.Text(), followed.Err(), text)
		}
	}
	stop()
	if followed.Scan() || followed.Err() != nil {
		t.Errorf("after the agent's end: %q, %v", followed.Text(), followed.Err())
	}
}

func TestAFileOfAuthoritiesThatCannotBeReadIsNamed(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "ca.crt")
	if _, err := kubeletapi.New(kubeletapi.Config{Node: "n", ClientCA: missing}, &cluster{}, &cluster{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("New() = %v, want the file's name", err)
	}
}
