package request

import (
	"regexp"
	"strings"
)

var plainPath = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*$`)

// plain reports whether a field is names alone, joined by dots.
func plain(field string) bool { return plainPath.MatchString(field) }

// selectable are fields by which API servers select objects beside their name and namespace, where
// the field's value is the text at its path. Others are left to the API server.
var selectable = map[Resource][]string{
	{Version: "v1", Name: "pods"}: {
		"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase", "status.nominatedNodeName",
	},
	{Version: "v1", Name: "namespaces"}: {"status.phase"},
	{Version: "v1", Name: "secrets"}:    {"type"},
	{Version: "v1", Name: "events"}: {
		"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid", "involvedObject.apiVersion",
		"involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "type",
	},
}

// FieldPath is the names that lead to the value of a selectable field; false where the field is
// none that is known here.
func FieldPath(r Resource, field string) (path []string, ok bool) {
	ok = field == "metadata.name" || field == "metadata.namespace"
	for _, known := range selectable[r] {
		ok = ok || known == field
	}
	return strings.Split(field, "."), ok
}
