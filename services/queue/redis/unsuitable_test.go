package redis_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/enginetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// refused wants Check to end with an error that matches and says something.
func refused(t *testing.T, e *redis.Engine, want error, says ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := e.Check(ctx)
	if !errors.Is(err, want) {
		t.Errorf("Check = %v, want %v", err, want)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("Check = %v: it does not say %q", err, s)
		}
	}
}

func TestAnotherTopologyThanConfiguredIsNamed(t *testing.T) {
	t.Parallel()
	c, s, single := embeddedtest.Cluster(t, 3), embeddedtest.Sentinel(t, 1), start(t)
	node := c.Nodes[0].Addr()
	refused(t, newEngine(t, redis.Config{URL: "redis://" + node}), engine.ErrUnsuitable, "set redis+cluster://"+node)
	refused(t, newEngine(t, redis.Config{URL: "redis://" + s.Addrs()[0]}), engine.ErrUnsuitable, "set redis+sentinel://"+s.Addrs()[0])
	refused(t, newEngine(t, redis.Config{URL: "redis+cluster://" + single.Addr()}), engine.ErrUnsuitable, "set redis://")
	refused(t, newEngine(t, redis.Config{URL: "redis+sentinel://" + single.Addr() + "/main"}), engine.ErrUnsuitable, "set redis://")
	refused(t, newEngine(t, redis.Config{URL: "redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/nosuch"}), engine.ErrUnavailable, "know no master")
	refused(t, newEngine(t, redis.Config{URL: s.Nodes[1].URL()}), engine.ErrUnavailable, "read-only replica", "redis+sentinel://")
}

func TestARedisThatIsTooOldIsNamedWithItsVersion(t *testing.T) {
	t.Parallel()
	srv := start(t)
	p := newProxy(t, srv.Addr())
	p.rewrite.Store(new(func(b []byte) []byte { // a version of the same length
		return regexp.MustCompile(`(redis_version:)\d`).ReplaceAll(regexp.MustCompile(`valkey_version`).ReplaceAll(b, []byte("volkey_version")), []byte("${1}5"))
	}))
	refused(t, newEngine(t, redis.Config{URL: "redis://" + p.addr()}), engine.ErrUnsuitable, "Redis 5.", "too old", "6.2")
}

func TestARedisWithoutScriptsIsNamed(t *testing.T) {
	t.Parallel()
	srv := start(t, "--rename-command", "SCRIPT", "")
	refused(t, newEngine(t, redis.Config{URL: srv.URL()}), engine.ErrUnsuitable, "no Lua scripts")
}

func TestCredentialsThatAreWrongOrMissingAreNamed(t *testing.T) {
	t.Parallel()
	srv := start(t, "--requirepass", "right")
	refused(t, newEngine(t, redis.Config{URL: srv.URL()}), engine.ErrDenied, "none is set")
	refused(t, newEngine(t, redis.Config{URL: srv.URL(), Password: "wrong"}), engine.ErrDenied, "does not know this user")
	e := newEngine(t, redis.Config{URL: "redis://:wrong@" + srv.Addr(), Password: "right"})
	if err := e.Check(t.Context()); err != nil {
		t.Errorf("with the password of the field: %v", err)
	}
}

func TestANewPasswordIsUsedByTheNextConnection(t *testing.T) {
	t.Parallel()
	srv := start(t, "--requirepass", "old")
	var password atomic.Value
	password.Store("old")
	e := newEngine(t, redis.Config{URL: srv.URL(), PasswordNow: func() (string, error) { return password.Load().(string), nil }})
	if err := e.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin := goredis.NewClient(&goredis.Options{Addr: srv.Addr(), Password: "old"})
	defer admin.Close()
	if err := admin.ConfigSet(t.Context(), "requirepass", "new").Err(); err != nil {
		t.Fatal(err)
	}
	password.Store("new")
	if err := admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	if err := e.Check(t.Context()); err != nil {
		t.Errorf("after the connections were closed: %v", err)
	}
}

// user makes an ACL user and the URL by which it comes.
func user(t *testing.T, srv *embedded.Redis, rules ...string) string {
	t.Helper()
	args := []any{"ACL", "SETUSER", "deltaplane", "reset", "on", ">pw"}
	for _, r := range rules {
		args = append(args, r)
	}
	if err := raw(t, srv).Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	return "redis://deltaplane:pw@" + srv.Addr()
}

func TestTheEngineWorksUnderThePublishedACL(t *testing.T) {
	t.Parallel()
	srv := start(t)
	url := user(t, srv, redis.Rules("")...)
	enginetest.Run(t, func(t *testing.T) enginetest.Fixture {
		_, fx := open(t, url)
		return fx
	})
	e, fx := open(t, url)
	enginetest.Model(t, fx, uint64(time.Now().UnixNano()), 2000)
	q := configure(t, e, workqueue.Config{})
	woken := wakes(t, newEngine(t, redis.Config{URL: url}))
	apply(t, q, add("a"))
	select {
	case <-woken:
	case <-time.After(30 * time.Second):
		t.Error("not woken")
	}
	log, err := raw(t, srv).Do(t.Context(), "ACL", "LOG").Slice()
	if err != nil || len(log) != 0 {
		t.Errorf("redis denied %v, %v", log, err)
	}
}

func TestEveryRuleOfTheACLIsMissedByName(t *testing.T) {
	t.Parallel()
	srv := start(t)
	all := redis.Rules("")
	for _, without := range []string{"+evalsha", "+script|load", "+hset", "+zadd", "+publish", "+unlink", "+info", "~dp:*"} {
		url := user(t, srv, slices.DeleteFunc(slices.Clone(all), func(r string) bool { return r == without })...)
		t.Run(without, func(t *testing.T) { // one after another: they share a user
			refused(t, newEngine(t, redis.Config{URL: url, GiveUp: time.Second}), engine.ErrDenied)
		})
	}
	// Another prefix than the user's.
	url := user(t, srv, redis.Rules("other")...)
	refused(t, newEngine(t, redis.Config{URL: url}), engine.ErrDenied)
	e := newEngine(t, redis.Config{URL: url, Prefix: "other"})
	if err := e.Check(t.Context()); err != nil {
		t.Errorf("with the user's prefix: %v", err)
	}
	// Not a must: what only durability reads. The policy is known without it.
	url = user(t, srv, slices.DeleteFunc(slices.Clone(all), func(r string) bool { return r == "+config|get" })...)
	e = newEngine(t, redis.Config{URL: url})
	if err := e.Check(t.Context()); err != nil {
		t.Errorf("without CONFIG GET: %v", err)
	}
	if err := raw(t, srv).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	if err := e.Check(t.Context()); !errors.Is(err, engine.ErrEviction) {
		t.Errorf("without CONFIG GET, of a store that evicts keys: %v", err)
	}
}

func TestEveryCommandOfTheScriptsIsProbedAndInTheACL(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("lua/*.lua")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	probe, err := os.ReadFile("lua/probe.lua")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?:call|chunked)\('([A-Z]+)'`)
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range command.FindAllStringSubmatch(string(src), -1) {
			if !strings.Contains(string(probe), "call('"+m[1]+"'") {
				t.Errorf("%s calls %s, which probe.lua does not", f, m[1])
			}
			if !slices.Contains(redis.Rules(""), "+"+strings.ToLower(m[1])) {
				t.Errorf("%s calls %s, which the ACL does not allow", f, m[1])
			}
		}
	}
}

func TestTLSIsSpokenAndTheCertificateChecked(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := errors.Join(os.WriteFile(certFile, cert, 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600)); err != nil {
		t.Fatal(err)
	}
	addr := embeddedtest.Ports(t, 1)[0]
	_, port, _ := net.SplitHostPort(addr)
	start(t, "--tls-port", port, "--tls-cert-file", certFile, "--tls-key-file", keyFile, "--tls-auth-clients", "no")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	e := newEngine(t, redis.Config{URL: "rediss://" + addr, TLS: func() *tls.Config { return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12} }})
	if err := e.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply(t, configure(t, e, workqueue.Config{}), add("a"))
	refused(t, newEngine(t, redis.Config{URL: "rediss://" + addr}), engine.ErrUnavailable, "certificate")
	refused(t, newEngine(t, redis.Config{URL: "redis://" + addr, GiveUp: time.Second}), engine.ErrUnavailable)
}

func TestThePublishedACLIsEnoughForAClusterAndForEveryDurability(t *testing.T) {
	t.Parallel()
	c, s := embeddedtest.Cluster(t, 3), embeddedtest.Sentinel(t, 1)
	acl := []any{"ACL", "SETUSER", "deltaplane", "reset", "on", ">pw"}
	for _, r := range redis.Rules("") {
		acl = append(acl, r)
	}
	for _, n := range slices.Concat(c.Nodes, s.Nodes) {
		n.Do(acl...)
	}
	for _, url := range []string{c.URL(), s.URL()} {
		url = strings.Replace(url, "://", "://deltaplane:pw@", 1)
		e := newEngine(t, redis.Config{URL: url})
		if err := e.Check(t.Context()); err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		durabilities := []workqueue.Config{{Partitions: 4, Durability: workqueue.Fsync}, {Partitions: 4, Durability: workqueue.Replicated}}
		if strings.Contains(url, "cluster") {
			durabilities = durabilities[:1] // its masters have no replicas
		}
		for i, cfg := range durabilities {
			q, _, err := e.Configure(t.Context(), fmt.Sprintf("dev/q%d", i), cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range q.Partitions() {
				in := workqueue.Transaction{Ops: add("a", "b").Ops, Takes: take(1).Takes}
				if r, err := p.Apply(t.Context(), &in); err != nil || len(r.Leases) != 1 {
					t.Errorf("%s, durability %d: %v, %v", url, cfg.Durability, r, err)
				}
				if _, _, err := p.Items(t.Context(), workqueue.Idle, "", 10); err != nil {
					t.Error(err)
				}
			}
		}
	}
	s.Master().Do("ACL", "SETUSER", "deltaplane", "-wait")
	e := newEngine(t, redis.Config{URL: strings.Replace(s.URL(), "://", "://deltaplane:pw@", 1)})
	_, _, err := e.Configure(t.Context(), "dev/other", workqueue.Config{Durability: workqueue.Replicated})
	if !errors.Is(err, engine.ErrDurability) || !strings.Contains(err.Error(), "WAIT of") {
		t.Errorf("without WAIT: %v, want ErrDurability that names it", err)
	}
	s.Master().Do("ACL", "LOG", "RESET")
	for _, n := range slices.Concat(c.Nodes, s.Nodes) {
		if log, _ := n.Do("ACL", "LOG").([]any); len(log) > 0 {
			t.Errorf("%s denied %v", n.Addr(), log)
		}
	}
}
