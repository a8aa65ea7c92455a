package table_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltaplane/deltaplane/internal/table"
)

func columns(names ...string) (all []metav1.TableColumnDefinition) {
	for _, name := range names {
		all = append(all, metav1.TableColumnDefinition{Name: name, Type: "string"})
	}
	return all
}

var pods = schema.GroupResource{Resource: "pods"}

func podTable(t testing.TB) *table.Table {
	t.Helper()
	made, err := table.New(pods, columns("Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"), nil)
	if err != nil || made == nil {
		t.Fatalf("no table of pods: %v", err)
	}
	return made
}

func TestNoTableIsMadeOfColumnsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		resource schema.GroupResource
		columns  []string
		custom   []table.Column
	}{
		"pods of another release":        {pods, []string{"Name", "Ready", "Status", "Restarts", "Age"}, nil},
		"a resource that is not known":   {schema.GroupResource{Group: "x", Resource: "y"}, []string{"Name", "Z"}, nil},
		"a custom resource that changes": {schema.GroupResource{Group: "x.y", Resource: "z"}, []string{"Name", "New"}, []table.Column{{Name: "Old", Type: "string", JSONPath: ".a"}}},
	} {
		if made, err := table.New(tc.resource, columns(tc.columns...), tc.custom); made != nil || err != nil {
			t.Errorf("%s: %v %v", what, made, err)
		}
	}
	if _, err := table.New(schema.GroupResource{}, columns("Name", "A"), []table.Column{{Name: "A", Type: "string", JSONPath: ".a["}}); err == nil {
		t.Error("a path that is none is taken")
	}
}

func TestARowOfAPodSaysHowItIs(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	object := []byte(`{"metadata":{"name":"p","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"nodeName":"n","containers":[{},{}]},"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.1"}],
		"containerStatuses":[{"ready":true,"state":{"running":{}},"restartCount":1,"lastState":{"terminated":{"finishedAt":"2026-01-01T23:00:00Z"}}},{"state":{"waiting":{"reason":"CrashLoopBackOff"}},"restartCount":2}]}}`)
	raw, err := podTable(t).AppendRow(nil, object, []byte("null"), now)
	if err != nil {
		t.Fatal(err)
	}
	var row struct{ Cells []any }
	if err := json.Unmarshal(raw, &row); err != nil {
		t.Fatal(err)
	}
	if want := []any{"p", "1/2", "CrashLoopBackOff", "3 (60m ago)", "24h", "10.0.0.1", "n", "<none>", "<none>"}; !slices.Equal(row.Cells, want) {
		t.Errorf("%q, want %q", row.Cells, want)
	}
}

// Objects come from the API server, but nothing that they hold may stop the gateway.
func FuzzRows(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"p","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"initContainers":[{"name":"i","restartPolicy":"Always"}]},"status":{"initContainerStatuses":[{"name":"i"}]}}`))
	f.Add([]byte(`{"spec":{"list":[{"a":1.5},{"a":"b"}]},"metadata":null}`))
	f.Add([]byte(`{"metadata":{"labels":{"node-role.kubernetes.io/":""}},"status":{"conditions":[{"type":"Ready"}]}}`))
	all := []*table.Table{podTable(f)}
	for _, tc := range []struct {
		resource schema.GroupResource
		columns  []string
		custom   []table.Column
	}{
		{schema.GroupResource{Resource: "nodes"}, []string{"Name", "Status", "Roles", "Age", "Version", "Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"}, nil},
		{schema.GroupResource{Resource: "events"}, []string{"Last Seen", "Type", "Reason", "Object", "Subobject", "Source", "Message", "First Seen", "Count", "Name"}, nil},
		{schema.GroupResource{Group: "batch", Resource: "jobs"}, []string{"Name", "Status", "Completions", "Duration", "Age", "Containers", "Images", "Selector"}, nil},
		{schema.GroupResource{Group: "a.b", Resource: "c"}, []string{"Name", "X"}, []table.Column{{Name: "X", Type: "string", JSONPath: `.spec.list[?(@.a=="b")].a`}}},
	} {
		made, err := table.New(tc.resource, columns(tc.columns...), tc.custom)
		if err != nil || made == nil {
			f.Fatalf("%v: %v", tc.resource, err)
		}
		all = append(all, made)
	}
	f.Fuzz(func(t *testing.T, object []byte) {
		for _, one := range all {
			row, err := one.AppendRow(nil, object, []byte("null"), time.Unix(0, 0))
			if err == nil && !json.Valid(row) {
				t.Fatalf("%s is no row", row)
			}
		}
	})
}
