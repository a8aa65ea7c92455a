package redis

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestURLsOfEveryTopologyAreRead(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]target{
		"redis://h:7000/3":                    {of: standalone, addrs: []string{"h:7000"}},
		"rediss://u:p@h":                      {of: standalone, addrs: []string{"h:6379"}},
		"redis+sentinel://a,b:1,c/main":       {of: sentinel, addrs: []string{"a:26379", "b:1", "c:26379"}, master: "main"},
		"redis+sentinel://u:p@a/main/2":       {of: sentinel, addrs: []string{"a:26379"}, master: "main"},
		"rediss+sentinel://a/m?pool_size=3":   {of: sentinel, addrs: []string{"a:26379"}, master: "m"},
		"redis+cluster://a:1,b,[::1]:3":       {of: cluster, addrs: []string{"a:1", "b:6379", "[::1]:3"}},
		"rediss+cluster://u:p%40%2F@a:1,b:2/": {of: cluster, addrs: []string{"a:1", "b:2"}},
	} {
		got, err := parse(Config{URL: url})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got.of != want.of || got.master != want.master || !cmp.Equal(got.addrs, want.addrs) {
			t.Errorf("%s: %v %v %q", url, got.of, got.addrs, got.master)
		}
		if secure := got.tls != nil; secure != strings.HasPrefix(url, "rediss") {
			t.Errorf("%s: TLS %v", url, secure)
		}
	}
	got, err := parse(Config{URL: "redis+cluster://u:p%40%2F@a", Username: "other"})
	if err != nil || got.opt.Username != "other" || got.opt.Password != "p@/" {
		t.Errorf("credentials %q %q, %v", got.opt.Username, got.opt.Password, err)
	}
	if got, err = parse(Config{URL: "redis+sentinel://a/m/2"}); err != nil || got.opt.DB != 2 {
		t.Errorf("database %d, %v", got.opt.DB, err)
	}
}

func TestBadURLsAreRefusedWithoutShowingThePassword(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                                 "scheme",
		"http://u:secret@x":                "scheme",
		"redis+sentinel://u:secret@a,b":    "name of the master",
		"redis+cluster://u:secret@a,,b":    "empty",
		"redis+cluster://u:secret@a:b:c:1": "host",
		"redis+cluster://u:secret@a/4":     "database 0",
		"redis://u:secret@a:nope":          "port",
		"redis://u:secret@a/x":             "database",
		"redis://u:secret@a?foo=1":         "unexpected option",
		"redis://u:sec%zzret@a":            "escape",
	} {
		_, err := parse(Config{URL: url})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", url, err, want)
		} else if strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: the error shows the password: %v", url, err)
		}
	}
	if _, err := parse(Config{URL: "redis://a", TLS: func() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS13} }}); err == nil {
		t.Error("TLS settings with a scheme that has none were accepted")
	}
	for _, prefix := range []string{"a{b", "a b", "dp*"} {
		if _, err := New(Config{URL: "redis://a", Prefix: prefix}); err == nil {
			t.Errorf("prefix %q was accepted", prefix)
		}
	}
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"redis://h:1/2", "redis+sentinel://u:p@a,b:1/m/3?x=1", "rediss+cluster://[::1]:3,b", "redis+cluster://@,@/,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, url string) {
		got, err := parse(Config{URL: url})
		if err == nil && (len(got.addrs) == 0 || got.of == sentinel && got.master == "") {
			t.Errorf("%q became %v %q", url, got.addrs, got.master)
		}
	})
}
