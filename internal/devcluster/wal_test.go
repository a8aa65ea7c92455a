package devcluster_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/journal"
)

const widgetCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
	"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true}]}}`

const widgets = "/apis/example.com/v1/namespaces/default/widgets"

// killed is what a kill -9 leaves: the data directory as it is now, opened by nobody.
func killed(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func lists(t *testing.T, c *devcluster.Cluster) map[string]doc {
	t.Helper()
	out := map[string]doc{}
	for _, path := range []string{
		"/api/v1/configmaps", "/api/v1/pods", "/api/v1/namespaces", "/api/v1/serviceaccounts", widgets,
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
	} {
		list := must(t, c, http.MethodGet, path, nil)
		delete(list, "metadata")
		out[path] = list
	}
	return out
}

func TestWhatWasAcknowledgedSurvivesAKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := idle(t, devcluster.Config{DataDir: dir})
	must(t, c, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgetCRD)
	must(t, c, http.MethodPost, widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"n":1}}`)
	for i := range 20 {
		must(t, c, http.MethodPost, configMaps, configMap(fmt.Sprintf("cm-%d", i)))
	}
	must(t, c, http.MethodPost, pods, pod("p", nil, nil))
	must(t, c, http.MethodPatch, configMaps+"/cm-3", `{"data":{"k":"changed"}}`)
	must(t, c, http.MethodDelete, configMaps+"/cm-4", nil)
	want, rv := lists(t, c), c.ResourceVersion()

	for round := range 3 {
		dir = killed(t, dir)
		c = idle(t, devcluster.Config{DataDir: dir})
		if diff := cmp.Diff(lists(t, c), want); diff != "" {
			t.Fatalf("after kill %d the state differs (-got +want):\n%s", round, diff)
		}
		if got := c.ResourceVersion(); got != rv {
			t.Errorf("version = %d, want to go on at %d", got, rv)
		}
		created := must(t, c, http.MethodPost, configMaps, configMap(fmt.Sprintf("round-%d", round)))
		if got, err := strconv.ParseUint(created.text("metadata.resourceVersion"), 10, 64); err != nil || got <= rv {
			t.Errorf("a new object has version %d, want above %d", got, rv)
		}
		want, rv = lists(t, c), c.ResourceVersion()
	}
}

func TestHistoryDoesNotSurviveAStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := idle(t, devcluster.Config{DataDir: dir})
	old := c.ResourceVersion()
	must(t, c, http.MethodPost, configMaps, configMap("a"))
	c = idle(t, devcluster.Config{DataDir: killed(t, dir)})
	code, out := call(t, c, http.MethodGet, fmt.Sprintf("%s?resourceVersionMatch=Exact&resourceVersion=%d", configMaps, old), nil)
	if code != http.StatusGone || out.text("reason") != "Expired" {
		t.Errorf("answer = %d %v, want 410 Expired", code, out)
	}
}

// A reader at the last change of a resource has missed nothing, after any number of restarts.
func TestAWatchGoesOnAfterAStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := idle(t, devcluster.Config{DataDir: dir})
	must(t, c, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgetCRD)
	must(t, c, http.MethodPost, widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"}}`)
	must(t, c, http.MethodDelete, widgets+"/w", nil)
	seenWidgets := c.ResourceVersion()
	must(t, c, http.MethodPost, pods, pod("p", nil, nil))
	must(t, c, http.MethodDelete, pods+"/p", nil)
	unseen := c.ResourceVersion()
	must(t, c, http.MethodPost, configMaps, configMap("a"))
	must(t, c, http.MethodPatch, configMaps+"/a", `{"data":{"k":"changed"}}`)
	seen := c.ResourceVersion()
	must(t, c, http.MethodDelete, configMaps+"/a", nil)
	last := c.ResourceVersion()

	gone := func(path string, rv uint64) bool {
		t.Helper()
		code, _ := call(t, c, http.MethodGet, fmt.Sprintf("%s?resourceVersionMatch=Exact&resourceVersion=%d", path, rv), nil)
		if code != http.StatusOK && code != http.StatusGone {
			t.Fatalf("%s at %d answered %d", path, rv, code)
		}
		return code == http.StatusGone
	}
	for round := range 3 {
		dir = killed(t, dir)
		c = idle(t, devcluster.Config{DataDir: dir})
		if gone(widgets, seenWidgets) || gone(pods, unseen) || gone(configMaps, last) {
			t.Errorf("start %d: a reader that saw everything has to list", round)
		}
		if !gone(configMaps, seen) || !gone(widgets, seenWidgets-1) {
			t.Errorf("start %d: a reader that missed a deletion may go on", round)
		}
		must(t, c, http.MethodPost, "/api/v1/namespaces", fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"round-%d"}}`, round))
	}
	// Recreated, the resource has no history from before.
	const crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com"
	must(t, c, http.MethodDelete, crd, nil)
	must(t, c, http.MethodPatch, crd, `{"metadata":{"finalizers":null}}`) // an idle cluster collects nothing
	must(t, c, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgetCRD)
	for round := range 2 {
		dir = killed(t, dir)
		c = idle(t, devcluster.Config{DataDir: dir})
		if !gone(widgets, seenWidgets) {
			t.Errorf("start %d: a reader of the deleted resource may go on", round)
		}
	}
}

func TestADirectoryServesOneClusterAtATime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := idle(t, devcluster.Config{DataDir: dir})
	if _, err := devcluster.New(devcluster.Config{DataDir: dir}, nil); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("New() = %v, want a refusal naming the directory", err)
	}
	must(t, c, http.MethodPost, configMaps, configMap("a"))
}

func TestATornLastRecordIsIgnored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := idle(t, devcluster.Config{DataDir: dir})
	must(t, c, http.MethodPost, configMaps, configMap("a"))
	want := lists2(t, c)
	must(t, c, http.MethodPost, configMaps, configMap("b"))
	dir = killed(t, dir)
	file := filepath.Join(dir, "objects.wal")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw[:len(raw)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(lists2(t, idle(t, devcluster.Config{DataDir: dir})), want); diff != "" {
		t.Errorf("state differs (-got +want):\n%s", diff)
	}
}

func lists2(t *testing.T, c *devcluster.Cluster) any {
	t.Helper()
	return must(t, c, http.MethodGet, configMaps, nil)["items"]
}

// walFormat begins every record of a log.
const walFormat journal.Format = "\xd1Dc1"

func TestADamagedLogIsAnErrorNamingTheRecord(t *testing.T) {
	t.Parallel()
	var first []byte
	record := func(b []byte, text string) []byte {
		b, err := walFormat.Append(b, func(b []byte) []byte { return append(b, text...) })
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first = record(nil, `{"rv":5}`)
	second := fmt.Sprintf("byte %d", len(first))
	flipped := record(slices.Clone(first), `{"rv":9}`)
	flipped[len(flipped)-1] ^= 1
	for name, c := range map[string]struct {
		log  []byte
		want string
	}{
		"no JSON":          {record(slices.Clone(first), "{nonsense"), second},
		"no such resource": {record(slices.Clone(first), `{"rv":9,"table":"ghosts.example.com","key":"a","object":{}}`), "ghosts.example.com"},
		"no such object":   {record(slices.Clone(first), `{"rv":9,"table":"pods","key":"a","object":{"spec":5}}`), second},
		"another byte":     {flipped, second},
		"lines of JSON":    {[]byte("{\"rv\":5}\n"), "move the file away"},
	} {
		dir := t.TempDir()
		log := c.log
		if name != "lines of JSON" {
			log = record(log, `{"rv":10}`)
		}
		if err := os.WriteFile(filepath.Join(dir, "objects.wal"), log, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := devcluster.New(devcluster.Config{DataDir: dir}, nil); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "objects.wal") {
			t.Errorf("%s: New() = %v, want an error naming the file and %s", name, err, c.want)
		}
	}
}

func TestTheLogIsCompactedAtStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := idle(t, devcluster.Config{DataDir: dir})
	must(t, c, http.MethodPost, configMaps, configMap("a"))
	for i := range 200 {
		must(t, c, http.MethodPatch, configMaps+"/a", fmt.Sprintf(`{"data":{"k":"%d"}}`, i))
	}
	size := func(dir string) int64 {
		info, err := os.Stat(filepath.Join(dir, "objects.wal"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	dir = killed(t, dir) // the first holds its own directory's lock
	before := size(dir)
	idle(t, devcluster.Config{DataDir: dir})
	if after := size(dir); after*5 > before {
		t.Errorf("the log has %d bytes after a start, %d before", after, before)
	}
}
