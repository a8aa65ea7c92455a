package gateway

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// monitor keeps the metrics of requests under the names that API servers give them.
type monitor struct {
	requests    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	sizes       *prometheus.HistogramVec
	longRunning *prometheus.GaugeVec
	inflight    *prometheus.GaugeVec
	events      *prometheus.CounterVec

	mu    sync.Mutex
	known map[request.Resource]struct{} // guarded by mu: those of which a request succeeded
}

// maxKnown bounds the resources that metrics name.
const maxKnown = 2048

func newMonitor(r prometheus.Registerer) (*monitor, error) {
	labels := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	m := &monitor{
		known: map[request.Resource]struct{}{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total", Help: "Requests by verb, resource, scope, component (gateway) and HTTP code.",
		}, append([]string{"code", "dry_run"}, labels...)),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_request_duration_seconds", Help: "How long requests took, watches among them, in seconds.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, append([]string{"dry_run"}, labels...)),
		sizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_response_sizes", Help: "Bytes of answers to GET and LIST, as they were sent.", Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
		}, labels),
		longRunning: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests", Help: "Watches and connections that last now.",
		}, labels),
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests", Help: "Requests that are answered now, without those that last, by readOnly and mutating.",
		}, []string{"request_kind"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_watch_events_total", Help: "Events that were sent to watches from the index.",
		}, []string{"group", "version", "resource"}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.sizes, m.longRunning, m.inflight, m.events} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// observed is a request as metrics tell of it.
type observed struct {
	resource                 request.Resource
	verb, subresource, scope string
	dryRun                   string
	lasts                    bool
}

// observe reads a request.
func observe(r *http.Request) (o observed) {
	q := r.URL.Query()
	if q.Has("dryRun") {
		o.dryRun = "All"
	}
	p, ok := request.ParsePath(r.URL)
	if !ok {
		o.verb = verbOf(r.Method)
		return o
	}
	o.resource, o.subresource = p.Resource, p.Subresource
	switch {
	case p.Name != "":
		o.scope = "resource"
	case p.Namespace != "":
		o.scope = "namespace"
	default:
		o.scope = "cluster"
	}
	switch {
	case r.Header.Get("Upgrade") != "", p.Subresource == "proxy":
		o.verb, o.lasts = "CONNECT", true
	case r.Method == http.MethodGet && (q.Get("watch") == "1" || q.Get("watch") == "true"):
		o.verb, o.lasts = "WATCH", true
	case r.Method == http.MethodGet && p.Name == "":
		o.verb = "LIST"
	case r.Method == http.MethodDelete && p.Name == "":
		o.verb = "DELETECOLLECTION"
	case r.Method == http.MethodPatch && strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch"):
		o.verb = "APPLY"
	default:
		o.verb = verbOf(r.Method)
		o.lasts = o.verb == "GET" && p.Subresource == "log" && q.Get("follow") == "true"
	}
	return o
}

// verbOf is a method, of which there are few.
func verbOf(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}

func (o *observed) mutates() bool {
	return o.verb != "GET" && o.verb != "LIST" && o.verb != "HEAD" && o.verb != "OPTIONS"
}

// labels name a resource only where there is one: anybody can ask for what there is not.
func (m *monitor) labels(o *observed, succeeded bool) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.known[o.resource]
	if !known && succeeded && o.resource.Name != "" && len(m.known) < maxKnown {
		m.known[o.resource] = struct{}{}
		known = true
	}
	if !known {
		return []string{o.verb, "", "", "", "", o.scope, component}
	}
	return []string{o.verb, o.resource.Group, o.resource.Version, o.resource.Name, o.sub(succeeded), o.scope, component}
}

// subresource is one that there is.
func (o *observed) sub(succeeded bool) string {
	if o.subresource == "" || succeeded || subresources[o.subresource] {
		return o.subresource
	}
	return "other"
}

// subresources are those that are named even where a request fails.
var subresources = map[string]bool{
	"status": true, "scale": true, "exec": true, "attach": true, "portforward": true, "log": true, "proxy": true, "binding": true, "eviction": true,
	"ephemeralcontainers": true, "resize": true, "token": true, "approval": true, "finalize": true,
}

const component = "gateway"

// serve counts a request that next answers.
func (m *monitor) serve(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
	o, begun := observe(r), time.Now()
	var now prometheus.Gauge
	switch {
	case o.lasts:
		now = m.longRunning.WithLabelValues(m.labels(&o, false)...)
	case o.mutates():
		now = m.inflight.WithLabelValues("mutating")
	default:
		now = m.inflight.WithLabelValues("readOnly")
	}
	now.Inc()
	sent := &counted{ResponseWriter: w}
	defer func() {
		now.Dec()
		code := sent.code
		if code == 0 {
			code = http.StatusOK
		}
		labels := m.labels(&o, code < http.StatusBadRequest)
		m.requests.WithLabelValues(append([]string{strconv.Itoa(code), o.dryRun}, labels...)...).Inc()
		m.duration.WithLabelValues(append([]string{o.dryRun}, labels...)...).Observe(time.Since(begun).Seconds())
		if o.verb == "GET" || o.verb == "LIST" {
			m.sizes.WithLabelValues(labels...).Observe(float64(sent.bytes))
		}
	}()
	next(sent, r)
}

// delivered counts events of watches.
func (m *monitor) delivered(r request.Resource) prometheus.Counter {
	return m.events.WithLabelValues(r.Group, r.Version, r.Name)
}

// counted is an answer of which the code and the length are known.
type counted struct {
	http.ResponseWriter
	code  int
	bytes int64
}

// Unwrap is for http.ResponseController.
func (c *counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (c *counted) WriteHeader(code int) {
	if c.code == 0 && (code >= http.StatusOK || code == http.StatusSwitchingProtocols) {
		c.code = code
	}
	c.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (c *counted) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.bytes += int64(n)
	return n, err
}
