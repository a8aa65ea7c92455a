package reflector_test

import (
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// Readers of an empty collection, too, learn whether its keys have namespaces: with its synced record, and with every sign of life.
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
