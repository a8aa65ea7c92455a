package console_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/explain"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	"github.com/deltaplane/deltaplane/services/console"
	"github.com/deltaplane/deltaplane/services/console/session"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// Alice may look at queues, and only the operator may administer them.
const policy = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: look}
rules: [{verbs: [get, list], apiGroups: [deltaplane.io], resources: [queues]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: look}
roleRef: {kind: ClusterRole, name: look}
subjects: [{kind: User, name: alice}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: operate}
rules: [{verbs: ["*"], apiGroups: [deltaplane.io], resources: [queues]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: operate}
roleRef: {kind: ClusterRole, name: operate}
subjects: [{kind: User, name: operator}, {kind: User, name: console}]
`

const (
	alice    = "alice-0123456789abcdef"
	operator = "operator-0123456789abcdef"
)

func pause(r *rig, queue string) error {
	_, err := call[consolev1.ActOnQueueRequest, consolev1.ActOnQueueResponse](r, consolev1.ConsoleService_ActOnQueue_FullMethodName,
		&consolev1.ActOnQueueRequest{Queue: queue, Action: consolev1.QueueAction_QUEUE_ACTION_PAUSE})
	return err
}

// write writes a file of the test.
func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// secured is a queue service with TLS that takes client certificates, and a connection to it with
// the certificate of the console, who may do everything.
func secured(t *testing.T, auth rpc.AuthConfig, access string) explain.Part {
	t.Helper()
	now := time.Now()
	ca, pair, err := certs.NewAuthority("test", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string) (cert, key string) {
		p, err := ca.Issue(certs.Subject{User: name, Hosts: []string{"127.0.0.1"}}, now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return write(t, name+".crt", string(p.Cert)), write(t, name+".key", string(p.Key))
	}
	authority := write(t, "ca.crt", string(pair.Cert))
	server := rpc.ServerConfig{Auth: auth}
	server.TLS.CAFile = authority
	server.TLS.CertFile, server.TLS.KeyFile = issue("queue")
	cfg := queue.Config{RPC: server, Admin: telemetry.AdminConfig{Listen: "off"}, Queues: []queue.QueueConfig{{Name: "dev/job"}}}
	cfg.Access.AuditFile = filepath.Join(t.TempDir(), "audit")
	if access != "" {
		cfg.Access.PolicyFile = write(t, "policy", access)
	}
	at := queuetest.Address(t, cfg, "error")
	dial := rpc.DialConfig{TLS: rpc.TLSConfig{CAFile: authority}}
	dial.TLS.CertFile, dial.TLS.KeyFile = issue("console")
	conn, err := rpc.Dial(at, dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return explain.Part{Address: at, Conn: conn}
}

func TestACallerDoesWhatItsOwnTokenPermitsAndNotWhatTheConsolesCertificateDoes(t *testing.T) {
	t.Parallel()
	tokens := write(t, "tokens", alice+" alice\n"+operator+" operator\n")
	part := secured(t, rpc.AuthConfig{Mode: rpc.AuthIdentities, TokenFile: tokens}, policy)
	r := bare(t, func(c *console.Config, d *console.Deps) { c.OwnRights, d.Queue = true, part })
	for _, c := range []struct {
		token string
		want  connect.Code
	}{{"", connect.CodeUnauthenticated}, {"unknown-0123456789abcdef", connect.CodeUnauthenticated}, {alice, connect.CodePermissionDenied}, {operator, 0}} {
		r.token = c.token
		err := pause(r, "dev/job")
		if err == nil && c.want != 0 || err != nil && connect.CodeOf(err) != c.want {
			t.Errorf("the bearer of %q: %v, want %v", c.token, err, c.want)
		}
	}
	r.token = alice
	p := r.open()
	p.subscribe(1, queuesView())
	p.until("the queues", func(m *consolev1.OpenResponse) bool {
		q := m.GetQueues().GetQueues()
		return len(q) == 1 && q[0].GetPaused()
	})
	r.token = ""
	if err := r.refused(); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a page without a token: %v", err)
	}
}

// The queue stands for the index too: a server of each says who its caller is.
func TestWhoHasNoValidTokenHoldsNoSession(t *testing.T) {
	t.Parallel()
	const again = "again-0123456789abcdef"
	tokens := write(t, "tokens", alice+" alice\n"+again+" alice\n"+operator+" operator\n")
	part := secured(t, rpc.AuthConfig{Mode: rpc.AuthIdentities, TokenFile: tokens}, policy)
	r := bare(t, func(c *console.Config, d *console.Deps) { c.OwnRights, d.Index, d.Queue = true, part, part })
	r.token = alice
	for range session.MaxOfCaller {
		if p := r.open(); p.opened.GetUser() != "alice" || !p.opened.GetLimited() {
			t.Fatalf("a session says %v", p.opened)
		}
	}
	r.token = again
	if err := r.refused(); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("another token of somebody who has all sessions: %v", err)
	}
	r.token = "unknown-0123456789abcdef"
	if err := r.refused(); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a token that nobody knows: %v", err)
	}
	_, err := call[consolev1.SearchRequest, consolev1.SearchResponse](r, consolev1.ConsoleService_Search_FullMethodName, &consolev1.SearchRequest{Text: "job"})
	if connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a search with it: %v", err)
	}
}

// A service that lets in who shows a certificate, and asks for no tokens, would do everything for
// everybody who reaches the console.
func TestAServiceThatGoesByTheConsolesCertificateIsNotCalledForOthers(t *testing.T) {
	t.Parallel()
	part := secured(t, rpc.AuthConfig{}, "")
	r := bare(t, func(c *console.Config, d *console.Deps) { c.OwnRights, d.Index, d.Queue = true, part, part })
	for _, token := range []string{"", alice} {
		r.token = token
		err := pause(r, "dev/job")
		if code := connect.CodeOf(err); err == nil || code != connect.CodeUnauthenticated && code != connect.CodePermissionDenied {
			t.Errorf("the bearer of %q paused a queue: %v", token, err)
		}
	}
	p := r.open()
	p.subscribe(1, collection(&consolev1.CollectionView{Collection: "dev/configmaps.v1", Limit: 1}))
	p.until("that nothing is watched for the bearer of a token", func(m *consolev1.OpenResponse) bool {
		return m.GetFailure().GetReason() == "TOKEN_NOT_ASKED_FOR"
	})
}

func TestTracesAreShownToNobodyWhereCallersAreAskedWhoTheyAre(t *testing.T) {
	t.Parallel()
	r := bare(t, func(c *console.Config, d *console.Deps) { c.OwnRights, d.Traces = true, fakeTraces{} })
	r.token = alice
	p := r.open()
	if p.opened.GetHasTraces() {
		t.Error("the session says that there is a store")
	}
	p.subscribe(1, &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Traces{Traces: &consolev1.TracesView{}}})
	p.subscribe(2, &consolev1.SubscribeRequest{View: &consolev1.SubscribeRequest_Trace{Trace: &consolev1.TraceView{Id: "aa"}}})
	for range 2 {
		m := p.until("traces", func(m *consolev1.OpenResponse) bool { return m.GetTraces() != nil || m.GetTrace() != nil })
		if m.GetTraces().GetStored() || m.GetTrace().GetStored() || len(m.GetTraces().GetTraces())+len(m.GetTrace().GetSpans()) > 0 {
			t.Errorf("a caller sees %v", m)
		}
	}
}

func TestWhatOthersCanReachNeedsTLSOrPermission(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg  console.Config
		want bool
	}{
		"loopback":                 {console.Config{}, true},
		"every address":            {console.Config{Listen: ":7450"}, false},
		"an address of a network":  {console.Config{Listen: "192.0.2.1:7450"}, false},
		"permitted":                {console.Config{Listen: ":7450", Insecure: true}, true},
		"with TLS":                 {console.Config{Listen: ":7450", TLS: certs.Config{CertFile: "c", KeyFile: "k"}}, true},
		"with half of TLS":         {console.Config{TLS: certs.Config{CertFile: "c"}}, false},
		"with client certificates": {console.Config{TLS: certs.Config{CertFile: "c", KeyFile: "k", CAFile: "a"}}, false},
		"a name with a port":       {console.Config{Hosts: []string{"console.example.com:443"}}, false},
		"every name":               {console.Config{Hosts: []string{"*"}}, false},
	} {
		if err := c.cfg.Validate(); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
