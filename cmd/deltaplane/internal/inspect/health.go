package inspect

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// NewHealth is the command "health".
func NewHealth() *cobra.Command {
	var timeout time.Duration
	var service string
	var config rpc.DialConfig
	cmd := &cobra.Command{
		Use:   "health ADDRESS",
		Short: "Ask a service for its gRPC health",
		Long: `Ask a service for its gRPC health and exit 0 when it is SERVING, 4 when it is not or
cannot be reached. A URL is asked by HTTP instead and must answer 200, as /readyz of a
service's admin port does. It is the health check of the container images.`,
		Example: `  deltaplane health 127.0.0.1:7441
  deltaplane health http://127.0.0.1:7454/readyz`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if strings.HasPrefix(a[0], "http://") || strings.HasPrefix(a[0], "https://") {
				ctx, cancel := cli.ContextWithTimeout(cmd, timeout)
				defer cancel()
				return httpHealth(ctx, a[0], config, cmd.OutOrStdout())
			}
			conn, err := cli.Dial(a[0], config)
			if err != nil {
				return err
			}
			defer conn.Close()
			ctx, cancel := cli.ContextWithTimeout(cmd, timeout)
			defer cancel()
			answer, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), answer.GetStatus())
			if answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
				return status.Error(codes.Unavailable, a[0]+" is "+answer.GetStatus().String())
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Second, "how long to wait for an answer")
	cmd.Flags().StringVar(&service, "service", "", "full `name` of one gRPC service (default: the server as a whole)")
	cli.RegisterDial(cmd.Flags(), &config)
	return cmd
}

// httpHealth asks a URL; anything but 200 is unavailable, with the page's text as the reason.
func httpHealth(ctx context.Context, url string, config rpc.DialConfig, out io.Writer) error {
	conf, err := certs.Client(config.TLS, config.ServerName)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	transport := &http.Transport{TLSClientConfig: conf}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
	if answer.StatusCode != http.StatusOK {
		return status.Errorf(codes.Unavailable, "%s answered %s: %s", url, answer.Status, strings.TrimSpace(string(text)))
	}
	fmt.Fprintln(out, strings.TrimSpace(string(text)))
	return nil
}
