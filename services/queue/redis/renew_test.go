package redis_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// issued is an authority and a certificate of it for this host, in files.
func issued(t *testing.T, cert, key string) *x509.CertPool {
	t.Helper()
	now := time.Now()
	a, root, err := certs.NewAuthority("of Redis", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := a.Issue(certs.Subject{User: "redis", Hosts: []string{"127.0.0.1"}}, now, time.Hour)
	if err := errors.Join(err, os.WriteFile(cert, pair.Cert, 0o600), os.WriteFile(key, pair.Key, 0o600)); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(root.Cert)
	return pool
}

func TestAnotherAuthorityOfRedisCountsFromTheNextConnectionOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	var pool atomic.Pointer[x509.CertPool]
	pool.Store(issued(t, cert, key))
	addr := embeddedtest.Ports(t, 1)[0]
	_, port, _ := net.SplitHostPort(addr)
	srv := start(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")
	e := newEngine(t, redis.Config{URL: "rediss://" + addr, TLS: func() *tls.Config {
		return &tls.Config{RootCAs: pool.Load(), MinVersion: tls.VersionTLS12}
	}})
	q := configure(t, e, workqueue.Config{})
	apply(t, q, add("before"))

	next := issued(t, cert, key)
	admin := raw(t, srv)
	if err := admin.ConfigSet(t.Context(), "tls-cert-file", cert).Err(); err != nil {
		t.Fatal(err)
	}
	kill := func() {
		if err := admin.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
			t.Fatal(err)
		}
	}
	kill()
	refused(t, e, engine.ErrUnavailable, "certificate")
	pool.Store(next)
	apply(t, q, add("after"))
	kill()
	if got := apply(t, q, take(5)); len(got.Leases) != 2 {
		t.Errorf("%d leases, want both keys", len(got.Leases))
	}
}

// The sentinels' password changes while the queue is in use, and again while they refuse strangers.
func TestAnotherPasswordOfTheSentinelsCountsFromTheNextConnectionOn(t *testing.T) {
	t.Parallel()
	s := embeddedtest.Sentinel(t, 0)
	set := func(rules ...any) {
		for _, w := range s.Sentinels {
			w.Do(append([]any{"ACL", "SETUSER"}, rules...)...)
		}
	}
	set("engine", "reset", "on", ">one", "~*", "&*", "+@all")
	var password atomic.Value
	password.Store("one")
	e := newEngine(t, redis.Config{
		URL: s.URL(), SentinelUsername: "engine", SentinelPassword: func() (string, error) { return password.Load().(string), nil },
	})
	q := configure(t, e, workqueue.Config{})
	apply(t, q, add("one"))
	kill := func(addr, user, password string) {
		c := goredis.NewClient(&goredis.Options{Addr: addr, Username: user, Password: password})
		defer func() { _ = c.Close() }()
		if err := c.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, next := range []string{"two", "three"} {
		set("engine", "resetpass", ">"+next)
		if next == "three" {
			set("default", "off")
		}
		password.Store(next)
		for _, w := range s.Sentinels {
			kill(w.Addr(), "engine", next)
		}
		kill(s.Nodes[0].Addr(), "", "")
		apply(t, q, add(next))
	}
	if got := apply(t, q, take(5)); len(got.Leases) != 3 {
		t.Errorf("%d leases, want all keys", len(got.Leases))
	}
	stranger := newEngine(t, redis.Config{
		URL: s.URL(), SentinelUsername: "engine", SentinelPassword: func() (string, error) { return "wrong", nil },
	})
	refused(t, stranger, engine.ErrDenied, "for sentinels")
	fault := newEngine(t, redis.Config{URL: s.URL(), SentinelPassword: func() (string, error) { return "", errors.New("no file") }})
	refused(t, fault, engine.ErrUnavailable)
}

func TestTheMasterIsNeverSentTheSentinelsPassword(t *testing.T) {
	t.Parallel()
	s := embeddedtest.Sentinel(t, 0)
	for _, w := range s.Sentinels {
		w.Do("ACL", "SETUSER", "engine", "on", ">secret", "~*", "&*", "+@all")
	}
	master := s.Nodes[0]
	master.Do("ACL", "SETUSER", "admin", "on", ">admin", "+@all")
	master.Do("ACL", "SETUSER", "default", "off") // the sentinels' connections stay
	e := newEngine(t, redis.Config{
		URL: s.URL(), SentinelUsername: "engine", SentinelPassword: func() (string, error) { return "secret", nil },
	})
	refused(t, e, engine.ErrDenied, "redis asks for a password")
	admin := goredis.NewClient(&goredis.Options{Addr: master.Addr(), Username: "admin", Password: "admin"})
	defer func() { _ = admin.Close() }()
	denied, err := admin.ACLLog(t.Context(), 10).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range denied {
		if d.Username == "engine" {
			t.Errorf("the master received the user for sentinels: %s", d.Reason)
		}
	}
}
