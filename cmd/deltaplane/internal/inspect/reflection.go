package inspect

import (
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/internal/rpc"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// NewReflection is the command "reflection" and those below it.
func NewReflection() *cobra.Command {
	cmd := &cobra.Command{Use: "reflection", Short: "Look at what is mirrored from API servers, add to it and remove from it"}
	cmd.AddCommand(newReflectionLs(), newReflectionAdd(), newReflectionRemove(), newReflectionRelist())
	cli.Group(cmd)
	return cmd
}

// reflections runs fn with a client of the reflector service.
func reflections(d *cli.DialFlags, fn func(reflectorv1.ReflectorServiceClient) error) error {
	conn, err := cli.Dial(d.Reflector, d.Config)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := reflectorv1.NewReflectorServiceClient(conn)
	err = fn(client)
	if rpc.Code(err) == codes.DeadlineExceeded {
		return &cli.HintError{Err: err, Hint: fmt.Sprintf("the reflector at %s did not answer within %v, see --timeout; whether it did what was asked, deltaplane reflection ls tells", d.Reflector, d.Timeout)}
	}
	return err
}

func newReflectionLs() *cobra.Command {
	var d cli.DialFlags
	var output string
	cmd := &cobra.Command{
		Use:     "ls [COLLECTION]",
		Aliases: []string{"list"},
		Short:   "List what is mirrored and how it is doing",
		Args:    cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return reflections(&d, func(c reflectorv1.ReflectorServiceClient) error {
				ctx, cancel := cli.ContextWithTimeout(cmd, d.Timeout)
				defer cancel()
				req := &reflectorv1.ListReflectionsRequest{}
				if len(a) == 1 {
					req.Collection = a[0]
				}
				answer, err := c.ListReflections(ctx, req)
				if err != nil {
					return err
				}
				if output == "json" {
					return show.PrintMessage(cmd.OutOrStdout(), answer)
				}
				return printReflections(cmd.OutOrStdout(), answer.GetReflections())
			})
		},
	}
	d.Register(cmd.Flags())
	show.RegisterOutput(cmd, &output)
	return cmd
}

func newReflectionAdd() *cobra.Command {
	var d cli.DialFlags
	var output string
	var replace, unserved bool
	var namespaces []string
	spec := &reflectorv1.ReflectionSpec{}
	cmd := &cobra.Command{
		Use:   "add RESOURCE",
		Short: "Mirror one more resource, in every reflector process and permanently",
		Long: `Mirror one more resource, in every reflector process and permanently. Adding the same again
changes nothing.

RESOURCE is resource[.version][.group]; what is left out is found by discovery, and what the API
server does not serve is refused unless --unserved is given. "*" is everything
that can be watched, except secrets, the copy of events in events.k8s.io, and what is named beside it.

Several namespaces are read from one list and one watch of the whole cluster, and the others left
out: that needs permission to list and watch the resource in all of them. Anyone who has it only for
some gives the cluster a name for each, with a reflection of that namespace.

A resource of a cluster has one form. A second one, such as the pods of a namespace without their
spec, needs the cluster under a second name; see deltaplane serve reflector --help.`,
		Example: `  deltaplane reflection add configmaps -n kube-system
  deltaplane reflection add pods -n shop -n billing --replace
  deltaplane reflection add deployments.apps --selector 'team in (a, b)' --drop-field status.conditions
  deltaplane reflection add configmaps --metadata-only
  deltaplane reflection add events.v1 --field-selector involvedObject.kind=Pod
  deltaplane reflection add '*' --cluster staging`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			spec.Resource = a[0]
			if spec.Namespaces = namespaces; len(namespaces) == 1 {
				spec.Namespace, spec.Namespaces = namespaces[0], nil
			}
			return reflections(&d, func(c reflectorv1.ReflectorServiceClient) error {
				ctx, cancel := cli.ContextWithTimeout(cmd, d.Timeout)
				defer cancel()
				answer, err := c.AddReflection(ctx, &reflectorv1.AddReflectionRequest{Spec: spec, Replace: replace, Served: !unserved})
				if rpc.Reason(err) == "RESOURCE_NOT_SERVED" {
					return &cli.HintError{Err: err, Hint: "nothing was added; --unserved adds it all the same, to be mirrored as soon as it is served"}
				}
				if rpc.Reason(err) == "REFLECTION_DIFFERS" && !replace {
					return &cli.HintError{Err: err, Hint: "--replace gives what was added another form; what --resources names is changed there;\na second form needs the cluster under a second name"}
				}
				if err != nil {
					return err
				}
				if output == "json" {
					return show.PrintMessage(cmd.OutOrStdout(), answer)
				}
				word := "added"
				if !answer.GetAdded() {
					word = "is there already:"
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", word, specText(answer.GetSpec()))
				return err
			})
		},
	}
	d.Register(cmd.Flags())
	show.RegisterOutput(cmd, &output)
	flags := cmd.Flags()
	flags.StringVar(&spec.Cluster, "cluster", "", "`name` of the cluster; needed when there are several")
	flags.StringSliceVarP(&namespaces, "namespace", "n", nil, "only this `namespace`; several, repeated or with commas, need permission for the whole cluster")
	flags.StringVarP(&spec.LabelSelector, "selector", "l", "", "only objects that match this label `selector`")
	flags.StringVar(&spec.FieldSelector, "field-selector", "", "only objects that match this field `selector` of the API server")
	flags.BoolVar(&spec.MetadataOnly, "metadata-only", false, "mirror metadata, no spec and no status")
	flags.StringArrayVar(&spec.DropFields, "drop-field", nil, "take the field at this `path` out of each object; may be repeated")
	flags.BoolVar(&spec.KeepManagedFields, "keep-managed-fields", false, "leave metadata.managedFields in")
	flags.BoolVar(&spec.DropLastApplied, "drop-last-applied", false, "take kubectl's last-applied-configuration out; objects cannot be written back then")
	flags.StringToStringVar(&spec.Hints, "hint", nil, "index hints in the headers of records, as `name=path`")
	flags.StringSliceVar(&spec.Labels, "header-label", nil, "labels in the headers of records, by `name`")
	flags.BoolVar(&unserved, "unserved", false, "add a resource that the API server does not serve yet, such as that of a CustomResourceDefinition to come")
	flags.BoolVar(&replace, "replace", false, "replace an added reflection of the resource that has another form")
	return cmd
}

func newReflectionRemove() *cobra.Command {
	var d cli.DialFlags
	req := &reflectorv1.RemoveReflectionRequest{}
	cmd := &cobra.Command{
		Use:     "remove RESOURCE",
		Aliases: []string{"rm"},
		Short:   "Stop mirroring what was added",
		Long: `Stop mirroring what was added, in every reflector process. What is in the log stays readable, and
grows old, unless the log is deleted as well.`,
		Example: `  deltaplane reflection remove configmaps --delete-log`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			req.Resource = a[0]
			return reflections(&d, func(c reflectorv1.ReflectorServiceClient) error {
				ctx, cancel := cli.ContextWithTimeout(cmd, d.Timeout)
				defer cancel()
				answer, err := c.RemoveReflection(ctx, req)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", specText(answer.GetSpec()))
				return err
			})
		},
	}
	d.Register(cmd.Flags())
	cmd.Flags().StringVar(&req.Cluster, "cluster", "", "`name` of the cluster; needed when there are several")
	cmd.Flags().BoolVar(&req.DeleteLog, "delete-log", false, "delete the log as well")
	return cmd
}

func newReflectionRelist() *cobra.Command {
	var d cli.DialFlags
	cmd := &cobra.Command{
		Use:   "relist COLLECTION",
		Short: "List a collection again and publish what differs",
		Args:  cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return reflections(&d, func(c reflectorv1.ReflectorServiceClient) error {
				ctx, cancel := cli.ContextWithTimeout(cmd, d.Timeout)
				defer cancel()
				answer, err := c.Relist(ctx, &reflectorv1.RelistRequest{Collection: a[0]})
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "a list of %s was asked for; deltaplane reflection ls shows how far it is\n", answer.GetCollection())
				return err
			})
		},
	}
	d.Register(cmd.Flags())
	return cmd
}
