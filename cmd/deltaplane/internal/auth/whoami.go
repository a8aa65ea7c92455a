package auth

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	accessv1 "github.com/deltaplane/deltaplane/proto/deltaplane/access/v1"
)

// asked is the service that a command asks.
type asked struct {
	dial    cli.DialFlags
	service string
	output  string
}

const (
	indexService     = "index"
	queueService     = "queue"
	reflectorService = "reflector"
)

func (a *asked) register(flags *pflag.FlagSet, service, about string) {
	a.dial.Register(flags)
	flags.StringVar(&a.service, "service", service, "`service` that is asked: "+about)
	flags.StringVarP(&a.output, "output", "o", "", "`format` of the output: json for programs")
}

// call runs fn with a client of the service.
func (a *asked) call(cmd *cobra.Command, service string, fn func(context.Context, accessv1.AccessServiceClient) error) error {
	if a.output != "" && a.output != "json" {
		return &cli.UsageError{Err: fmt.Errorf("--output %q: want json, or none", a.output)}
	}
	target, ok := map[string]string{indexService: a.dial.Index, queueService: a.dial.Queue, reflectorService: a.dial.Reflector}[service]
	if !ok {
		return &cli.UsageError{Err: fmt.Errorf("--service %q: want index, queue or reflector", service)}
	}
	conn, err := cli.Dial(target, a.dial.Config)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := cli.ContextWithTimeout(cmd, a.dial.Timeout)
	defer cancel()
	return fn(ctx, accessv1.NewAccessServiceClient(conn))
}

// NewWhoAmI is the command "whoami".
func NewWhoAmI() *cobra.Command {
	var a asked
	cmd := &cobra.Command{
		Use:   "whoami",
		Short: "Tell who you are for a service",
		Long: `Tell who you are for a service, and for each cluster that decides about its collections.
A caller is who the bearer token of --token-file or the client certificate of --tls-cert says.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd, a.service, func(ctx context.Context, c accessv1.AccessServiceClient) error {
				answer, err := c.WhoAmI(ctx, &accessv1.WhoAmIRequest{})
				if err != nil {
					return err
				}
				if a.output == "json" {
					return show.PrintMessage(cmd.OutOrStdout(), answer)
				}
				printIdentity(cmd.OutOrStdout(), answer)
				return nil
			})
		},
	}
	a.register(cmd.Flags(), indexService, "index, queue or reflector")
	return cmd
}

var sources = map[accessv1.Source]string{
	accessv1.Source_SOURCE_CERTIFICATE: "client certificate", accessv1.Source_SOURCE_TOKEN_FILE: "token file of the service",
	accessv1.Source_SOURCE_CLUSTER: "token review",
}

func printIdentity(out io.Writer, w *accessv1.WhoAmIResponse) {
	row := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(out, "%-10s %s\n", name+":", value)
		}
	}
	id := w.GetIdentity()
	if id.GetUser() == "" {
		row("User", "nobody: the service authenticates no names")
	}
	row("User", id.GetUser())
	row("UID", id.GetUid())
	row("Groups", strings.Join(id.GetGroups(), ", "))
	row("Cluster", id.GetCluster())
	row("By", sources[w.GetSource()])
	if !w.GetLimited() {
		row("Rights", "everything: the service limits nobody")
	}
	for _, c := range w.GetClusters() {
		if c.GetCluster() != id.GetCluster() {
			row("Counts as", fmt.Sprintf("%s in cluster %s (%s)", c.GetUser(), c.GetCluster(), strings.Join(c.GetGroups(), ", ")))
		}
	}
}
