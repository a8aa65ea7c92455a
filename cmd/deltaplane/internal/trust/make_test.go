package trust

import (
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

func newMaker(dir string, now time.Time) *maker {
	return &maker{dir: dir, apiURL: "https://devcluster:7448", lifetime: 90 * 24 * time.Hour, now: now}
}

// states are those of files by their path below the folder.
func (m *maker) states(t *testing.T) map[string]string {
	t.Helper()
	if err := m.run(); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range m.all {
		rel, err := filepath.Rel(m.dir, f.Path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.ToSlash(rel)] = f.State
	}
	return out
}

func TestASecondRunKeepsWhatIsThereAndRenewsWhatEndsSoon(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	first := newMaker(dir, now).states(t)
	for path, state := range first {
		if state != stateMade {
			t.Errorf("%s is %s", path, state)
		}
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v: want that its owner alone reads it", path, info, err)
		}
	}
	for path, state := range newMaker(dir, now.Add(59*24*time.Hour)).states(t) {
		if state != stateKept {
			t.Errorf("after 59 of 90 days %s is %s", path, state)
		}
	}
	for path, state := range newMaker(dir, now.Add(61*24*time.Hour)).states(t) {
		if want := strings.HasSuffix(path, "tls.crt"); (state == stateRenewed) != want {
			t.Errorf("after 61 of 90 days %s is %s", path, state)
		}
	}
	m := newMaker(dir, now.Add(61*24*time.Hour))
	m.hosts = []string{"index.example.com"}
	for path, state := range m.states(t) {
		servers := strings.HasSuffix(path, "tls.crt") && !strings.HasPrefix(path, "admin")
		if (state == stateRenewed) != servers {
			t.Errorf("with another host %s is %s", path, state)
		}
	}
}

func TestAnAuthorityWithoutItsKeyIsNotReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	newMaker(dir, time.Now()).states(t)
	if err := os.Remove(filepath.Join(dir, "authority/ca.key")); err != nil {
		t.Fatal(err)
	}
	if err := newMaker(dir, time.Now()).run(); err == nil || !strings.Contains(err.Error(), "not whole") || !strings.Contains(err.Error(), "ca.key") {
		t.Errorf("without the key: %v", err)
	}
}

func TestWhatIsMadeIsTakenByThePartsItIsFor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	newMaker(dir, time.Now()).states(t)
	for _, p := range parts() {
		in := filepath.Join(dir, p.name)
		if _, err := certs.Open(certs.Config{CertFile: filepath.Join(in, "tls.crt"), KeyFile: filepath.Join(in, "tls.key"), CAFile: filepath.Join(in, "ca.crt")}); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
		pair, err := tls.LoadX509KeyPair(filepath.Join(in, "tls.crt"), filepath.Join(in, "tls.key"))
		if err != nil || pair.Leaf.Subject.CommonName != "deltaplane:"+p.name {
			t.Errorf("%s: %v, %v", p.name, pair.Leaf, err)
		}
		for _, host := range p.hosts {
			if err := pair.Leaf.VerifyHostname(host); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := authority.New(authority.Config{PolicyFile: filepath.Join(dir, "indexer/policy.yaml")}, rpc.AuthConfig{Mode: rpc.AuthIdentities}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err != nil {
		t.Errorf("the policy: %v", err)
	}
	token, err := os.ReadFile(filepath.Join(dir, "admin/token"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"reflector", "indexer", "queue"} {
		known, err := rpc.NewTokens(rpc.AuthConfig{Mode: rpc.AuthIdentities, TokenFile: filepath.Join(dir, part, "tokens")}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		who, err := known.Presented(strings.TrimSpace(string(token)), "/deltaplane.index.v1.IndexService/List")
		if err != nil || who.User != "deltaplane:admin" || !slices.Contains(who.Groups, operatorsGroup) {
			t.Errorf("%s takes the operator's token for %v, %v", part, who, err)
		}
	}
	opts, err := server.ProcessConfigFile(filepath.Join(dir, "nats/users.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if len(opts.Nkeys) != 3 {
		t.Errorf("nats-server knows %d users, want 3", len(opts.Nkeys))
	}
	for _, u := range opts.Nkeys {
		if u.Permissions == nil || len(u.Permissions.Publish.Allow) == 0 || len(u.Permissions.Subscribe.Allow) == 0 {
			t.Errorf("%s may do everything", u.Nkey)
		}
	}
}
