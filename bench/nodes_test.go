package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestAWatcherKeepsTheFirstMomentOfATaintAndOfADeletion(t *testing.T) {
	t.Parallel()
	s := &sight{tainted: map[string]time.Time{}, gone: map[string]time.Time{}}
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	executing := []byte(`{"spec":{"taints":[{"key":"a","effect":"NoSchedule"},{"key":"b","effect":"NoExecute"}]}}`)
	harmless := []byte(`{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`)
	s.node("MODIFIED", "n", harmless, at(1))
	s.node("MODIFIED", "n", executing, at(2))
	s.node("MODIFIED", "n", executing, at(3))
	if got := s.tainted["n"]; !got.Equal(at(2)) {
		t.Errorf("tainted at %v, want the moment of its first NoExecute taint", got)
	}
	s.node("MODIFIED", "n", harmless, at(4))
	if len(s.tainted) != 0 {
		t.Errorf("still tainted: %v", s.tainted)
	}
	s.pod("MODIFIED", "p", []byte(`{"metadata":{}}`), at(1))
	s.pod("MODIFIED", "p", []byte(`{"metadata":{"deletionTimestamp":"x"}}`), at(2))
	s.pod("DELETED", "p", []byte(`{}`), at(3))
	s.pod("DELETED", "q", []byte(`{}`), at(4))
	if !s.gone["p"].Equal(at(2)) || !s.gone["q"].Equal(at(4)) {
		t.Errorf("gone %v, want p as its deletion began and q as it vanished", s.gone)
	}
}

func TestAPartOfAPlaneThatIsNoneSaysSo(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := serveChild(t.Context(), "plane", strings.NewReader(`{"part":"frob"}`), &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `unknown part \"frob\"`) {
		t.Errorf("answer = %s, want the unknown part", &out)
	}
}
