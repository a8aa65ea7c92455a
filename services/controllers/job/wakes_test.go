package job_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

func TestWakes(t *testing.T) {
	t.Parallel()
	owner := func(kind, name string) delta.Owner { return delta.Owner{Kind: kind, Name: name, Controller: true} }
	label := map[string][]string{"batch.kubernetes.io/job-name": {"work"}}
	tests := []struct {
		name string
		rec  delta.Record
		want []string
		all  bool
	}{
		{"its owner", delta.Record{Key: "ns/p", Owners: []delta.Owner{owner("Job", "work")}, Labels: label}, []string{"ns/work"}, false},
		{"the owner before as well", delta.Record{Key: "ns/p", Owners: []delta.Owner{owner("Job", "work"), owner("Job", "other")}}, []string{"ns/work", "ns/other"}, false},
		{"without owner, the Job it is named after and those that select", delta.Record{Key: "ns/p", Labels: label}, []string{"ns/work", "@orphans/ns"}, false},
		{"without anything, those that select", delta.Record{Key: "ns/p"}, []string{"@orphans/ns"}, false},
		{"let go, the owner before and those that select", delta.Record{Key: "ns/p", Owners: []delta.Owner{{Kind: "Job", Name: "work"}}, Labels: label}, []string{"ns/work", "@orphans/ns"}, false},
		{"taken over, the owner before as well", delta.Record{Key: "ns/p", Owners: []delta.Owner{owner("ReplicaSet", "r"), {Kind: "Job", Name: "work"}}}, []string{"ns/work"}, false},
		{"a pod that is gone is nobody's to adopt", delta.Record{Kind: delta.KindDelta, Type: delta.Deleted, Key: "ns/p", Labels: label}, []string{"ns/work"}, false},
		{"another controller's", delta.Record{Key: "ns/p", Owners: []delta.Owner{owner("ReplicaSet", "r")}, Labels: label}, nil, false},
		{"more owners than the record holds", delta.Record{Key: "ns/p", Overflow: true}, []string{"@orphans/ns"}, true},
		{"a key without namespace", delta.Record{Key: "p", Labels: label}, nil, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, all := job.Wakes(&tc.rec)
			if diff := cmp.Diff(got, tc.want); diff != "" || all != tc.all {
				t.Errorf("all = %v, keys (-got +want):\n%s", all, diff)
			}
		})
	}
}

func TestAnOrphansKeyIsThatOfItsNamespaceOnly(t *testing.T) {
	t.Parallel()
	if ns, ok := job.OrphansOf(job.OrphansKey("ns")); !ok || ns != "ns" {
		t.Errorf("OrphansOf(OrphansKey) = %q, %v", ns, ok)
	}
	for _, key := range []string{"ns/work", "orphans/work", "@resync", "@orphans"} {
		if ns, ok := job.OrphansOf(key); ok {
			t.Errorf("%s is taken for the orphans of %q", key, ns)
		}
	}
}

func TestBatching(t *testing.T) {
	t.Parallel()
	var b job.Batching
	record := func(resource, uid string, generation int64, typ delta.Type) *delta.Record {
		return &delta.Record{Kind: delta.KindDelta, Type: typ, Collection: delta.Collection{Resource: resource}, UID: uid, Generation: generation}
	}
	steps := []struct {
		name string
		rec  *delta.Record
		want time.Duration
	}{
		{"a pod waits", record("pods", "p", 0, delta.Added), time.Second},
		{"a new Job does not", record("jobs", "u", 1, delta.Added), 0},
		{"a change of its status does", record("jobs", "u", 1, delta.Updated), time.Second},
		{"a change of its spec does not", record("jobs", "u", 2, delta.Updated), 0},
		{"a Job of the same generation, another UID", record("jobs", "v", 2, delta.Updated), 0},
		{"its deletion does not", record("jobs", "u", 2, delta.Deleted), 0},
		{"an unknown UID", record("jobs", "", 2, delta.Updated), 0},
	}
	for _, s := range steps {
		if got := b.Delay(s.rec); got != s.want {
			t.Errorf("%s: %v, want %v", s.name, got, s.want)
		}
	}
}
