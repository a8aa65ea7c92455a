package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// topology is how the masters of a Redis are found.
type topology string

const (
	standalone topology = "standalone"
	sentinel   topology = "sentinel"
	cluster    topology = "cluster"
)

// schemes of [Config.URL].
var schemes = map[string]struct {
	of  topology
	tls bool
}{
	"redis": {standalone, false}, "rediss": {standalone, true}, "unix": {standalone, false},
	"redis+sentinel": {sentinel, false}, "rediss+sentinel": {sentinel, true},
	"redis+cluster": {cluster, false}, "rediss+cluster": {cluster, true},
}

// target is a parsed URL.
type target struct {
	of     topology
	addrs  []string // of the Redis, its sentinels, or some of the cluster's nodes
	master string   // sentinel: the name of what they watch
	opt    redis.Options
	tls    func() *tls.Config // of the next connection; nil without TLS
}

// parse reads a URL. Its errors do not show the URL, which may hold a password.
func parse(cfg Config) (target, error) {
	scheme, rest, ok := strings.Cut(cfg.URL, "://")
	kind, known := schemes[scheme]
	if !ok || !known {
		return target{}, errors.New("redis URL: the scheme must be redis, rediss, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster or unix")
	}
	t := target{of: kind.of}
	plain := cfg.URL
	if t.of != standalone {
		// Several hosts are not what URLs have: they are read here, the rest as
		// one of a single host.
		end := len(rest)
		if i := strings.IndexAny(rest, "/?#"); i >= 0 {
			end = i
		}
		at := strings.LastIndexByte(rest[:end], '@') + 1
		port := map[topology]string{sentinel: "26379", cluster: "6379"}[t.of]
		for host := range strings.SplitSeq(rest[at:end], ",") {
			addr, err := hostPort(host, port)
			if err != nil {
				return target{}, err
			}
			t.addrs = append(t.addrs, addr)
		}
		tail := rest[end:]
		if t.of == sentinel {
			path, query, _ := strings.Cut(tail, "?")
			name, db, _ := strings.Cut(strings.Trim(path, "/"), "/")
			if t.master = name; t.master == "" {
				return target{}, errors.New("redis URL: redis+sentinel needs the name of the master as its path: redis+sentinel://host1,host2,host3/mymaster")
			}
			tail = "/" + db + "?" + query
		}
		plain = map[bool]string{false: "redis", true: "rediss"}[kind.tls] + "://" + rest[:at] + t.addrs[0] + tail
	}
	opt, err := redis.ParseURL(plain)
	if err != nil {
		if fault, ok := errors.AsType[*url.Error](err); ok {
			err = fault.Err
		}
		return target{}, fmt.Errorf("redis URL: %w", err)
	}
	t.opt = *opt
	if t.of == standalone {
		t.addrs = []string{opt.Addr}
	}
	if t.of == cluster && opt.DB != 0 {
		return target{}, errors.New("redis URL: a cluster has database 0 only")
	}
	if cfg.Username != "" {
		t.opt.Username = cfg.Username
	}
	if cfg.Password != "" {
		t.opt.Password = cfg.Password
	}
	if now := cfg.PasswordNow; now != nil {
		username := t.opt.Username
		t.opt.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := now()
			return username, password, err
		}
	}
	switch {
	case kind.tls:
		name := ""
		if t.of == standalone {
			name = opt.TLSConfig.ServerName
		}
		t.tls = secure(cfg.TLS, name)
	case cfg.TLS != nil:
		return target{}, errors.New("redis URL: TLS is set, but the scheme is not rediss, rediss+sentinel or rediss+cluster")
	}
	return t, nil
}

// secure is the TLS configuration for one host or, without a name, for all that are met.
func secure(base func() *tls.Config, name string) func() *tls.Config {
	return func() *tls.Config {
		c := &tls.Config{MinVersion: tls.VersionTLS12}
		if base != nil {
			c = base().Clone()
		}
		if c.ServerName == "" {
			c.ServerName = name
		}
		return c
	}
}

// dial makes a connection, with the certificates of the moment. The client library's own dialer
// keeps those of its start.
func (t target) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: t.tls()}).DialContext(ctx, network, addr)
}

func hostPort(s, port string) (string, error) {
	host := s
	if h, p, err := net.SplitHostPort(s); err == nil {
		host, port = h, p
	} else if strings.HasPrefix(s, "[") || strings.Count(s, ":") == 1 {
		return "", errors.New("redis URL: every host must be host, host:port or [address]:port, separated by commas")
	}
	if host == "" || port == "" || slices.Contains([]byte(host), ' ') {
		return "", errors.New("redis URL: a host is empty")
	}
	return net.JoinHostPort(host, port), nil
}
