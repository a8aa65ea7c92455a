package rpc

import (
	"context"
	"testing"
	"time"
)

func TestAStreamIsAskedToMoveBetweenGoodbyeAndCut(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg   ServerConfig
		since time.Duration // of the connection
		first time.Duration
	}{
		"new":        {ServerConfig{MaxConnectionAge: time.Hour, MaxConnectionGrace: 3 * time.Minute, StreamWorkers: -1}, 0, 53 * time.Minute},
		"old":        {ServerConfig{MaxConnectionAge: time.Hour, MaxConnectionGrace: 3 * time.Minute, StreamWorkers: -1}, 58 * time.Minute, time.Minute},
		"by default": {ServerConfig{StreamWorkers: -1}, 0, 27*time.Minute - 20*time.Second},
	} {
		s, err := NewServer(tc.cfg, Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.WithValue(t.Context(), connectionKey{}, &connection{born: time.Now().Add(-tc.since)})
		first, every := s.Aging(ctx)
		if d := first - tc.first; d > time.Second || d < -time.Second {
			t.Errorf("%s: first in %v, want %v", name, first, tc.first)
		}
		// The goodbye comes a tenth early or late, the cut so much later.
		if every <= 0 || every > s.cfg.MaxConnectionGrace/2 {
			t.Errorf("%s: every %v of a grace of %v", name, every, s.cfg.MaxConnectionGrace)
		}
	}
	s, err := NewServer(ServerConfig{MaxConnectionAge: -1, StreamWorkers: -1}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, every := s.Aging(s.gate.TagConn(t.Context(), nil)); every != 0 {
		t.Errorf("of a server whose connections do not age: every %v", every)
	}
	if s, err = NewServer(ServerConfig{StreamWorkers: -1}, Options{}); err != nil {
		t.Fatal(err)
	}
	if _, every := s.Aging(t.Context()); every != 0 {
		t.Errorf("outside a call: every %v", every)
	}
}
