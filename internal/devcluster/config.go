package devcluster

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/certs"
)

// Config is the settings of a dev cluster. The zero value is a cluster on
// 127.0.0.1:7448 that keeps nothing on disk.
type Config struct {
	// Listen is the address of the API; "127.0.0.1:7448" when empty, port 0 for any.
	Listen string
	// TLS is used when its CertFile is set. With a CAFile only clients get in that show a
	// certificate which descends from it; each may then do everything.
	TLS certs.Config
	// Insecure allows an address that other machines can reach without that.
	Insecure bool
	// DataDir keeps the state in a write-ahead log in this directory, so that what was
	// acknowledged survives a kill and resource versions go on; empty keeps nothing.
	DataDir string
	// NoBinder leaves pods without a node.
	NoBinder bool
	// NoCollector switches off owner garbage collection and namespace deletion.
	NoCollector bool

	// HistoryEvents and HistoryAge bound the events kept per resource for watches and
	// page tokens: 20,000 and 10 min when zero. What is older answers 410 Expired.
	HistoryEvents int
	HistoryAge    time.Duration
	// BookmarkEvery is the jittered interval of watch bookmarks; 10 s when zero.
	BookmarkEvery time.Duration
	// WatchTimeout bounds watches without timeoutSeconds to 1-2 times itself; 30 min when zero.
	WatchTimeout time.Duration
	// FreshTimeout is how long a list waits for a version from the future; 3 s when zero.
	FreshTimeout time.Duration
	// EventTTL is how long Events are kept; 1 h when zero.
	EventTTL time.Duration

	// DefaultTolerations are the seconds of the tolerations that every pod is given at its
	// creation and update; nil is Kubernetes' 300 s each.
	DefaultTolerations *taint.Defaults

	// Forbidden names resources ("secrets", "jobs.batch") that answer 403 to everything.
	Forbidden []string
	// Fault, if set, is asked before every request; a status it returns is the answer.
	// It is called by many goroutines at once.
	Fault func(*http.Request) *metav1.Status
}

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:7448")
	c.HistoryEvents = cmp.Or(c.HistoryEvents, 20_000)
	c.HistoryAge = cmp.Or(c.HistoryAge, 10*time.Minute)
	c.BookmarkEvery = cmp.Or(c.BookmarkEvery, 10*time.Second)
	c.WatchTimeout = cmp.Or(c.WatchTimeout, 30*time.Minute)
	c.FreshTimeout = cmp.Or(c.FreshTimeout, 3*time.Second)
	c.EventTTL = cmp.Or(c.EventTTL, time.Hour)
	if c.DefaultTolerations == nil {
		c.DefaultTolerations = new(taint.StandardDefaults())
	}
	return c
}

// loopback reports whether only this machine can reach a host.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// validate reports every fault at once.
func (c Config) validate() error {
	var errs []error
	if host, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("listen: %w", err))
	} else if !c.Insecure && !loopback(host) && (c.TLS.CertFile == "" || c.TLS.CAFile == "") {
		errs = append(errs, fmt.Errorf("listen on %s: other machines can reach it and nobody is authenticated; give a certificate and the authority of client certificates, or allow it as insecure", c.Listen))
	}
	errs = append(errs, certs.Validate(c.TLS))
	if c.TLS.CAFile != "" && c.TLS.CertFile == "" {
		errs = append(errs, fmt.Errorf("the client CA %q is given without a certificate of our own", c.TLS.CAFile))
	}
	if c.HistoryEvents < 1 {
		errs = append(errs, fmt.Errorf("history events must be positive, not %d", c.HistoryEvents))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"history age", c.HistoryAge},
		{"bookmark interval", c.BookmarkEvery},
		{"watch timeout", c.WatchTimeout},
		{"fresh timeout", c.FreshTimeout},
		{"event ttl", c.EventTTL},
	} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s must be positive, not %s", d.name, d.value))
		}
	}
	return errors.Join(append(errs, c.DefaultTolerations.Validate())...)
}
