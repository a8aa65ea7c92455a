package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"
)

// EventResource is where Events are written.
var eventResource = Resource{Version: "v1", Name: "events", Kind: "Event", Namespaced: true}

// Involved names the object an Event is about.
type Involved struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	UID        string `json:"uid,omitempty"`
	RV         string `json:"resourceVersion,omitempty"`
}

// The Event types.
const (
	Normal  = "Normal"
	Warning = "Warning"
)

const (
	recorderQueue   = 1024
	recorderMemory  = 4096
	recorderRepeats = 10 * time.Minute
)

// Recorder writes Kubernetes Events without making its callers wait. A repeat of the same Event
// within ten minutes raises the count of the first one. Event is safe for concurrent use.
type Recorder struct {
	c         *Client
	component string
	host      string
	log       *slog.Logger
	queue     chan note
	dropped   atomic.Uint64
	known     map[noteKey]*written // belongs to Run
}

type noteKey struct {
	uid, kind, namespace, name string
	typ, reason, message       string
}

type note struct {
	about                Involved
	typ, reason, message string
	at                   time.Time
}

type written struct {
	namespace, name string
	count           int
	last            time.Time
}

// NewRecorder returns a recorder whose Events name component, on host, as their source. Run must
// run for anything to be written.
func NewRecorder(c *Client, component, host string, log *slog.Logger) *Recorder {
	return &Recorder{
		c: c, component: component, host: host, log: log,
		queue: make(chan note, recorderQueue), known: map[noteKey]*written{},
	}
}

// Event notes that something happened to an object. When a thousand notes wait already it is
// dropped and counted.
func (r *Recorder) Event(about Involved, typ, reason, message string) {
	select {
	case r.queue <- note{about: about, typ: typ, reason: reason, message: message, at: time.Now()}:
	default:
		r.dropped.Add(1)
	}
}

// Dropped is how many Events were not written, because too many waited or the server refused them.
func (r *Recorder) Dropped() uint64 { return r.dropped.Load() }

// Run writes Events until ctx ends; what waits then gets two more seconds.
func (r *Recorder) Run(ctx context.Context) error {
	writing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(2 * time.Second):
			cancel()
		case <-writing.Done():
		}
	})()
	for {
		select {
		case n := <-r.queue:
			r.write(writing, n)
			continue
		default:
		}
		select {
		case n := <-r.queue:
			r.write(writing, n)
		case <-ctx.Done():
			if len(r.queue) == 0 {
				return nil
			}
		}
	}
}

func (r *Recorder) write(ctx context.Context, n note) {
	key := noteKey{n.about.UID, n.about.Kind, n.about.Namespace, n.about.Name, n.typ, n.reason, n.message}
	if w := r.known[key]; w != nil && n.at.Sub(w.last) < recorderRepeats {
		patch := fmt.Sprintf(`{"count":%d,"lastTimestamp":%q}`, w.count+1, n.at.UTC().Format(time.RFC3339))
		_, err := r.c.Patch(ctx, Ref{Resource: eventResource, Namespace: w.namespace, Name: w.name}, MergePatch, []byte(patch), WriteOptions{})
		if err == nil {
			w.count, w.last = w.count+1, n.at
			return
		}
		if !IsNotFound(err) {
			r.fail(n, err)
			return
		}
		delete(r.known, key) // expired on the server: write it again
	}
	namespace := n.about.Namespace
	if namespace == "" {
		namespace = "default"
	}
	name := n.about.Name + "." + strconv.FormatInt(n.at.UnixNano(), 16)
	stamp := n.at.UTC().Format(time.RFC3339)
	body, err := json.Marshal(map[string]any{
		"kind": "Event", "apiVersion": "v1",
		"metadata":       map[string]string{"name": name, "namespace": namespace},
		"involvedObject": n.about,
		"reason":         n.reason, "message": n.message, "type": n.typ,
		"source":         map[string]string{"component": r.component, "host": r.host},
		"firstTimestamp": stamp, "lastTimestamp": stamp, "count": 1,
		"reportingComponent": r.component, "reportingInstance": r.host,
	})
	if err == nil {
		_, err = r.c.Create(ctx, Ref{Resource: eventResource, Namespace: namespace}, body, WriteOptions{})
	}
	if err != nil {
		r.fail(n, err)
		return
	}
	if len(r.known) >= recorderMemory {
		for k, w := range r.known {
			if n.at.Sub(w.last) >= recorderRepeats || len(r.known) >= recorderMemory {
				delete(r.known, k)
			}
		}
	}
	r.known[key] = &written{namespace: namespace, name: name, count: 1, last: n.at}
}

func (r *Recorder) fail(n note, err error) {
	r.dropped.Add(1)
	r.log.Warn("event was not written", slog.String("reason", n.reason), slog.String("error", err.Error()))
}
