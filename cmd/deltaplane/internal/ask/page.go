package ask

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

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

// plain is the status that an error of the client holds: commands know what they asked.
func plain(err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Unwrap()
	}
	return err
}

// completeCollections completes COLLECTION from what the index serves; without a reachable index it
// offers nothing.
func completeCollections(cmd *cobra.Command, done []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(done) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	target, err := cmd.Flags().GetString("index-url")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var d cli.DialFlags
	conn, err := cli.Dial(target, d.Config)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer conn.Close()
	ctx, cancel := cli.ContextWithTimeout(cmd, time.Second)
	defer cancel()
	answer, err := indexv1.NewIndexServiceClient(conn).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, c := range answer.GetCollections() {
		names = append(names, fmt.Sprintf("%s\t%d objects", c.GetResource(), c.GetObjects()))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
