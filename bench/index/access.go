package index

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// accessPolicy lets the caller read pods everywhere.
const accessPolicy = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: read}
rules: [{verbs: [get, list, watch], apiGroups: [""], resources: [pods]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: read}
roleRef: {kind: ClusterRole, name: read}
subjects: [{kind: Group, name: readers}]
`

// writeAccess writes the files of a caller with a name, and of what it may do.
func writeAccess(b *harness.Bench) (system.ReplicaConfig, error) {
	c := system.ReplicaConfig{Tokens: b.PathIn("tokens"), Token: b.PathIn("token"), Policy: b.PathIn("policy.yaml")}
	for path, text := range map[string]string{
		c.Tokens: "bench-0123456789abcdef reader groups=readers\n", c.Token: "bench-0123456789abcdef", c.Policy: accessPolicy,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return c, err
		}
	}
	return c, nil
}

// indexAccess measures what names and rights cost a read whose decision is known: the server's CPU
// beside a server that lets everybody do everything. Run it with --tls.
func indexAccess(ctx context.Context, b *harness.Bench) (err error) {
	r, err := newReadRig(ctx, b, "access")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	limited, err := writeAccess(b)
	if err != nil {
		return err
	}
	named := limited
	named.Policy = ""
	all := named // callers present their tokens there too: what a client sends is the same
	all.Tokens = ""
	turn := func(name string, x *system.Replica, method string, requests []*load.Wire) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (got map[string]float64, err error) {
			err = b.Profiled(x.Child, "access-"+name, func() (err error) {
				got, err = load.CPUPerCall(ctx, x.Child, d, load.ReadsInFlight, load.Caller{Pool: x.Conns, Method: method, Requests: requests})
				return err
			})
			return perCore(got), err
		}}
	}
	var sides []harness.Side
	for _, server := range []struct {
		name string
		cfg  system.ReplicaConfig
	}{
		{"named", named},
		{"limited", limited},
		{"all", all},
	} {
		server.cfg.NATS, server.cfg.Collection, server.cfg.Tier = r.nats, r.name, indexer.TierRaw
		x, err := system.SpawnReplica(ctx, b, harness.Place{Pinned: true}, server.cfg)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, x.Close()) }()
		if err := x.Await(ctx, r.info.Objects); err != nil {
			return err
		}
		sides = append(sides,
			turn(server.name+"-get", x, indexv1.IndexService_Get_FullMethodName, r.questions.gets),
			turn(server.name+"-objects", x, indexv1.IndexService_ByIndex_FullMethodName, r.questions.objects))
	}
	p := b.Plan("access", 3, 45, 170*time.Millisecond, 170*time.Millisecond)
	p.Rotate = true
	t, err := harness.Interleave(ctx, b, p, sides...)
	if err != nil {
		return err
	}
	for _, row := range []struct{ name, call string }{{"Get, 5 KB", "get"}, {"ByIndex, 30 x 5 KB", "objects"}} {
		for _, server := range []struct {
			name, side string
			limit      *harness.Target
		}{{"a token that is known", "named", nil}, {"a decision that is known", "limited", harness.AtMost("ratio", 1.05)}} {
			b.Add(harness.Compare(row.name+", "+server.name, "us of server CPU", t.Of(server.side+"-"+row.call, "cpu"), "allow-all", t.Of("all-"+row.call, "cpu"), server.limit))
		}
	}
	return nil
}
