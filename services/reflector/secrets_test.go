package reflector_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/seal"
	"github.com/deltaplane/deltaplane/internal/seal/sealtest"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

var secrets = delta.Collection{Cluster: "dev", Version: "v1", Resource: "secrets"}

// sealing starts a reflector that mirrors secrets and encrypts them, or what else is named.
func sealing(t *testing.T, f *fleet, nats, keyFile string, resources ...string) (stop func()) {
	t.Helper()
	keys, err := seal.Open(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	cfg := quick()
	cfg.MirrorSecrets, cfg.Resources = true, []reflector.Resource{{Name: "secrets"}, {Name: "configmaps"}}
	_, _, stop = startWith(t, cfg, clientOf(t, f.URL), stream.Config{URL: nats, Encryption: seal.Policy{Keys: keys, Resources: resources}}, logs(t))
	return stop
}

// sealedBy waits until the only object of a collection is encrypted with a key in the log.
func sealedBy(t *testing.T, nats string, col delta.Collection, key string) {
	t.Helper()
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found := false
	err = conn.Read(ctx, col, stream.ReadConfig{HeadersOnly: true}, func(_ context.Context, b delta.Batch) error {
		for i := range b.Records {
			if r := &b.Records[i]; r.Kind == delta.KindDelta && r.Sealed == key {
				found = true
				cancel()
			}
		}
		return nil
	})
	if err != nil || !found {
		t.Fatalf("%v: nothing in %s is encrypted with %q", err, col, key)
	}
}

func keyID(t *testing.T, line string) string {
	t.Helper()
	keys, _ := sealtest.Open(t, line)
	return keys.IDs()[0]
}

func TestSecretsAreNotMirroredUnlessAFlagSaysSo(t *testing.T) {
	t.Parallel()
	f, nats := newFleet(t), embeddedtest.NATS(t).URL()
	f.put("secrets", "default", "s", "", `"data":{"a":"aHVzaA=="}`)
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "secrets.v1"}}
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), `resource "dev/secrets.v1"`) || !strings.Contains(err.Error(), "--mirror-secrets") {
		t.Errorf("a configuration with secrets is %v", err)
	}
	svc, _ := start(t, quick(), f.URL, nats)
	c := dial(t, svc)
	for _, name := range []string{"secrets", "secrets.v1"} {
		_, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: name, MetadataOnly: true}})
		if rpc.Code(err) != codes.FailedPrecondition || rpc.Reason(err) != "SECRETS_NOT_MIRRORED" {
			t.Errorf("adding %s is %v", name, err)
		}
	}
	if n := f.count("/api/v1/secrets"); n != 0 {
		t.Errorf("%d lists of secrets", n)
	}
}

func TestSecretsAreNotMirroredIntoALogThatDoesNotEncryptThem(t *testing.T) {
	t.Parallel()
	conn, err := stream.Connect(t.Context(), stream.Config{URL: embeddedtest.NATS(t).URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "reflector", LogOutput: logs(t)})
	if err != nil {
		t.Fatal(err)
	}
	cfg := quick()
	cfg.MirrorSecrets = true
	if _, err := reflector.New(cfg, conn, clientOf(t, newFleet(t).URL), tel); err == nil || !strings.Contains(err.Error(), "encrypts") {
		t.Errorf("New() = %v", err)
	}
}

func TestANewKeyEncryptsWhatIsInTheLogAlreadyWithoutARestart(t *testing.T) {
	t.Parallel()
	f, nats := newFleet(t), embeddedtest.NATS(t).URL()
	f.put("secrets", "default", "s", "", `"data":{"a":"aHVzaA=="}`)
	old, next := sealtest.Line(), sealtest.Line()
	_, file := sealtest.Open(t, old)
	sealing(t, f, nats, file)
	sealedBy(t, nats, secrets, keyID(t, old))
	sealtest.Write(t, file, next, old)
	sealedBy(t, nats, secrets, keyID(t, next))
}

func TestALogThatIsNotEncryptedAsItMustBeIsWrittenAgainByTheNextLeader(t *testing.T) {
	t.Parallel()
	f, nats := newFleet(t), embeddedtest.NATS(t).URL()
	f.put("configmaps", "default", "a", "", `"data":{"a":"b"}`)
	configMaps := delta.Collection{Cluster: "dev", Version: "v1", Resource: "configmaps"}
	first, second := sealtest.Line(), sealtest.Line()
	_, file := sealtest.Open(t, first)
	stop := sealing(t, f, nats, file)
	sealedBy(t, nats, configMaps, "")
	stop()
	stop = sealing(t, f, nats, file, "secrets", "configmaps")
	sealedBy(t, nats, configMaps, keyID(t, first))
	stop()
	sealtest.Write(t, file, second)
	stop = sealing(t, f, nats, file, "secrets", "configmaps")
	sealedBy(t, nats, configMaps, keyID(t, second))
	stop()
	sealing(t, f, nats, file)
	sealedBy(t, nats, configMaps, "")
}
