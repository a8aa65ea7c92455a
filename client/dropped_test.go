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
	}{
		{"nothing", &client.DroppedFields{}, ""},
		{"managed fields, which the API server keeps", &client.DroppedFields{Paths: []string{"metadata.managedFields"}}, ""},
		{"a field", &client.DroppedFields{Paths: []string{"metadata.managedFields", "status.images"}}, "status.images"},
		{"all but metadata", &client.DroppedFields{MetadataOnly: true}, "everything but metadata"},
		{"nobody has said", nil, "not known"},
	} {
		err := c.dropped.WriteBack()
		if c.names == "" && err != nil || c.names != "" && (!errors.Is(err, client.ErrDroppedFields) || !strings.Contains(err.Error(), c.names)) {
			t.Errorf("%s: %v, want one that names %q", c.name, err, c.names)
		}
	}
}
