package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// selection is what `get` and `watch` are asked for.
type selection struct {
	dialFlags
	collection string
	key        string
	namespace  string
	selector   string
	index      string // name=value
	atLeast    string
	output     string
	noHeaders  bool
}

func (s *selection) register(flags *pflag.FlagSet) {
	s.dialFlags.register(flags)
	flags.StringVarP(&s.namespace, "namespace", "n", "", "only this `namespace` (default: all)")
	flags.StringVarP(&s.selector, "selector", "l", "", "only objects that match this label `selector`, for example app=web,tier!=db")
	flags.StringVar(&s.index, "index", "", "only objects filed under `name=value` of an index, for example node=node-1")
	flags.StringVar(&s.atLeast, "at-least", "", "wait until this resource `version` has been seen")
	flags.StringVarP(&s.output, "output", "o", "table", "`format`: table, wide, json, yaml, name or keys")
	flags.BoolVar(&s.noHeaders, "no-headers", false, "print tables without their first line")
}

// read takes COLLECTION [KEY] and checks the flags against each other.
func (s *selection) read(args []string) error {
	s.collection = args[0]
	if len(args) == 2 {
		s.key = args[1]
		if s.namespace != "" && !strings.Contains(s.key, "/") {
			s.key = s.namespace + "/" + s.key
		}
		if s.selector != "" || s.index != "" {
			return &usageError{errors.New("a key excludes --selector and --index")}
		}
	}
	if s.index != "" && !strings.Contains(s.index, "=") {
		return &usageError{fmt.Errorf("--index %q: want name=value", s.index)}
	}
	return checkOutput(s.output)
}

func (s *selection) consistency() *indexv1.Consistency {
	if s.atLeast == "" {
		return nil
	}
	return &indexv1.Consistency{AtLeast: &deltav1.Revision{ResourceVersion: s.atLeast}}
}

func (s *selection) view() indexv1.View {
	if s.output == "name" || s.output == "keys" {
		return indexv1.View_VIEW_KEYS
	}
	return indexv1.View_VIEW_FULL
}

func newGet() *cobra.Command {
	var s selection
	cmd := &cobra.Command{
		Use:   "get COLLECTION [KEY]",
		Short: "Show objects of a collection",
		Long: `Show objects of a collection, answered from the index's memory.

COLLECTION is a name such as pods, jobs.batch or dev/pods.v1; "deltaplane get" with an
unknown name lists those there are. KEY is namespace/name, or name for cluster-scoped
objects and together with --namespace.

An object whose newest version could not be read is an error that names its key; of a list
the others are shown before it. With -o keys and -o name such keys stand among the others.`,
		Example: `  deltaplane get pods
  deltaplane get pods -n default -l job-name=hello
  deltaplane get pods --index node=node-1 -o keys
  deltaplane get jobs default/hello -o yaml`,
		Args:              args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: completeCollections,
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := s.read(a); err != nil {
				return err
			}
			return runGet(cmd, &s)
		},
	}
	s.register(cmd.Flags())
	return cmd
}

func runGet(cmd *cobra.Command, s *selection) error {
	conn, err := dial(s.dialFlags.index, s.config)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := contextWithTimeout(cmd, s.timeout)
	defer cancel()
	index := indexv1.NewIndexServiceClient(conn)
	p := newPrinter(cmd.OutOrStdout(), s.output, s.collection, s.noHeaders)

	if s.key != "" {
		answer, err := index.Get(ctx, &indexv1.GetRequest{
			Collection: s.collection, Key: s.key, View: s.view(), Consistency: s.consistency(),
		})
		if err != nil {
			return served(ctx, index, err)
		}
		p.single = true
		p.add(answer.GetObject())
		return p.flush()
	}
	o, err := s.options()
	if err != nil {
		return err
	}
	var unread []string
	for obj, err := range client.NewIndex(conn).All(ctx, s.collection, o) {
		switch {
		case err != nil:
			return served(ctx, index, plain(err))
		case obj.Quarantined && s.view() == indexv1.View_VIEW_FULL: // of the others no more than the key is shown
			unread = append(unread, obj.Key)
		default:
			p.add(object(obj))
		}
	}
	if err := p.flush(); err != nil {
		return err
	}
	if len(unread) > 0 {
		return s.missing(unread, p.count)
	}
	if p.count == 0 && (s.output == "table" || s.output == "wide") {
		fmt.Fprintln(cmd.ErrOrStderr(), "no objects found")
	}
	return nil
}

// missing names the objects that could not be read, beside so many that were shown.
func (s *selection) missing(keys []string, shown int) error {
	const most = 10
	names := make([]string, 0, most+1)
	for _, key := range keys[:min(len(keys), most)] {
		names = append(names, printable(key))
	}
	if more := len(keys) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return &hintError{
		fmt.Errorf("%d of %d objects could not be read: %s", len(keys), shown+len(keys), strings.Join(names, ", ")),
		fmt.Sprintf("deltaplane get %s %s tells why", s.collection, names[0]),
	}
}

// served adds to an error about an unknown collection the names of those there are.
func served(ctx context.Context, client indexv1.IndexServiceClient, err error) error {
	if rpc.Reason(err) != "COLLECTION_NOT_FOUND" {
		return err
	}
	answer, listErr := client.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if listErr != nil {
		return err
	}
	names := make([]string, 0, len(answer.GetCollections()))
	for _, c := range answer.GetCollections() {
		names = append(names, c.GetCollection())
	}
	return &hintError{err, thereAre(names)}
}

// thereAre lists a few names on one line, and many below each other.
func thereAre(names []string) string {
	const few = 8
	if len(names) > few {
		return "there are:\n  " + strings.Join(names, "\n  ")
	}
	return "there are: " + cmp.Or(strings.Join(names, ", "), "none yet")
}
