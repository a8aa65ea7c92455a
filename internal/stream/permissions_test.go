package stream_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// serviceUsers starts a server with a user for each service, whose name is its password too.
func serviceUsers(t *testing.T, all map[string]stream.Permissions) string {
	t.Helper()
	var users []*server.User
	for name, p := range all {
		users = append(users, &server.User{Username: name, Password: name, Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: p.Publish}, Subscribe: &server.SubjectPermission{Allow: p.Subscribe},
		}})
	}
	return userServer(t, "127.0.0.1", server.RANDOM_PORT, users...).Addr().String()
}

// userServer starts a server that knows users.
func userServer(t *testing.T, host string, port int, users ...*server.User) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: host, Port: port, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true, MaxPayload: 8 << 20, Users: users,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s
}

func TestServicesWorkWithTheirPermissionsAndDoNothingElse(t *testing.T) {
	t.Parallel()
	addr := serviceUsers(t, map[string]stream.Permissions{
		"reflector":   stream.WritePermissions("reflector", "reflections"),
		"indexer":     stream.ReadPermissions("indexer", "indexes"),
		"controllers": stream.ConsumePermissions("controllers", "triggers"),
	})
	as := func(name string) *stream.Conn {
		return connect(t, "nats://"+name+":"+name+"@"+addr, func(c *stream.Config) { c.Name = name })
	}
	reflector, indexer, controllers := as("reflector"), as("indexer"), as("controllers")

	// Two replicas of the reflector, so that a lease passes from one to the other.
	lease, err := reflector.Lease(t.Context(), stream.LeaseConfig{Name: pods.String(), Holder: "a"})
	if err != nil {
		t.Fatal(err)
	}
	w := write(t, reflector, stream.WriterConfig{Term: lease.Term, Holder: "a"})
	put(t, w, pod("p", 1), synced(1))
	next := make(chan error, 1)
	other := as("reflector")
	go func() {
		l, err := other.Lease(t.Context(), stream.LeaseConfig{Name: pods.String(), Holder: "b"})
		if err == nil {
			err = l.Release(t.Context())
		}
		next <- err
	}()
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-next; err != nil {
		t.Error(err)
	}
	m := follow(t, indexer, stream.ReadConfig{})
	m.until(t, "the log as the indexer reads it", func() bool { return len(m.live()) == 1 })
	if all, err := indexer.Collections(t.Context()); err != nil || !slices.Equal(all, []delta.Collection{pods}) {
		t.Errorf("the indexer lists %v, %v", all, err)
	}
	for bucket, c := range map[string]*stream.Conn{"reflections": reflector, "indexes": indexer, "triggers": controllers} {
		b, err := c.Bucket(t.Context(), bucket, 0)
		if err == nil {
			_, err = b.Put(t.Context(), "key", []byte("value"))
		}
		if err == nil {
			_, err = b.Get(t.Context(), "key")
		}
		if err != nil {
			t.Errorf("bucket %s: %v", bucket, err)
		}
	}
	d := &desk{keys: map[delta.Key]int{}}
	stop := consume(t, controllers, d)
	eventually(t, "the key that the controllers are given", func() bool { return d.count() == 1 })
	stop()

	for _, name := range []string{"indexer", "controllers"} {
		refusals := make(chan string, 100)
		nc, err := nats.Connect("nats://"+name+":"+name+"@"+addr, nats.CustomInboxPrefix("_INBOX."+name),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refusals <- err.Error() }))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		for _, subject := range []string{
			pods.Subject(delta.NewKey("default", "p")), pods.ControlSubject(delta.KindTerm), "$JS.API.STREAM.DELETE." + pods.StreamName(), "$JS.API.STREAM.PURGE." + pods.StreamName(),
			"$JS.API.STREAM.UPDATE." + pods.StreamName(), "$KV.deltaplane-leases.x", "$KV.reflections.key", "deltaplane.lease.x", "_INBOX.reflector.x",
		} {
			if err := nc.Publish(subject, []byte("forged")); err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			if got := <-refusals; !strings.Contains(strings.ToLower(got), "permissions violation") || !strings.Contains(got, subject) {
				t.Errorf("%s publishes on %s: %s", name, subject, got)
			}
		}
		for _, subject := range []string{"_INBOX.>", "_INBOX.reflector.>", "d.>", ">"} {
			if _, err := nc.SubscribeSync(subject); err != nil {
				t.Fatal(err)
			}
			if got := <-refusals; !strings.Contains(strings.ToLower(got), "permissions violation") {
				t.Errorf("%s subscribes to %s: %s", name, subject, got)
			}
		}
	}
	nc, err := nats.Connect("nats://reflector:reflector@"+addr, nats.CustomInboxPrefix("_INBOX.reflector"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := js.Stream(t.Context(), pods.StreamName()); err != nil {
		t.Error(err)
	} else if got, err := s.GetLastMsgForSubject(t.Context(), pods.Subject(delta.NewKey("default", "p"))); err != nil || string(got.Data) == "forged" {
		t.Errorf("the log holds %+v, %v", got, err)
	}
}
