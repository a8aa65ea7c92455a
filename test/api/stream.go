package api

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"
)

// event is one line of a watch.
type event struct {
	Type   string `json:"type"`
	Object object `json:"object"`
}

// stream is an open watch. A reader goroutine feeds events, which is closed at the
// end of the watch.
type stream struct {
	events chan event
	code   int
	folds  bool // the next event may be folded with the creation of its object
}

// watch opens a watch that ends with the test.
func (g Target) watch(t *testing.T, path string, header ...string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	resp := g.request(ctx, t, http.MethodGet, path, nil, "", header...)
	s := &stream{events: make(chan event, 1000), code: resp.StatusCode, folds: g.FoldsEvents}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.events)
		in := bufio.NewReader(resp.Body)
		for {
			line, err := in.ReadBytes('\n')
			if err != nil {
				_, _ = io.Copy(io.Discard, in)
				return
			}
			var e event
			if json.Unmarshal(line, &e) == nil {
				s.events <- e
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		resp.Body.Close()
		<-done
	})
	return s
}

// next returns the next event that is no bookmark.
func (s *stream) next(t *testing.T) event {
	t.Helper()
	for {
		e, ok := s.any(t)
		if !ok {
			t.Fatal("the watch ended, want an event")
		}
		if e.Type != "BOOKMARK" {
			return e
		}
	}
}

// any returns the next event, or false at the end of the watch.
func (s *stream) any(t *testing.T) (event, bool) {
	t.Helper()
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case e, ok := <-s.events:
		return e, ok
	case <-late.C:
		t.Fatal("no event in time")
		return event{}, false
	}
}

// want checks the type and the name of the next event.
func (s *stream) want(t *testing.T, kind, name string) object {
	t.Helper()
	e := s.next(t)
	folded := s.folds && kind == "MODIFIED" && e.Type == "ADDED"
	s.folds = false
	if e.Type != kind && !folded || e.Object.text("metadata.name") != name {
		t.Fatalf("event = %s %s, want %s %s: %v", e.Type, e.Object.text("metadata.name"), kind, name, e.Object)
	}
	return e.Object
}

// quiet checks that nothing but bookmarks comes for a while.
func (s *stream) quiet(t *testing.T) {
	t.Helper()
	end := time.NewTimer(silence)
	defer end.Stop()
	for {
		select {
		case e, ok := <-s.events:
			if !ok {
				t.Fatal("the watch ended, want silence")
			}
			if e.Type != "BOOKMARK" {
				t.Fatalf("event = %s %s, want none", e.Type, e.Object.text("metadata.name"))
			}
		case <-end.C:
			return
		}
	}
}

// drain returns every event up to the end of the watch.
func (s *stream) drain(t *testing.T) []event {
	t.Helper()
	var all []event
	for {
		e, ok := s.any(t)
		if !ok {
			return all
		}
		all = append(all, e)
	}
}
