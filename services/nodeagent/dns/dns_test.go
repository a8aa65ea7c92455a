package dns_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/dns"
)

func TestAResolvConfIsReadAsResolversReadIt(t *testing.T) {
	t.Parallel()
	got := dns.Parse("# a comment\n; another\nnameserver 10.0.0.1\nnameserver\t10.0.0.2 # first\nsearch old.example\ndomain x\nsearch a.example. b.example .\noptions ndots:2 rotate\noptions timeout:1 ndots:3\nnameserver\n\nsortlist 1")
	want := dns.Resolver{Servers: []string{"10.0.0.1", "10.0.0.2"}, Searches: []string{"a.example", "b.example"}, Options: []string{"ndots:3", "rotate", "timeout:1"}}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	if got := dns.Parse("search a.example\nsearch ."); len(got.Searches) > 0 {
		t.Errorf("the root domain is searched, or one of a line before: %q", got.Searches)
	}
	if diff := cmp.Diff(dns.Parse(""), dns.Resolver{}); diff != "" {
		t.Errorf("of nothing (-got +want):\n%s", diff)
	}
}

// words writes a resolver as servers | searches | options.
func words(r dns.Resolver) string {
	return strings.Join(r.Servers, " ") + " | " + strings.Join(r.Searches, " ") + " | " + strings.Join(r.Options, " ")
}

func TestTheResolverOfAPodFollowsItsPolicyAndConfig(t *testing.T) {
	t.Parallel()
	node := dns.Resolver{Servers: []string{"1.1.1.1"}, Searches: []string{"corp.example", "svc.cluster.local"}, Options: []string{"ndots:2", "rotate"}}
	cluster := dns.Cluster{Servers: []string{"10.96.0.10"}, Domain: "cluster.local"}
	const (
		ofNode    = "1.1.1.1 | corp.example svc.cluster.local | ndots:2 rotate"
		ofCluster = "10.96.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local corp.example | ndots:5"
	)
	own := &corev1.PodDNSConfig{
		Nameservers: []string{"9.9.9.9", "1.1.1.1"}, Searches: []string{"own.example", "corp.example"},
		Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("1")}, {Name: "rotate"}, {Name: "edns0"}},
	}
	for _, row := range []struct {
		policy  corev1.DNSPolicy
		host    bool // on the node's network
		without bool // the cluster has no DNS
		own     *corev1.PodDNSConfig
		want    string
	}{
		{policy: corev1.DNSClusterFirst, want: ofCluster},
		{policy: "", want: ofCluster},
		{policy: corev1.DNSClusterFirst, host: true, want: ofNode},
		{policy: corev1.DNSClusterFirst, without: true, want: ofNode},
		{policy: corev1.DNSClusterFirstWithHostNet, host: true, want: ofCluster},
		{policy: corev1.DNSClusterFirstWithHostNet, host: true, without: true, want: ofNode},
		{policy: corev1.DNSDefault, want: ofNode},
		{policy: corev1.DNSNone, want: " |  | "},
		{policy: corev1.DNSNone, own: own, want: "9.9.9.9 1.1.1.1 | own.example corp.example | ndots:1 rotate edns0"},
		{policy: corev1.DNSDefault, own: own, want: "1.1.1.1 9.9.9.9 | corp.example svc.cluster.local own.example | ndots:1 rotate edns0"},
		{
			policy: corev1.DNSClusterFirst, own: own,
			want: "10.96.0.10 9.9.9.9 1.1.1.1 | ns.svc.cluster.local svc.cluster.local cluster.local corp.example own.example | ndots:1 rotate edns0",
		},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: row.policy, HostNetwork: row.host, DNSConfig: row.own}}
		pod.Namespace = "ns"
		c := cluster
		if row.without {
			c.Servers = nil
		}
		if got, whole := c.Of(pod, node); words(got) != row.want || !whole {
			t.Errorf("%+v: %q, whole %v", row, words(got), whole)
		}
	}
	if got := words(node); got != ofNode {
		t.Errorf("the node's resolver was changed: %q", got)
	}
}

func TestWhatNoResolverTakesIsLeftOut(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("d%d.example", i))
	}
	long, half := strings.Repeat("a", 254), strings.Repeat("b", 200)
	for _, row := range []struct {
		servers, searches    []string
		wantServers, wantOut int
	}{
		{[]string{"1", "2", "3", "4"}, nil, 3, 0},
		{nil, many, 0, 32},
		{nil, []string{"x", long, "y"}, 0, 2},
		{nil, []string{half + "0", half + "1", half + "2", half + "3", half + "4", half + "5", half + "6", half + "7", half + "8", half + "9", half + "a"}, 0, 10},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{Nameservers: row.servers, Searches: row.searches}}}
		got, whole := dns.Cluster{}.Of(pod, dns.Resolver{})
		if len(got.Servers) != row.wantServers || len(got.Searches) != row.wantOut || whole {
			t.Errorf("%d servers and %d domains are left, whole %v: want %d and %d", len(got.Servers), len(got.Searches), whole, row.wantServers, row.wantOut)
		}
	}
}
