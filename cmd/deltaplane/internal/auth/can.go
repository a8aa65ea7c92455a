package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/core/access"
	accessv1 "github.com/deltaplane/deltaplane/proto/deltaplane/access/v1"
)

// NewAuth is the command "auth" and those below it.
func NewAuth() *cobra.Command {
	cmd := &cobra.Command{Use: "auth", Short: "Look at what callers may do"}
	cmd.AddCommand(newCanI())
	cli.Group(cmd)
	return cmd
}

// refusedError ends a command whose answer is no.
type refusedError struct{ reason string }

func (e refusedError) Error() string {
	if e.reason == "" {
		return "no"
	}
	return "no: " + e.reason
}

// Is makes it a refusal.
func (e refusedError) Is(target error) bool { return target == cli.ErrRefused }

// own are the resources of Deltaplane's own, and which service decides about them.
var own = map[string]string{"queues": queueService, "backoffs": queueService, "reflections": reflectorService, "indexes": indexService}

func newCanI() *cobra.Command {
	var a asked
	var req accessv1.CanIRequest
	cmd := &cobra.Command{
		Use:   "can-i VERB RESOURCE[.GROUP][/NAME]",
		Short: "Tell whether you may do something",
		Long: `Tell whether you may do something at this moment, as the service asks the cluster and its
policy. The answer is yes, or no with exit code 5.

  deltaplane auth can-i list pods -n web
  deltaplane auth can-i watch jobs.batch
  deltaplane auth can-i get pods/web-0 -n web
  deltaplane auth can-i work queues/team-a-jobs

queues, backoffs, reflections and indexes are of the group deltaplane.io. Queues have the verbs
add, work, get, list and administer.`,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			service, err := read(&req, args[0], args[1])
			if err != nil {
				return &cli.UsageError{Err: err}
			}
			if cmd.Flags().Changed("service") {
				service = a.service
			}
			return a.call(cmd, service, func(ctx context.Context, c accessv1.AccessServiceClient) error {
				answer, err := c.CanI(ctx, &req)
				if err != nil {
					return err
				}
				if a.output == "json" {
					err = show.PrintMessage(cmd.OutOrStdout(), answer)
				} else if answer.GetAllowed() {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), "yes")
				}
				if err == nil && !answer.GetAllowed() {
					return refusedError{answer.GetReason()}
				}
				return err
			})
		},
	}
	a.register(cmd.Flags(), "", "index, queue or reflector (default: the one that has the resource)")
	cmd.Flags().StringVarP(&req.Namespace, "namespace", "n", "", "`namespace` of the objects (default: all)")
	cmd.Flags().StringVar(&req.Cluster, "of-cluster", "", "`name` of the cluster that has the resource (default: the only one)")
	cmd.Flags().StringVar(&req.Subresource, "subresource", "", "`name` of a subresource, such as log")
	return cmd
}

// read fills in what is wanted, and says which service decides about it.
func read(req *accessv1.CanIRequest, verb, text string) (service string, err error) {
	resource, name, named := strings.Cut(text, "/")
	switch {
	case verb == "":
		return "", errors.New("the verb is empty")
	case resource == "" || named && name == "":
		return "", fmt.Errorf("resource %q: want RESOURCE[.GROUP][/NAME]", text)
	}
	req.Verb, req.Name = verb, name
	req.Resource, req.Group, _ = strings.Cut(resource, ".")
	if version, group, _ := strings.Cut(req.GetGroup(), "."); isVersion(version) { // pods.v1, jobs.v1.batch
		req.Version, req.Group = version, group
	}
	if req.GetGroup() == "" && own[req.GetResource()] != "" {
		req.Group = access.Group
	}
	if req.GetGroup() == access.Group && own[req.GetResource()] != "" {
		return own[req.GetResource()], nil
	}
	return indexService, nil
}

// isVersion reports whether a word is a version of an API, as v1 and v2beta1 are.
func isVersion(word string) bool {
	rest, ok := strings.CutPrefix(word, "v")
	return ok && rest != "" && strings.Trim(rest[:1], "0123456789") == "" && !slices.ContainsFunc([]byte(rest), func(b byte) bool { return b == '-' })
}
