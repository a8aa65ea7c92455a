package show

import (
	"regexp"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/internal/table"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

func TestTablesHaveTheColumnsOfKubectl(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		object       string
		custom       []table.Column
		narrow, wide string
	}{
		"a pod": {
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"ns","resourceVersion":"7","uid":"u"},
			"spec":{"nodeName":"n","containers":[{"name":"c"}]},"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.1"}],
			"containerStatuses":[{"name":"c","ready":true,"restartCount":3,"state":{"running":{}}}]}}`, nil,
			"NAMESPACE NAME READY STATUS RESTARTS AGE | ns p 1/1 Running 3 <unknown>",
			"NAMESPACE NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES RESOURCE-VERSION UID | ns p 1/1 Running 3 <unknown> 10.0.0.1 n <none> <none> 7 u",
		},
		"a node, and that it was stopped": {
			`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","annotations":{"deltaplane.io/stopped":"true"}},
			"spec":{"taints":[{"key":"k","effect":"NoExecute"}]},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, nil,
			"NAME STATUS ROLES AGE VERSION TAINTS | n Ready,Stopped <none> <unknown>  k:NoExecute",
			"",
		},
		"a lease": {
			`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l","namespace":"ns"},"spec":{"holderIdentity":"h"}}`, nil,
			"NAMESPACE NAME HOLDER AGE | ns l h <unknown>", "",
		},
		"a kind without columns": {
			`{"apiVersion":"x.io/v1","kind":"Gadget","metadata":{"name":"g"}}`, nil,
			"NAME AGE | g ", "",
		},
		"a custom resource": {
			`{"apiVersion":"x.io/v1","kind":"Gadget","metadata":{"name":"g"},"spec":{"size":3,"note":"a\u001bb"}}`,
			[]table.Column{{Name: "Size", Type: "integer", JSONPath: ".spec.size"}, {Name: "Note", Type: "string", JSONPath: ".spec.note", Priority: 1}},
			"NAME SIZE | g 3",
			`NAME SIZE NOTE RESOURCE-VERSION UID | g 3 "a\x1bb" - -`,
		},
	} {
		for format, want := range map[string]string{"table": c.narrow, "wide": c.wide} {
			if want == "" {
				continue
			}
			var out strings.Builder
			p := NewPrinter(&out, format, "things", false)
			p.Columns = c.custom
			p.Add(&indexv1.Object{Key: "ns/p", Payload: []byte(c.object)})
			if err := p.Flush(); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			for i, line := range lines {
				lines[i] = regexp.MustCompile(" {3,}").ReplaceAllString(line, " ")
			}
			if got := strings.Join(lines, " | "); regexp.MustCompile(" +").ReplaceAllString(got, " ") != regexp.MustCompile(" +").ReplaceAllString(want, " ") {
				t.Errorf("%s as %s:\n%s\nwant\n%s", name, format, got, want)
			}
		}
	}
}
