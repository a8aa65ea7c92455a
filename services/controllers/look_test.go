package controllers

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/controllers/nodelifecycle"
	"github.com/deltaplane/deltaplane/services/reflector"
)

func TestAnIndexThatIsAwayIsToldOnceAndCostsNoKeyARetry(t *testing.T) {
	t.Parallel()
	f := &flow{t: t}
	conn := f.dial("127.0.0.1:1") // nobody listens there
	var log bytes.Buffer
	s := &Service{index: client.NewIndex(conn), log: slog.New(slog.NewTextHandler(&log, nil))}
	r := newReads(s, "nodelifecycle")
	a := &nodeAdapter{reads: r, nodes: "dev/nodes.v1", leases: "dev/leases.v1.coordination.k8s.io", pods: "dev/pods.v1"}
	var keys sync.WaitGroup
	for i := range 20 {
		keys.Go(func() {
			l := &nodeLook{look: r.look(client.Item{Key: fmt.Sprint("node-", i)}), of: a}
			for what, read := range map[string]func() error{
				"Fresh":  func() error { _, err := l.Fresh(t.Context()); return err },
				"Node":   func() error { _, err := l.Node(t.Context(), l.item.Key); return err },
				"PodsOn": func() error { _, err := l.PodsOn(t.Context(), l.item.Key); return err },
			} {
				res, err := settled(client.Result{}, read(), nodelifecycle.ErrStale)
				if err != nil || res.Outcome != client.OutcomeRelease || res.After != awayRetry {
					t.Errorf("%s: %+v, %v; want the key given back uncounted", what, res, err)
				}
			}
		})
	}
	keys.Wait()
	lines := func() []string { return strings.Split(strings.TrimSpace(log.String()), "\n") }
	if got := lines(); len(got) != 1 || !strings.Contains(got[0], "level=WARN msg=\"index cannot be read\"") {
		t.Fatalf("logged %q", got)
	}
	if err := r.heard(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if got := lines(); len(got) != 2 || !strings.Contains(got[1], "can be read again") {
		t.Errorf("logged %q", got)
	}
	other := errors.New("of this key")
	if err := r.heard(t.Context(), other); !errors.Is(err, other) || errors.Is(err, errAway) {
		t.Errorf("heard = %v, want what it was given", err)
	}
}

func TestReadinessNamesTheCollectionThatIsNotMirrored(t *testing.T) {
	t.Parallel()
	for resource, collection := range map[string]string{
		"leases.v1.coordination.k8s.io": "dev/leases.v1.coordination.k8s.io", "nodes.v1": "dev/nodes.v1",
	} {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			f := &flow{t: t, kube: cluster(t)}
			f.resources = slices.DeleteFunc(reflector.DefaultResources(), func(r reflector.Resource) bool { return r.Name == resource })
			f.start()
			s, _ := f.controllers("a", lifecycle)
			f.eventually("the others are served", func() string {
				for _, c := range s.Ready(t.Context()).Checks {
					if c.Name != "index" && c.Name != "nodelifecycle/collections" {
						continue
					}
					want := "collection " + collection + " is not mirrored"
					if c.OK || !strings.Contains(c.Error, want) || strings.Count(c.Error, "collection ") > 1 {
						return fmt.Sprintf("%+v, want %q alone", c, want)
					}
				}
				return ""
			})
		})
	}
	t.Run("none is missing", func(t *testing.T) {
		t.Parallel()
		f := newNodeFlow(t, 1)
		s, _ := f.controllers("a", lifecycle)
		var r telemetry.Readiness
		f.eventually("ready", func() string {
			if r = s.Ready(t.Context()); !r.Ready {
				return fmt.Sprint(r.Checks)
			}
			return ""
		})
	})
}
