package nodeagent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/podworker"
	"github.com/deltaplane/deltaplane/services/nodeagent/volume"
)

// A machine that was restarted runs nothing, and an index that was may be behind: neither
// makes a pod's files rubbish.
func TestVolumesAreRemovedOnlyWhenTheAPIServerHasNoSuchPod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, root := newFeed(t), t.TempDir()
		log := slog.New(slog.DiscardHandler)
		pool, err := podworker.New(podworker.Config{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		volumes, err := volume.New(volume.Config{Root: root}, nil, log)
		if err != nil {
			t.Fatal(err)
		}
		m, err := newMetrics(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		a := &Agent{log: log, metrics: m, pool: pool, source: f.src, volumes: volumes, pods: map[types.UID]*corev1.Pod{}, synced: true}
		for _, uid := range []string{"lives", "gone"} {
			if err := os.MkdirAll(filepath.Join(root, uid, "volumes", "empty-dir", "data"), 0o750); err != nil {
				t.Fatal(err)
			}
		}
		has := func(want ...types.UID) {
			t.Helper()
			got, err := volumes.Pods()
			if err != nil || len(got) != len(want) || len(got) > 0 && got[len(got)-1] != want[len(want)-1] {
				t.Errorf("volumes of %v, %v; want %v", got, err, want)
			}
		}
		f.api.set(errors.New("away"))
		a.clearVolumes(t.Context(), nil)
		has("gone", "lives")
		f.api.set(nil, pod("a", "lives", "5"))
		a.clearVolumes(t.Context(), nil)
		has("lives")
	})
}
