package ask

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// selection is what `get` and `watch` are asked for.
type selection struct {
	cli.DialFlags
	collection    string
	key           string
	namespaces    []string
	allNamespaces bool
	visibleOnly   bool
	selector      string
	fields        string
	index         string // name=value
	atLeast       string
	output        string
	sortBy        string
	noHeaders     bool

	scope   indexv1.KeyScope            // once resolved
	found   *indexv1.CollectionStatus   // what is meant, once resolved; nil where that is not known
	served  []*indexv1.CollectionStatus // by the index, once resolved
	assumed bool                        // the key's namespace was not given
}

func (s *selection) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	s.DialFlags.Register(flags)
	flags.StringSliceVarP(&s.namespaces, "namespace", "n", nil, "only this `namespace`; several, repeated or with commas, up to 100 (default: all, and default for a KEY)")
	flags.BoolVarP(&s.allNamespaces, "all-namespaces", "A", false, "objects of all namespaces, whatever --namespace says")
	flags.BoolVar(&s.visibleOnly, "visible-only", false, "only what you may see, instead of an error where that is not all")
	flags.StringVarP(&s.selector, "selector", "l", "", "only objects that match this label `selector`, for example app=web,tier!=db")
	flags.StringVar(&s.fields, "field-selector", "", "only objects that match this field `selector`: of metadata.name, metadata.namespace and the paths of declared indexes, for example metadata.name!=web")
	flags.StringVar(&s.index, "index", "", "only objects filed under `name=value` of an index, for example node=node-1")
	flags.StringVar(&s.atLeast, "at-least", "", "wait until this resource `version` has been seen")
	flags.StringVarP(&s.output, "output", "o", "table", "`format`: table, wide, json, yaml, name, keys, jsonpath=TEMPLATE or custom-columns=NAME:PATH,...")
	flags.BoolVar(&s.noHeaders, "no-headers", false, "print tables without their first line")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(show.Outputs(), cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)))
}

// read takes COLLECTION [KEY] and checks the flags against each other.
func (s *selection) read(args []string) error {
	s.collection = args[0]
	if len(args) == 2 {
		s.key = args[1]
		if s.selector != "" || s.fields != "" || s.index != "" {
			return &cli.UsageError{Err: errors.New("a key excludes --selector, --field-selector and --index")}
		}
		if len(s.namespaces) > 1 {
			return &cli.UsageError{Err: fmt.Errorf("--namespace %s: one object is of one namespace", strings.Join(s.namespaces, ","))}
		}
		if namespace, _, has := strings.Cut(s.key, "/"); has && len(s.namespaces) == 1 && s.namespaces[0] != namespace {
			return &cli.UsageError{Err: fmt.Errorf("--namespace %s and the key %s name two namespaces", s.namespaces[0], s.key)}
		}
	}
	if slices.Contains(s.namespaces, "") {
		return &cli.UsageError{Err: errors.New("--namespace: the name of one is empty")}
	}
	if s.allNamespaces {
		s.namespaces = nil
	}
	if s.index != "" && !strings.Contains(s.index, "=") {
		return &cli.UsageError{Err: fmt.Errorf("--index %q: want name=value", s.index)}
	}
	if s.sortBy != "" {
		if err := show.CheckPath(s.sortBy); err != nil {
			return &cli.UsageError{Err: fmt.Errorf("--sort-by: %w", err)}
		}
	}
	return show.CheckOutput(s.output)
}

func (s *selection) consistency() *indexv1.Consistency {
	if s.atLeast == "" {
		return nil
	}
	return &indexv1.Consistency{AtLeast: &deltav1.Revision{ResourceVersion: s.atLeast}}
}

func (s *selection) view() indexv1.View {
	if s.sortBy == "" && (s.output == "name" || s.output == "keys") {
		return indexv1.View_VIEW_KEYS
	}
	return indexv1.View_VIEW_FULL
}

// NewGet is the command "get".
func NewGet() *cobra.Command {
	var s selection
	var watch, changesOnly bool
	cmd := &cobra.Command{
		Use:   "get COLLECTION [KEY]",
		Short: "Show objects of a collection",
		Long: `Show objects of a collection, answered from the index's memory.

COLLECTION is a name such as pods, jobs.batch or dev/pods.v1, or as kubectl has it: pod, po,
deploy and the short names of custom resources; "deltaplane get" with an unknown name lists
those there are. KEY is namespace/name, or name for cluster-scoped objects, together with
--namespace, and in the namespace default.

An object whose newest version could not be read is an error that names its key; of a list
the others are shown before it. With -o keys and -o name such keys stand among the others.

Tables have kubectl's columns. Those of a custom resource are its definition's where
customresourcedefinitions are mirrored.

Paths are those of kubectl: -o jsonpath sees one object where a KEY is given, and else a list
whose objects are its items; -o custom-columns and --sort-by see one object at a time.`,
		Example: `  deltaplane get pods
  deltaplane get pods -n default -l job-name=hello
  deltaplane get pods --index node=node-1 -o keys
  deltaplane get pods -n shop -n billing
  deltaplane get job hello -o yaml
  deltaplane get jobs default/hello -o yaml
  deltaplane get pods --sort-by .metadata.creationTimestamp
  deltaplane get pods -o custom-columns=NAME:.metadata.name,IMAGES:.spec.containers[*].image
  deltaplane get pods -o jsonpath='{range .items[*]}{.metadata.name}{"\n"}{end}'`,
		Args: cli.Args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := s.read(a); err != nil {
				return err
			}
			if watch || changesOnly {
				if s.sortBy != "" {
					return &cli.UsageError{Err: errors.New("--sort-by excludes --watch: changes are shown as they come")}
				}
				return runWatch(cmd, &s, changesOnly)
			}
			return runGet(cmd, &s)
		},
	}
	s.register(cmd)
	cmd.Flags().StringVar(&s.sortBy, "sort-by", "", "order by what objects have at this `path`, for example .metadata.creationTimestamp")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "then follow the changes, as \"deltaplane watch\" does")
	cmd.Flags().BoolVar(&changesOnly, "watch-only", false, "follow the changes, without the present state")
	return cmd
}

func runGet(cmd *cobra.Command, s *selection) error {
	conn, err := cli.Dial(s.DialFlags.Index, s.Config)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := cli.ContextWithTimeout(cmd, s.Timeout)
	defer cancel()
	index := indexv1.NewIndexServiceClient(conn)
	if err := s.resolve(ctx, index); err != nil {
		return err
	}
	p := show.NewPrinter(cmd.OutOrStdout(), s.output, s.collection, s.noHeaders)
	p.Columns = s.columns(ctx, index)

	if s.key != "" {
		answer, err := index.Get(ctx, &indexv1.GetRequest{
			Collection: s.collection, Key: s.key, View: s.view(), Consistency: s.consistency(),
		})
		if err != nil {
			return s.missed(err)
		}
		p.Single = true
		p.Add(answer.GetObject())
		return p.Flush()
	}
	o, err := s.options()
	if err != nil {
		return err
	}
	var unread []string
	add := p.Add
	var held []*indexv1.Object
	if s.sortBy != "" {
		add = func(o *indexv1.Object, _ ...string) { held = append(held, o) }
	}
	for obj, err := range client.NewIndex(conn).All(ctx, s.collection, o) {
		switch {
		case err != nil:
			return cli.Plain(err)
		case obj.Quarantined && s.view() == indexv1.View_VIEW_FULL: // of the others no more than the key is shown
			unread = append(unread, obj.Key)
		default:
			add(object(obj))
		}
	}
	if err := s.sorted(held, p.Add); err != nil {
		return err
	}
	if err := p.Flush(); err != nil {
		return err
	}
	if len(unread) > 0 {
		return s.missing(unread, p.Count)
	}
	if p.Count == 0 && (s.output == "table" || s.output == "wide") {
		where := ""
		if len(s.namespaces) > 0 {
			where = " in the namespace " + strings.Join(s.namespaces, ", ") + "; -A looks in all"
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "no objects found"+where)
	}
	return nil
}

// sorted adds the objects that were held back in their order.
func (s *selection) sorted(held []*indexv1.Object, add func(*indexv1.Object, ...string)) error {
	if len(held) == 0 {
		return nil
	}
	payloads := make([][]byte, len(held))
	for i, o := range held {
		payloads[i] = o.GetPayload()
	}
	order, err := show.Order(s.sortBy, payloads)
	if err != nil {
		return &cli.UsageError{Err: fmt.Errorf("--sort-by: %w", err)}
	}
	for _, i := range order {
		add(held[i])
	}
	return nil
}

// missing names the objects that could not be read, beside so many that were shown.
func (s *selection) missing(keys []string, shown int) error {
	names := make([]string, 0, len(keys))
	for _, key := range keys {
		names = append(names, show.Printable(key))
	}
	return &cli.HintError{
		Err:  fmt.Errorf("%d of %d objects could not be read: %s", len(keys), shown+len(keys), show.Few(names)),
		Hint: fmt.Sprintf("deltaplane get %s %s tells why", s.collection, names[0]),
	}
}
