package system

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

const configMapsPath = "/api/v1/namespaces/default/configmaps"

// A reflection that was added through one of two reflectors is served by the index, goes on when
// that one is killed, is there after both were started again, and ends when it is removed.
func TestAReflectionAddedAtRunTimeOutlivesTheReflectorThatTookIt(t *testing.T) {
	t.Parallel()
	u := newUp(t, "")
	u.apart = "reflector"
	u.start(t, "up", u.upArgs()...)
	u.start(t, "reflector", u.serveArgs("reflector")...)
	u.awaitStart(t, "reflector")
	second := embeddedtest.Ports(t, 1)[0]
	secondArgs := []string{
		"serve", "reflector", "--admin-listen", "off", "--listen", second, "--nats-url", "nats://" + u.ports["nats"],
		"--api-url", "http://" + u.ports["api"],
	}
	u.start(t, "reflector-2", secondArgs...)
	x := u.target()
	y := u.target()
	y.Reflector = second

	makeMap(t, x, "one")
	eventually(t, time.Minute, "the reflection is added", func(ctx context.Context) error {
		_, err := x.reflector(t).AddReflection(ctx, &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: "configmaps", DropFields: []string{"data"}}})
		return err
	})
	awaitMap(t, x, "one")

	u.stop(t, "reflector", syscall.SIGKILL)
	makeMap(t, x, "two")
	awaitMap(t, x, "two")

	u.stop(t, "reflector-2", syscall.SIGKILL)
	u.start(t, "reflector-2", secondArgs...)
	makeMap(t, x, "three")
	awaitMap(t, x, "three")
	if _, err := y.reflector(t).RemoveReflection(t.Context(), &reflectorv1.RemoveReflectionRequest{Resource: "configmaps", DeleteLog: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "nobody vouches for the collection", func(ctx context.Context) error {
		all, err := y.reflector(t).ListReflections(ctx, &reflectorv1.ListReflectionsRequest{})
		if err != nil {
			return err
		}
		for _, r := range all.GetReflections() {
			if r.GetCollection() == "dev/configmaps.v1" {
				return fmt.Errorf("it is listed: %v", r)
			}
		}
		served, err := x.index(t).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
		if err != nil {
			return err
		}
		for _, c := range served.GetCollections() { // what it still holds, it says is old
			if c.GetResource() == "configmaps" && c.GetSynced() && !c.GetStale() {
				return fmt.Errorf("the index vouches for %v", c)
			}
		}
		return nil
	})
}

func makeMap(t *testing.T, x *Target, name string) {
	t.Helper()
	object := &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": "v"},
	}
	if err := x.API.create(t.Context(), configMapsPath, object, &corev1.ConfigMap{}); err != nil {
		t.Fatal(err)
	}
}

func getMap(name string) *indexv1.GetRequest {
	return &indexv1.GetRequest{Collection: "dev/configmaps.v1", Key: "default/" + name}
}

func awaitMap(t *testing.T, x *Target, name string) {
	t.Helper()
	eventually(t, time.Minute, "the index has "+name, func(ctx context.Context) error {
		_, err := x.index(t).Get(ctx, getMap(name))
		return err
	})
}
