package api

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	tableType   = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	partialType = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
	partialOne  = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
)

func checkNegotiate(t *testing.T, g Target) {
	t.Helper()
	t.Run("a table has columns and rows", func(t *testing.T) {
		t.Parallel()
		ns := g.namespace(t)
		g.post(t, path("pods", ns), pod("p")).ok(t)
		j := job("j")
		j["spec"].(object)["managedBy"] = "example.com/" + unusedManager // a Job controller beside this suite would make a second pod
		g.post(t, path("jobs", ns), j).ok(t)
		for resource, columns := range map[string][]string{
			"pods": {"Name", "Ready", "Status", "Restarts", "Age"}, "jobs": {"Name", "Status", "Completions", "Duration", "Age"},
		} {
			table := g.do(t, http.MethodGet, path(resource, ns), nil, "", "Accept", tableType).ok(t)
			defs, _ := table["columnDefinitions"].([]any)
			rows, _ := table["rows"].([]any)
			if table.text("kind") != "Table" || table.text("apiVersion") != "meta.k8s.io/v1" || len(rows) != 1 || table.rv() == "" {
				t.Fatalf("table = %v", table)
			}
			for i, want := range columns {
				if got := defs[i].(map[string]any)["name"]; got != want {
					t.Errorf("%s column %d = %v, want %s", resource, i, got, want)
				}
			}
			row := object(rows[0].(map[string]any))
			if cells, _ := row["cells"].([]any); len(cells) != len(defs) || row.text("object.kind") != "PartialObjectMetadata" {
				t.Errorf("row = %v, want a cell per column and the metadata", row)
			}
		}
		table := g.do(t, http.MethodGet, path("pods", ns)+"?includeObject=Object", nil, "", "Accept", tableType).ok(t)
		rows, _ := table["rows"].([]any)
		if got := object(rows[0].(map[string]any)).text("object.kind"); got != "Pod" {
			t.Errorf("object = %q, want Pod", got)
		}
	})

	t.Run("a watch of tables names its columns once", func(t *testing.T) {
		t.Parallel()
		ns := g.namespace(t)
		g.post(t, path("pods", ns), pod("a")).ok(t)
		g.post(t, path("pods", ns), pod("b")).ok(t)
		s := g.watch(t, path("pods", ns)+"?watch=1", "Accept", tableType)
		for i := range 2 {
			e := s.next(t)
			defs, _ := e.Object["columnDefinitions"].([]any)
			if e.Type != "ADDED" || e.Object.text("kind") != "Table" || (len(defs) > 0) != (i == 0) {
				t.Errorf("event %d = %s with %d columns", i, e.Type, len(defs))
			}
		}
	})

	t.Run("metadata can be asked for alone", func(t *testing.T) {
		t.Parallel()
		p := g.seed(t, 1)
		list := g.do(t, http.MethodGet, p+mine, nil, "", "Accept", partialType).ok(t)
		if list.text("kind") != "PartialObjectMetadataList" || len(items(list)) != 1 || items(list)[0]["data"] != nil || items(list)[0].text("metadata.name") != "cm-00" {
			t.Errorf("list = %v", list)
		}
		o := g.do(t, http.MethodGet, p+"/cm-00", nil, "", "Accept", partialOne).ok(t)
		if o.text("kind") != "PartialObjectMetadata" || o["data"] != nil {
			t.Errorf("object = %v", o)
		}
	})

	t.Run("an unknown form is not acceptable", func(t *testing.T) {
		t.Parallel()
		p := path("configmaps", g.namespace(t))
		g.do(t, http.MethodGet, p, nil, "", "Accept", "application/xml").want(t, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable)
	})

	t.Run("a review says what somebody may do", func(t *testing.T) {
		t.Parallel()
		const p, head = "/apis/authorization.k8s.io/v1/subjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":`
		const pods = `"resourceAttributes":{"verb":"list","version":"v1","resource":"pods"}`
		got := g.post(t, p, head+`{"user":"somebody","groups":["system:masters"],`+pods+`}}`)
		if got.code != http.StatusCreated || got.body.text("kind") != "SubjectAccessReview" || got.body.at("status.allowed") != true {
			t.Errorf("%d %v", got.code, got.raw)
		}
		for _, spec := range []string{`{` + pods + `}`, `{"user":"somebody"}`, `{"user":"somebody",` + pods + `,"nonResourceAttributes":{"verb":"get","path":"/"}}`} {
			g.post(t, p, head+spec+`}`).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		}
	})

	t.Run("discovery names what is served", func(t *testing.T) {
		t.Parallel()
		find := func(list object, name string) object {
			resources, _ := list["resources"].([]any)
			for _, r := range resources {
				if m := object(r.(map[string]any)); m.text("name") == name {
					return m
				}
			}
			return nil
		}
		core := g.get(t, "/api/v1").ok(t)
		if r := find(core, "pods"); r.text("kind") != "Pod" || r["namespaced"] != true || r.text("singularName") != "pod" {
			t.Errorf("pods = %v", r)
		}
		for _, name := range []string{"pods/status", "pods/binding", "pods/eviction", "pods/log", "nodes", "namespaces", "events", "secrets"} {
			if find(core, name) == nil {
				t.Errorf("%s is not served", name)
			}
		}
		if r := find(g.get(t, "/apis/batch/v1").ok(t), "jobs"); r.text("kind") != "Job" {
			t.Errorf("jobs = %v", r)
		}
		all := g.do(t, http.MethodGet, "/apis", nil, "", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList").ok(t)
		if all.text("kind") != "APIGroupDiscoveryList" || len(items(all)) == 0 {
			t.Errorf("aggregated discovery = %.300v", all)
		}
		if got := g.get(t, "/version").ok(t).text("gitVersion"); !strings.HasPrefix(got, "v1.") {
			t.Errorf("gitVersion = %q", got)
		}
		for _, p := range []string{"/healthz", "/readyz", "/livez"} {
			if got := g.get(t, p); got.code != http.StatusOK || got.raw != "ok" {
				t.Errorf("%s = %d %q", p, got.code, got.raw)
			}
		}
	})
}

func checkBadInput(t *testing.T, g Target) {
	t.Helper()
	ns := g.namespace(t)
	p := path("configmaps", ns)

	t.Run("bad bodies", func(t *testing.T) {
		t.Parallel()
		for _, body := range []string{`{"kind":`, `[]`, `"x"`, ``, `{"apiVersion":"batch/v1","kind":"Job"}`, `{"metadata":5}`, `{"data":{"k":5}}`} {
			g.post(t, p, body).want(t, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		}
		g.do(t, http.MethodPost, p, `{}`, "text/plain").want(t, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType)
		r := g.post(t, p, `{"metadata":{}}`).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		if r.causes(t)["metadata.name"] == "" {
			t.Errorf("causes = %v, want metadata.name", r.causes(t))
		}
	})

	t.Run("unknown fields are refused, warned of, or ignored as asked", func(t *testing.T) {
		t.Parallel()
		body := func(name string) object {
			o := configMap(name, nil)
			o["colour"] = "red"
			return o
		}
		r := g.post(t, p+"?fieldValidation=Strict", body("s")).want(t, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		if !strings.Contains(r.raw, `unknown field \"colour\"`) {
			t.Errorf("answer = %s, want the field named", r.raw)
		}
		if got := g.post(t, p, body("w")).want(t, http.StatusCreated, "").header.Get("Warning"); !strings.Contains(got, "colour") {
			t.Errorf("warning = %q, want the field named", got)
		}
		if r := g.post(t, p+"?fieldValidation=Ignore", body("i")).want(t, http.StatusCreated, ""); r.header.Get("Warning") != "" || r.body["colour"] != nil {
			t.Errorf("warning = %q, object %v", r.header.Get("Warning"), r.body)
		}
		g.post(t, p+"?fieldValidation=Maybe", body("m")).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	})

	t.Run("bad parameters of a list", func(t *testing.T) {
		t.Parallel()
		for _, query := range []string{
			"limit=abc", "resourceVersion=abc", "labelSelector=" + url.QueryEscape("a b"), "labelSelector=" + url.QueryEscape("a in"),
			"fieldSelector=spec.foo%3Dx", "fieldSelector=nonsense", "continue=abc", "timeoutSeconds=x",
		} {
			g.get(t, p+"?"+query).want(t, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		}
		for _, query := range []string{
			"resourceVersionMatch=Exact", "resourceVersionMatch=Sort&resourceVersion=1", "resourceVersionMatch=Exact&resourceVersion=0", "sendInitialEvents=true",
		} {
			g.get(t, p+"?"+query).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		}
	})

	t.Run("bad addresses", func(t *testing.T) {
		t.Parallel()
		for _, address := range []string{"/api/v1/nopes", "/apis/batch/v1/namespaces/" + ns + "/jobs/a/b/c", p + "/a/nope", "/api/v1/namespaces/" + ns + "/nodes"} {
			g.get(t, address).want404(t)
		}
		g.post(t, "/api/v1/configmaps", configMap("a", nil)).want(t, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
		g.put(t, p, configMap("a", nil)).want(t, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
		g.post(t, p+"/a", configMap("a", nil)).want(t, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
	})

	t.Run("names must agree with the address", func(t *testing.T) {
		t.Parallel()
		o := configMap("a", nil)
		o["metadata"] = object{"name": "a", "namespace": "elsewhere"}
		g.post(t, p, o).want(t, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		g.put(t, p+"/b", configMap("a", nil)).want(t, http.StatusBadRequest, metav1.StatusReasonBadRequest)
	})

	t.Run("a version at creation is refused", func(t *testing.T) {
		t.Parallel()
		o := configMap("a", nil)
		o["metadata"] = object{"name": "rv", "resourceVersion": "5"}
		g.post(t, p, o).want(t, http.StatusInternalServerError, "")
	})

	t.Run("a body above 3 MB is too large", func(t *testing.T) {
		t.Parallel()
		o := configMap("huge", nil)
		o["data"] = object{"k": strings.Repeat("x", 3<<20)}
		g.post(t, p, o).want(t, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge)
		o["data"] = object{"k": strings.Repeat("x", 1<<20+1)}
		g.post(t, p, o).want(t, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	})
}
