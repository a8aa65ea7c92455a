package reflector_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// Readers of an empty collection, too, learn whether its keys have namespaces: with its synced
// record, and with every sign of life.
func TestTheLogSaysWhetherKeysHaveNamespaces(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "jobs.v1.batch"}, {Name: "nodes.v1"}}
	start(t, cfg, c.URL(), nats)
	for want, col := range map[delta.Scope]delta.Collection{
		delta.Namespaced:    {Cluster: "dev", Group: "batch", Version: "v1", Resource: "jobs"},
		delta.ClusterScoped: {Cluster: "dev", Version: "v1", Resource: "nodes"},
	} {
		m := follow(t, nats, col)
		m.until(t, "a liveness record", func() bool { return len(m.kinds(delta.KindLiveness)) > 0 })
		for _, kind := range []delta.Kind{delta.KindSynced, delta.KindLiveness} {
			records := m.kinds(kind)
			if len(records) == 0 {
				t.Errorf("%s: no record of kind %s", col, kind)
			}
			for _, r := range records {
				if r.Scope != want {
					t.Errorf("%s: a record of kind %s says the scope is %q, want %q", col, kind, r.Scope, want)
				}
			}
		}
	}
}

// So they learn what else the resource is called, also where only metadata are mirrored and the
// objects are of another kind.
func TestTheLogSaysWhatElseAResourceIsCalled(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.serve(&kind{group: "example.com", version: "v1", name: "mice", kind: "Mouse", singular: "rodent", shortNames: []string{"ms", "MX", "no name"}})
	f.serve(&kind{group: "example.com", version: "v1", name: "oxen", kind: "Ox", shortNames: []string{strings.Repeat("o", 64), "oxen"}})
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "mice.v1.example.com", MetadataOnly: true}, {Name: "oxen.v1.example.com"}}
	start(t, cfg, f.URL, nats)
	for resource, want := range map[string][]string{"mice": {"rodent", "mouse", "ms", "mx"}, "oxen": {"ox"}} {
		m := follow(t, nats, delta.Collection{Cluster: "dev", Group: "example.com", Version: "v1", Resource: resource})
		m.until(t, "a liveness record", func() bool { return len(m.kinds(delta.KindLiveness)) > 0 })
		for _, kind := range []delta.Kind{delta.KindSynced, delta.KindLiveness} {
			records := m.kinds(kind)
			if len(records) == 0 {
				t.Errorf("%s: no record of kind %s", resource, kind)
			}
			for _, r := range records {
				if !slices.Equal(r.Names, want) {
					t.Errorf("%s: a record of kind %s says the names are %q, want %q", resource, kind, r.Names, want)
				}
			}
		}
	}
}
