package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// flow is the state of the whole pipeline at one moment. An error stands in for what could not be
// asked.
type flow struct {
	reflections    *reflectorv1.ListReflectionsResponse
	collections    *indexv1.ListCollectionsResponse
	queues         *queuev1.ListQueuesResponse
	reflectorError error
	indexError     error
	queueError     error
}

// NewStatus is the command "status".
func NewStatus() *cobra.Command {
	var d cli.DialFlags
	var output string
	var follow time.Duration
	var onlyReflections bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the flow and its lags on one screen",
		Long: `Show what each part says of itself, in the order of the flow: reflections (API server to
log), collections (log to index) and queues. Exits 4 when a part cannot be reached or a
collection is not being served.

With --reflections only the first part, in full: progress of running lists, leaders, terms,
forms, errors with the next try, quarantined keys.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for {
				f, err := readFlow(cmd.Context(), &d)
				if err != nil {
					return err
				}
				switch {
				case onlyReflections && f.reflectorError != nil:
					return f.reflectorError
				case onlyReflections && output == "json":
					err = show.PrintMessage(cmd.OutOrStdout(), f.reflections)
				case onlyReflections:
					err = printReflections(cmd.OutOrStdout(), f.reflections.GetReflections())
				case output == "json":
					err = f.printJSON(cmd.OutOrStdout())
				default:
					err = f.print(cmd.OutOrStdout())
				}
				if err != nil {
					return err
				}
				if follow <= 0 {
					if onlyReflections {
						return nil
					}
					return f.verdict()
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(follow):
					fmt.Fprintln(cmd.OutOrStdout())
				}
			}
		},
	}
	d.Register(cmd.Flags())
	show.RegisterOutput(cmd, &output)
	cmd.Flags().BoolVar(&onlyReflections, "reflections", false, "only the reflections, in full")
	cmd.Flags().DurationVarP(&follow, "watch", "w", 0, "show it again every `interval` until interrupted")
	return cmd
}

func readFlow(ctx context.Context, d *cli.DialFlags) (*flow, error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	var conns []*cli.CalledConn
	for _, target := range []string{d.Reflector, d.Index, d.Queue} {
		conn, err := cli.Dial(target, d.Config)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	var f flow
	var wg sync.WaitGroup
	wg.Go(func() {
		f.reflections, f.reflectorError = reflectorv1.NewReflectorServiceClient(conns[0]).ListReflections(ctx, &reflectorv1.ListReflectionsRequest{})
	})
	wg.Go(func() {
		f.collections, f.indexError = indexv1.NewIndexServiceClient(conns[1]).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	})
	wg.Go(func() {
		f.queues, f.queueError = queuev1.NewQueueAdminServiceClient(conns[2]).ListQueues(ctx, &queuev1.ListQueuesRequest{Partial: true})
	})
	wg.Wait()
	return &f, nil
}

// oneLine is an error as a cell of a table.
func oneLine(err error) string { return strings.ReplaceAll(cli.Message(err), "\n", "; ") }

func (f *flow) print(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "REFLECTOR\tSTATE\tREVISION\tOBJECTS\tLAG\tPENDING\tRELISTS\tQUARANTINED\tERROR")
	if f.reflectorError != nil {
		fmt.Fprintf(t, "-\tunreachable: %s\n", oneLine(f.reflectorError))
	}
	for _, r := range f.reflections.GetReflections() {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%d\t%d\t%s\n", r.GetCollection(),
			show.ReflectionState(r),
			show.Dash(r.GetRevision().GetResourceVersion()), r.GetObjects(), r.GetLag().AsDuration().Round(10*time.Microsecond),
			r.GetPending(), r.GetRelists(), r.GetQuarantinedTotal(), show.Dash(r.GetLastError()))
	}
	fmt.Fprintln(t, "\nINDEX\tSTATE\tREVISION\tOBJECTS\tLAG\tHEARD\tBYTES\tMEMORY\tTIER\tWATCHERS\tLACKS\tQUARANTINED\tERROR")
	if f.indexError != nil {
		fmt.Fprintf(t, "-\tunreachable: %s\n", oneLine(f.indexError))
	}
	for _, c := range f.collections.GetCollections() {
		heard := "-"
		if c.GetLiveAt() != nil {
			heard = show.ShortDuration(time.Since(c.GetLiveAt().AsTime())) + " ago"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%s\t%d\t%d\t%s\t%d\t%s\t%d\t%s\n", c.GetCollection(), show.CollectionState(c),
			show.Dash(c.GetRevision().GetResourceVersion()), c.GetObjects(), c.GetLagRecords(), heard, c.GetBytes(),
			c.GetMemoryBytes(), strings.ToLower(strings.TrimPrefix(c.GetTier().String(), "TIER_")), c.GetWatchers(), lacks(c), c.GetQuarantined(), show.Dash(collectionError(c)))
	}
	fmt.Fprintln(t, "\n"+show.QueueHeader)
	if f.queueError != nil {
		fmt.Fprintf(t, "-\tunreachable: %s\n", oneLine(f.queueError))
	}
	for _, q := range f.queues.GetQueues() {
		fmt.Fprintln(t, show.QueueRow(q))
	}
	return t.Flush()
}

// collectionError is what is wrong with a collection, or else what its replica does not know of the
// log.
func collectionError(c *indexv1.CollectionStatus) string {
	if c.GetLastError() != "" || len(c.GetUnknown()) == 0 {
		return c.GetLastError()
	}
	return "passes over what a later build writes: " + strings.Join(c.GetUnknown(), ", ")
}

// lacks are the fields that objects lack and that a write of one would remove at the API server.
func lacks(c *indexv1.CollectionStatus) string {
	d := c.GetDropped()
	if d == nil {
		return "?"
	}
	if d.GetMetadataOnly() {
		return "all but metadata"
	}
	return show.Dash(strings.Join(delta.RemovedByWrite(d.GetPaths()), ","))
}

func (f *flow) printJSON(out io.Writer) error {
	document := map[string]json.RawMessage{}
	marshal := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}
	var err error
	if document["reflector"], err = marshal.Marshal(f.reflections); err != nil {
		return err
	}
	if document["index"], err = marshal.Marshal(f.collections); err != nil {
		return err
	}
	if document["queue"], err = marshal.Marshal(f.queues); err != nil {
		return err
	}
	return show.PrintJSON(out, document)
}

// verdict is nil when every part answered and every collection is served.
func (f *flow) verdict() error {
	var faults []error
	for _, part := range []struct {
		name string
		err  error
	}{{"reflector", f.reflectorError}, {"index", f.indexError}, {"queue", f.queueError}} {
		if part.err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", part.name, part.err))
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	var waiting []string
	for _, c := range f.collections.GetCollections() {
		if !c.GetSynced() {
			waiting = append(waiting, c.GetCollection())
		}
	}
	if len(waiting) > 0 {
		return status.Error(codes.Unavailable, "not synced: "+strings.Join(waiting, ", "))
	}
	return nil
}
