package ask

import (
	"errors"
	"strings"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// options are the selection in the words of the client.
func (s *selection) options() (client.ListOptions, error) {
	o := client.ListOptions{Namespaces: s.namespaces, Labels: s.selector, FieldSelector: s.fields, ReadOptions: client.ReadOptions{View: client.View(s.view()), AtLeast: client.Revision{RV: s.atLeast}, VisibleOnly: s.visibleOnly}}
	if s.index == "" {
		return o, nil
	}
	if s.selector != "" {
		return o, &cli.UsageError{Err: errors.New("--index excludes --selector")}
	}
	name, value, _ := strings.Cut(s.index, "=")
	o.Index, o.Values = name, []string{value}
	return o, nil
}

// object is what the client read as printers take it.
func object(o client.Object) *indexv1.Object {
	return &indexv1.Object{Key: o.Key, Uid: o.UID, ResourceVersion: o.ResourceVersion, Payload: o.Payload}
}
