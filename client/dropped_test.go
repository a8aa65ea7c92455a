package client_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/client"
)

func TestWhatWouldBeRemovedByAWriteIsNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		dropped *client.DroppedFields
		names   string // empty: may be written back
		status  string // what a write of the status would remove; empty: nothing
	}{
		{"nothing", &client.DroppedFields{}, "", ""},
		{"managed fields, which the API server keeps", &client.DroppedFields{Paths: []string{"metadata.managedFields"}}, "", ""},
		{"a field of the spec", &client.DroppedFields{Paths: []string{"spec.template"}}, "spec.template", ""},
		{"a field", &client.DroppedFields{Paths: []string{"metadata.managedFields", "status.images"}}, "status.images", "status.images"},
		{"all but metadata", &client.DroppedFields{MetadataOnly: true}, "everything but metadata", "everything but metadata"},
		{"nobody has said", nil, "not known", "not known"},
	} {
		for _, of := range []struct {
			write, names string
			err          error
		}{{"object", c.names, c.dropped.WriteBack()}, {"status", c.status, c.dropped.WriteBackStatus()}} {
			if of.names == "" && of.err != nil || of.names != "" && (!errors.Is(of.err, client.ErrDroppedFields) || !strings.Contains(of.err.Error(), of.names)) {
				t.Errorf("%s, write of the %s: %v, want one that names %q", c.name, of.write, of.err, of.names)
			}
		}
	}
}
