package trust

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// rights are what each service may publish to, by the subject; the others are refused. Streams and
// consumers of the API are ones that nobody has, so what is permitted does nothing.
var rights = map[string]string{
	"d.dev.pods.x": "reflector", "c.dev.pods.term": "reflector",
	"$KV.deltaplane-reflections.x": "reflector", "$KV.deltaplane-leases.x": "reflector",
	"$KV.deltaplane-indexes.x":  "indexer",
	"$KV.deltaplane-triggers.x": "controllers", "$KV.deltaplane-consumers.x": "controllers",
	"$KV.another.x": "", "another": "",
	"deltaplane.alive.x": "reflector", "deltaplane.lease.x": "reflector", "deltaplane.another.x": "",
	"_INBOX.deltaplane-reflector-leases.x": "reflector", "_INBOX.deltaplane-reflector.x": "", "_INBOX.deltaplane-indexer.x": "", "_INBOX.deltaplane-controllers.x": "", "_INBOX.x": "",
	"$JS.ACK.S.C.1.1.1.1.0": "controllers", "$JS.FC.S.C.x": "reflector indexer controllers",
	"$SYS.REQ.SERVER.PING": "", "$JS.EVENT.ADVISORY.x": "",

	"$JS.API.INFO": "reflector indexer controllers", "$JS.API.STREAM.LIST": "reflector indexer controllers", "$JS.API.STREAM.NAMES": "",
	"$JS.API.STREAM.INFO.S": "reflector indexer controllers", "$JS.API.STREAM.MSG.GET.S": "reflector indexer controllers",
	"$JS.API.DIRECT.GET.S": "reflector indexer controllers", "$JS.API.DIRECT.GET.S.x": "reflector indexer controllers",
	"$JS.API.STREAM.CREATE.S": "reflector", "$JS.API.STREAM.UPDATE.S": "reflector", "$JS.API.STREAM.PURGE.S": "reflector", "$JS.API.STREAM.DELETE.S": "reflector",
	"$JS.API.STREAM.CREATE.KV_deltaplane-reflections": "reflector", "$JS.API.STREAM.CREATE.KV_deltaplane-leases": "reflector",
	"$JS.API.STREAM.CREATE.KV_deltaplane-indexes": "reflector indexer", "$JS.API.STREAM.DELETE.KV_deltaplane-indexes": "reflector",
	"$JS.API.STREAM.CREATE.KV_deltaplane-triggers": "reflector controllers", "$JS.API.STREAM.CREATE.KV_deltaplane-consumers": "reflector controllers",
	"$JS.API.STREAM.SNAPSHOT.S": "", "$JS.API.STREAM.RESTORE.S": "", "$JS.API.STREAM.MSG.DELETE.S": "", "$JS.API.STREAM.LEADER.STEPDOWN.S": "", "$JS.API.STREAM.PEER.REMOVE.S": "",
	"$JS.API.CONSUMER.CREATE.S": "reflector indexer controllers", "$JS.API.CONSUMER.CREATE.S.C.x": "reflector indexer controllers",
	"$JS.API.CONSUMER.INFO.S.C": "reflector indexer controllers", "$JS.API.CONSUMER.DELETE.S.C": "reflector indexer controllers",
	"$JS.API.CONSUMER.MSG.NEXT.S.C": "reflector indexer controllers", "$JS.API.CONSUMER.DURABLE.CREATE.S.C": "", "$JS.API.CONSUMER.LIST.S": "", "$JS.API.CONSUMER.NAMES.S": "",
	"$JS.API.CONSUMER.PAUSE.S.C": "", "$JS.API.CONSUMER.LEADER.STEPDOWN.S.C": "", "$JS.API.CONSUMER.UNPIN.S.C": "",
	"$JS.API.ACCOUNT.PURGE.A": "", "$JS.API.META.LEADER.STEPDOWN": "", "$JS.API.SERVER.REMOVE": "",
}

// heard is what each service may subscribe to.
var heard = map[string]string{
	"_INBOX.deltaplane-reflector.>": "reflector", "_INBOX.deltaplane-reflector-leases.>": "reflector", "deltaplane.alive.>": "reflector", "deltaplane.lease.>": "reflector",
	"_INBOX.deltaplane-indexer.>": "indexer", "_INBOX.deltaplane-controllers.>": "controllers",
	"_INBOX.>": "", ">": "", "d.>": "", "c.>": "", "$KV.>": "", "$JS.API.>": "", "$JS.ACK.>": "", "$SYS.>": "",
}

func TestTheNATSUsersMayDoWhatTheirServicesNeedAndNothingElse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	newMaker(dir, time.Now()).states(t)
	opts, err := server.ProcessConfigFile(filepath.Join(dir, "nats/users.conf"))
	if err != nil {
		t.Fatal(err)
	}
	opts.Host, opts.Port, opts.JetStream, opts.StoreDir, opts.NoSigs, opts.NoLog = "127.0.0.1", server.RANDOM_PORT, true, t.TempDir(), true, true
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server does not start")
	}
	if _, err := nats.Connect(s.ClientURL()); err == nil {
		t.Error("a stranger gets in")
	}
	services := 0
	for _, p := range parts() {
		if p.log == nil {
			continue
		}
		services++
		seed, err := nats.NkeyOptionFromSeed(filepath.Join(dir, p.name, "nats.nk"))
		if err != nil {
			t.Fatal(err)
		}
		nc, err := nats.Connect(s.ClientURL(), seed, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		// A refusal comes before the answer to what follows.
		refused := func(what, subject string) bool {
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			err := nc.LastError()
			return err != nil && strings.Contains(err.Error(), fmt.Sprintf("%s to %q", what, subject))
		}
		for subject, who := range rights {
			if err := nc.Publish(subject, nil); err != nil {
				t.Fatal(err)
			}
			if may := slices.Contains(strings.Fields(who), p.name); refused("Publish", subject) == may {
				t.Errorf("%s publishes to %s: want that it may: %v", p.name, subject, may)
			}
		}
		for subject, who := range heard {
			if _, err := nc.SubscribeSync(subject); err != nil {
				t.Fatal(err)
			}
			if may := slices.Contains(strings.Fields(who), p.name); refused("Subscription", subject) == may {
				t.Errorf("%s subscribes to %s: want that it may: %v", p.name, subject, may)
			}
		}
		for _, pattern := range p.log.Publish {
			if !coveredBy(pattern, rights) {
				t.Errorf("%s may publish to %s, of which this test knows nothing", p.name, pattern)
			}
		}
		for _, pattern := range p.log.Subscribe {
			if _, known := heard[pattern]; !known {
				t.Errorf("%s may subscribe to %s, of which this test knows nothing", p.name, pattern)
			}
		}
	}
	if services != 3 {
		t.Errorf("%d services have users, want 3", services)
	}
}

// coveredBy reports whether some subject is one of a pattern's.
func coveredBy(pattern string, subjects map[string]string) bool {
	for subject := range subjects {
		if server.SubjectsCollide(subject, pattern) {
			return true
		}
	}
	return false
}
