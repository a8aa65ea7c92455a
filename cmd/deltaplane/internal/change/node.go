package change

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/fleet"
)

// NewNode is the command "node" and those below it.
func NewNode() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Make simulated nodes fail and come back",
		Long: `Make simulated nodes fail and come back, those of "up" and of "serve node
--simulated-nodes": the agent of a stopped node falls silent, and its containers go on. It is
done by the annotation ` + fleet.StoppedAnnotation + ` of the node, which agents of real nodes
do not heed.`,
	}
	cmd.AddCommand(
		nodeCommand("stop NAME...", "Make node agents fall silent", true),
		nodeCommand("start NAME...", "Let node agents report again", false),
		newNodeFlap(),
	)
	cli.Group(cmd)
	return cmd
}

// NodeResource is the resource of nodes.
var NodeResource = kube.Resource{Version: "v1", Name: "nodes", Kind: "Node"}

func nodeCommand(use, short string, stop bool) *cobra.Command {
	var k cli.KubeFlags
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			client, err := k.Load()
			if err != nil {
				return err
			}
			for _, name := range names {
				if err := setStopped(cmd.Context(), client, name, stop); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "node/%s %s\n", name, said(stop))
			}
			return nil
		},
	}
	k.Register(cmd.Flags())
	return cmd
}

func said(stop bool) string {
	if stop {
		return "stopped"
	}
	return "started"
}

// setStopped sets or removes the annotation.
func setStopped(ctx context.Context, client *kube.Client, name string, stop bool) error {
	var value any
	if stop {
		value = "true"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{fleet.StoppedAnnotation: value}}})
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, kube.Ref{Resource: NodeResource, Name: name}, kube.MergePatch, patch, kube.WriteOptions{})
	return err
}

func newNodeFlap() *cobra.Command {
	var k cli.KubeFlags
	var down, up time.Duration
	var times int
	cmd := &cobra.Command{
		Use: "flap NAME", Short: "Stop and start a node agent again and again; it ends started",
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			if down <= 0 || up <= 0 || times < 0 {
				return &cli.UsageError{Err: fmt.Errorf("--down %v and --up %v must be above zero, and --times %d not below", down, up, times)}
			}
			client, err := k.Load()
			if err != nil {
				return err
			}
			return flap(cmd, client, names[0], down, up, times)
		},
	}
	k.Register(cmd.Flags())
	cmd.Flags().DurationVar(&down, "down", 60*time.Second, "how long it is silent each time")
	cmd.Flags().DurationVar(&up, "up", 20*time.Second, "how long it reports in between")
	cmd.Flags().IntVar(&times, "times", 0, "how often; 0 until interrupted")
	return cmd
}

// flap ends with a started node, also when it is interrupted.
func flap(cmd *cobra.Command, client *kube.Client, name string, down, up time.Duration, times int) error {
	ctx := cmd.Context()
	step := func(ctx context.Context, stop bool, wait time.Duration) (bool, error) {
		if err := setStopped(ctx, client, name, stop); err != nil {
			return false, err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "node/%s %s\n", name, said(stop))
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return false, nil
		case <-timer.C:
			return true, nil
		}
	}
	for i := 0; times == 0 || i < times; i++ {
		on, err := step(ctx, true, down)
		if err != nil {
			return err
		}
		if !on {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_, err = step(last, false, 0)
			return err
		}
		if on, err = step(ctx, false, up); err != nil || !on {
			return err
		}
	}
	return nil
}
