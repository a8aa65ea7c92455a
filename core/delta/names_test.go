package delta_test

import (
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
)

func TestResourceVersionsCompareAsDecimalsOfAnyLength(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "0", -1},
		{"0", "", 1},
		{"9", "10", -1},
		{"010", "9", 1},
		{"7", "007", 0},
		{"0", "000", 0},
		{"18446744073709551616", "18446744073709551615", 1},
		{strings.Repeat("9", 100), "1" + strings.Repeat("0", 100), -1},
	} {
		if got := delta.Compare(row.a, row.b); got != row.want {
			t.Errorf("Compare(%q, %q) = %d, want %d", row.a, row.b, got, row.want)
		}
	}
	for _, bad := range []string{"", "1a", "-1", "+1", " 1", "1.0", strings.Repeat("1", 129)} {
		if _, err := delta.ParseRV(bad); !errors.Is(err, delta.ErrRV) {
			t.Errorf("ParseRV(%.20q) = %v, want ErrRV", bad, err)
		}
	}
}

func FuzzRV(f *testing.F) {
	f.Add("1", "2")
	f.Add("000", "18446744073709551616")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, errA := delta.ParseRV(a)
		y, errB := delta.ParseRV(b)
		if errA != nil || errB != nil {
			return
		}
		bx, _ := new(big.Int).SetString(x, 10)
		by, _ := new(big.Int).SetString(y, 10)
		if got, want := delta.Compare(a, b), bx.Cmp(by); got != want || delta.Compare(x, y) != want || delta.Compare(b, a) != -want {
			t.Errorf("Compare(%q, %q) = %d, want %d", a, b, got, want)
		}
	})
}

func TestCollectionsHaveOneSpelling(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		want delta.Collection
	}{
		{"dev/pods.v1", delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}},
		{"dev/jobs.v1.batch", delta.Collection{Cluster: "dev", Group: "batch", Version: "v1", Resource: "jobs"}},
		{"eu.west/leases.v1.coordination.k8s.io", delta.Collection{Cluster: "eu.west", Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}},
	} {
		got, err := delta.ParseCollection(row.name)
		if err != nil || got != row.want || got.String() != row.name {
			t.Errorf("ParseCollection(%q) = %+v, %v", row.name, got, err)
		}
	}
	for _, bad := range []string{"", "pods.v1", "dev/", "dev/pods", "dev/pods.", "dev/pods.v1.", "/pods.v1", "dev/.v1", "d v/pods.v1", "dev/a/b.v1", "dev/pods.v1.core", "dev/p%s.v1"} {
		if got, err := delta.ParseCollection(bad); !errors.Is(err, delta.ErrCollection) {
			t.Errorf("ParseCollection(%q) = %+v, %v; want ErrCollection", bad, got, err)
		}
	}
}

func TestMalformedKeysAreErrorsThatNameTheKey(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"name", "ns/name", "system:node:n.1"} {
		if k, err := delta.ParseKey(good); err != nil || delta.NewKey(k.Namespace(), k.Name()) != k {
			t.Errorf("ParseKey(%q) = %q, %v", good, k, err)
		}
	}
	for _, bad := range []string{"", "/", "a/", "/a", "a/b/c", "a\nb", strings.Repeat("x", 254)} {
		if _, err := delta.ParseKey(bad); !errors.Is(err, delta.ErrKey) {
			t.Errorf("ParseKey(%.20q) = %v, want ErrKey", bad, err)
		}
	}
}

func TestSubjectsKeepOrdinaryNamesReadable(t *testing.T) {
	t.Parallel()
	jobs := delta.Collection{Cluster: "dev", Group: "batch", Version: "v1", Resource: "jobs"}
	nodes := delta.Collection{Cluster: "dev", Version: "v1", Resource: "nodes"}
	for _, row := range []struct{ got, want string }{
		{jobs.Subject("default/pi"), "d.dev.batch.v1.jobs.default.pi"},
		{nodes.Subject("ip-10.eu"), "d.dev.core.v1.nodes._.ip-10%2Eeu"},
		{nodes.Subject("system:node:*>"), "d.dev.core.v1.nodes._.system:node:%2A%3E"},
		{nodes.ControlSubject(delta.KindSynced), "c.dev.core.v1.nodes.synced"},
		{jobs.StreamName(), "dp--dev--jobs--v1--batch"},
	} {
		if row.got != row.want {
			t.Errorf("got %s, want %s", row.got, row.want)
		}
	}
	for _, bad := range []string{
		"", "d", "x.dev.core.v1.pods.a.b", "d.dev.core.v1.pods.a", "c.dev.core.v1.pods.delta", "c.dev.core.v1.pods.moon",
		"d.dev.core.v1.pods.a.b%2", "d.dev.core.v1.pods.a.b%41", "d.dev.core.v1.pods..b", "d.dev.core.v1.pods.a.", "d.dev.core.v1.pods.a.b%2F",
	} {
		if _, _, k, err := delta.ParseSubject(bad); !errors.Is(err, delta.ErrSubject) && !errors.Is(err, delta.ErrKey) {
			t.Errorf("ParseSubject(%q) = %q, %v; want an error", bad, k, err)
		}
	}
}

func FuzzSubject(f *testing.F) {
	f.Add("dev", "batch", "jobs", "default", "pi")
	f.Add("eu.1", "", "clusterroles", "", "system:a.b*>%")
	f.Add("dev", "core", "pods", "_", "_")
	f.Fuzz(func(t *testing.T, cluster, group, resource, namespace, name string) {
		c := delta.Collection{Cluster: cluster, Group: group, Version: "v1", Resource: resource}
		key := delta.NewKey(namespace, name)
		if c.Validate() != nil || strings.Contains(namespace, "/") {
			return
		}
		if _, err := delta.ParseKey(string(key)); err != nil {
			return
		}
		subject := c.Subject(key)
		if strings.Count(subject, ".") != 6 || strings.ContainsAny(subject, "*> \t") {
			t.Fatalf("subject %q of %q", subject, key)
		}
		gotC, kind, gotKey, err := delta.ParseSubject(subject)
		if err != nil || gotC != c || kind != delta.KindDelta || gotKey != key {
			t.Errorf("%q came back as %+v %v %q, %v", subject, gotC, kind, gotKey, err)
		}
		if again, err := delta.ParseCollection(c.String()); err != nil || again != c {
			t.Errorf("%q came back as %+v, %v", c, again, err)
		}
	})
}

func FuzzParseSubject(f *testing.F) {
	f.Add("d.dev.core.v1.pods.default.a%2Eb")
	f.Add("c.dev.core.v1.pods.term")
	f.Fuzz(func(t *testing.T, subject string) {
		c, kind, key, err := delta.ParseSubject(subject)
		if err != nil {
			return
		}
		again := c.ControlSubject(kind)
		if kind == delta.KindDelta {
			again = c.Subject(key)
		}
		if again != subject {
			t.Errorf("%q is another spelling of %q", subject, again)
		}
	})
}
