package kubeletapi

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/logs"
)

// logs answers with the log of a container.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	o, previous, err := options(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	path, running, err := s.sources.Log(r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container"), previous)
	switch {
	case errors.Is(err, ErrNotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case errors.Is(err, ErrRuntime):
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o.Running = running
	log, err := logs.Open(path, o)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer func() { _ = log.Close() }()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := &flushing{ResponseWriter: w, control: http.NewResponseController(w), stall: s.cfg.Stall, each: o.Follow}
	if o.Follow {
		out.flush() // who follows a silent container learns at once from where on
	}
	err = log.Copy(r.Context(), out)
	out.hurry() // what is left is sent after this
	if err == nil || r.Context().Err() != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	if !out.wrote {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.log.Warn("a log could not be sent to its end", telemetry.Err(err))
}

// flushing sends what is written at once, when each write is to be. A write that takes longer than
// stall fails.
type flushing struct {
	http.ResponseWriter
	control     *http.ResponseController
	stall       time.Duration
	each, wrote bool
}

func (f *flushing) Write(b []byte) (int, error) {
	f.wrote = true
	f.hurry()
	n, err := f.ResponseWriter.Write(b)
	if err == nil && f.each {
		err = f.control.Flush()
	}
	// A deadline that passes between two writes would end the stream of HTTP/2.
	_ = f.control.SetWriteDeadline(time.Time{})
	return n, err
}

func (f *flushing) flush() {
	f.wrote = true
	_ = f.control.Flush()
}

// hurry bounds the next write.
func (f *flushing) hurry() { _ = f.control.SetWriteDeadline(time.Now().Add(f.stall)) }

// options reads a query, in the words of PodLogOptions; an error names what is wrong in it.
func options(q url.Values, now time.Time) (o logs.Options, previous bool, err error) {
	var faults []error
	fault := func(key, want string) { faults = append(faults, fmt.Errorf("%s=%q: want %s", key, q.Get(key), want)) }
	number := func(key string, least int64) *int64 {
		text := q.Get(key)
		if text == "" {
			return nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < least {
			fault(key, fmt.Sprintf("a number of at least %d", least))
			return nil
		}
		return &n
	}
	yes := func(key string) bool {
		text := q.Get(key)
		if text == "" {
			return false
		}
		b, err := strconv.ParseBool(text)
		if err != nil {
			fault(key, "true or false")
		}
		return b
	}
	o.Tail = number("tailLines", 0)
	o.Follow, o.Timestamps, previous = yes("follow"), yes("timestamps"), yes("previous")
	if n := number("limitBytes", 1); n != nil {
		o.Limit = *n
	}
	if n := number("sinceSeconds", 1); n != nil {
		o.Since = now.Add(-time.Duration(min(*n, maxSince)) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		if o.Since, err = time.Parse(time.RFC3339, text); err != nil {
			fault("sinceTime", "a time such as 2026-11-28T10:00:00Z")
		}
		if q.Get("sinceSeconds") != "" {
			fault("sinceTime", "it without sinceSeconds")
		}
	}
	switch stream := q.Get("stream"); stream {
	case "", "All":
	case "Stdout":
		o.Stream = "stdout"
	case "Stderr":
		o.Stream = "stderr"
	default:
		fault("stream", "All, Stdout or Stderr")
	}
	return o, previous, errors.Join(faults...)
}

// maxSince is a century in seconds: no log is older, and durations overflow later.
const maxSince = 100 * 365 * 24 * 3600
