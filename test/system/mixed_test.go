package system

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// mixed is a deployment of different builds: what is not named runs the build as it is.
type mixed struct {
	*upTarget
	additions, version string // later builds, which differ in what they write
}

// reflect starts a reflector of a build.
func (m *mixed) reflect(t *testing.T, binary, name string) *Target {
	t.Helper()
	listen := embeddedtest.Ports(t, 1)[0]
	// Changes elsewhere move only the watermark, so that there are progress records.
	m.startBuild(t, binary, name, "serve", "reflector", "--admin-listen", "off", "--listen", listen, "--nats-url", "nats://"+m.ports["nats"],
		"--api-url", "http://"+m.ports["api"], "--resources", "{resource: configmaps, namespaces: [default, other]}")
	return &Target{Reflector: listen}
}

// index starts an indexer of a build.
func (m *mixed) index(t *testing.T, binary, name string) *Target {
	t.Helper()
	listen := embeddedtest.Ports(t, 1)[0]
	m.startBuild(t, binary, name, "serve", "indexer", "--admin-listen", "off", "--listen", listen, "--nats-url", "nats://"+m.ports["nats"])
	return &Target{Index: listen}
}

// collection is what an indexer says of the mirrored collection.
func collection(ctx context.Context, t *testing.T, x *Target) (*indexv1.CollectionStatus, error) {
	t.Helper()
	all, err := x.index(t).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil {
		return nil, err
	}
	for _, c := range all.GetCollections() {
		if c.GetCollection() == "dev/configmaps.v1" {
			return c, nil
		}
	}
	return nil, errors.New("dev/configmaps.v1 is not known")
}

// awaitCollection waits until an indexer says of the collection what is wanted.
func awaitCollection(t *testing.T, x *Target, what string, cond func(*indexv1.CollectionStatus) bool) (c *indexv1.CollectionStatus) {
	t.Helper()
	eventually(t, time.Minute, what, func(ctx context.Context) (err error) {
		if c, err = collection(ctx, t, x); err == nil && !cond(c) {
			err = fmt.Errorf("it is %v", c)
		}
		return err
	})
	return c
}

// Indexers and reflectors of different builds share a log. What a later build adds, an older one
// reads as far as it knows it and names the rest. Before what a later build must read, an older
// indexer stands still with what it has, no key is quarantined, and an older reflector does not
// lead.
func TestMixedBuildsShareALog(t *testing.T) {
	t.Parallel()
	u := newUp(t, "")
	u.apart = "reflector,controllers,nodes,queue"
	u.start(t, "up", u.upArgs()...)
	form := func(name string) string {
		binary, err := goBuild(t.Context(), t.TempDir(), "-ldflags", "-s -w -X github.com/deltaplane/deltaplane/core/delta.nextForm="+name)
		if err != nil {
			t.Fatal(err)
		}
		return binary
	}
	m := &mixed{upTarget: u, additions: form("additions"), version: form("version")}
	old := u.target()
	u.awaitStart(t, "indexer")

	// A later reflector that adds, beside the older indexer.
	m.reflect(t, m.additions, "adding reflector")
	makeMap(t, old, "one")
	makeMap(t, old, "gone")
	awaitMap(t, old, "gone")
	if err := old.API.delete(t.Context(), configMapsPath+"/gone", "Background"); err != nil {
		t.Fatal(err)
	}
	elsewhere := 0
	awaitCollection(t, old, "the older indexer names what it passes over", func(c *indexv1.CollectionStatus) bool {
		elsewhere++ // until a watermark does not come with a liveness record
		object := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "x" + strconv.Itoa(elsewhere)}}
		if err := old.API.create(t.Context(), "/api/v1/namespaces/kube-system/configmaps", object, &corev1.ConfigMap{}); err != nil {
			t.Fatal(err)
		}
		return slices.Contains(c.GetUnknown(), `kind "advance"`) && slices.Contains(c.GetUnknown(), `reason "seen"`) && c.GetObjects() == 1 &&
			c.GetSynced() && !c.GetLagging() && c.GetLastError() == "" && c.GetQuarantined() == 0
	})

	// The reverse: an older reflector goes on with that log, and a later indexer reads both.
	u.stop(t, "adding reflector", syscall.SIGTERM)
	m.reflect(t, u.binary, "reflector")
	makeMap(t, old, "two")
	later := m.index(t, m.additions, "adding indexer")
	for _, x := range []*Target{old, later} {
		awaitMap(t, x, "two")
	}
	if c, err := collection(t.Context(), t, later); err != nil || len(c.GetUnknown()) > 0 || c.GetLastError() != "" || c.GetObjects() != 2 {
		t.Errorf("the later indexer says %v, %v; want two objects and nothing unknown", c, err)
	}
	u.stop(t, "adding indexer", syscall.SIGTERM)
	u.stop(t, "reflector", syscall.SIGTERM)

	// A reflector whose records older builds must not read.
	m.reflect(t, m.version, "newer reflector")
	newer := m.index(t, m.version, "newer indexer")
	makeMap(t, old, "three")
	awaitMap(t, newer, "three")
	still := awaitCollection(t, old, "the older indexer stands still and says why", func(c *indexv1.CollectionStatus) bool {
		return c.GetLagging() && strings.Contains(c.GetLastError(), "needs version 2, this build reads up to 1")
	})
	if !still.GetSynced() || still.GetObjects() != 2 || still.GetQuarantined() != 0 {
		t.Errorf("the older indexer says %v, want the two objects that it has", still)
	}
	awaitMap(t, old, "two")
	if _, err := old.index(t).Get(t.Context(), getMap("three")); status.Code(err) != codes.NotFound {
		t.Errorf("Get of what is written later: %v", err)
	}
	at, err := collection(t.Context(), t, newer)
	if err != nil {
		t.Fatal(err)
	}
	barrier := getMap("two")
	barrier.Consistency = &indexv1.Consistency{AtLeast: at.GetRevision()}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := old.index(t).Get(ctx, barrier); err == nil || !strings.Contains(err.Error(), "needs version 2") {
		t.Errorf("a read at a revision that the older indexer cannot reach: %v, want the reason", err)
	}
	shown, _ := exec.CommandContext(t.Context(), u.binary, "status", "--index-url", u.ports["index"], "--timeout", "3s").CombinedOutput()
	if !strings.Contains(string(shown), "LAGGING") || !strings.Contains(string(shown), "needs version 2") {
		t.Errorf("deltaplane status shows\n%s\nwant the collection lagging, and why", shown)
	}

	// An older reflector does not take the log over, though nobody leads.
	behind := m.reflect(t, u.binary, "older reflector")
	refused := func(what string) {
		t.Helper()
		eventually(t, time.Minute, what, func(ctx context.Context) error {
			all, err := behind.reflector(t).ListReflections(ctx, &reflectorv1.ListReflectionsRequest{Collection: "configmaps"})
			if err == nil && (len(all.GetReflections()) != 1 || all.GetReflections()[0].GetReason() != "NEWER_LOG") {
				err = fmt.Errorf("it says %v", all)
			}
			return err
		})
	}
	refused("the older reflector says that it cannot write this log")
	u.stop(t, "newer reflector", syscall.SIGTERM)
	makeMap(t, old, "four")
	refused("the older reflector still says so")
	m.reflect(t, m.version, "newer reflector")
	awaitMap(t, newer, "four")
	after, err := collection(t.Context(), t, newer)
	if err != nil || after.GetPosition().GetEpoch() != at.GetPosition().GetEpoch() || after.GetLastError() != "" || after.GetQuarantined() > 0 {
		t.Errorf("the newer indexer says %v, %v; want the epoch of before, %d", after, err, at.GetPosition().GetEpoch())
	}
}
