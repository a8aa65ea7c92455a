package queues

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// keysPerCall is how many keys one call may name.
const keysPerCall = 1000

// heldError says that keys were left alone because somebody holds them.
type heldError struct{ held, all int }

func (e *heldError) Error() string {
	return fmt.Sprintf("%d of %d keys are held by a worker and were left alone; \"queue release\" takes them away", e.held, e.all)
}

// GRPCStatus gives it the exit code of a refused call.
func (e *heldError) GRPCStatus() *status.Status {
	return status.New(codes.FailedPrecondition, e.Error())
}

// keysCommand does something with the keys named, or with all in a state, and says what became of
// each.
func keysCommand(cmd *cobra.Command, states string, call func(*cobra.Command, services, string, []string) ([]*queuev1.ItemResult, error)) *cobra.Command {
	var state, output string
	cmd.Args = cli.Args(cobra.MinimumNArgs(1))
	cmd = queueCommand(cmd, func(cmd *cobra.Command, client services, a []string) error {
		queue, keys := a[0], a[1:]
		if (len(keys) == 0) == (state == "") {
			return &cli.UsageError{Err: errors.New("name keys, or a --state, and not both")}
		}
		if state != "" {
			wanted, err := parseState(state)
			if err != nil {
				return err
			}
			if keys, err = keysIn(cmd, client, queue, wanted); err != nil {
				return err
			}
		}
		all := &queuev1.RetryNowResponse{} // the answers of these calls are alike
		for rest := keys; len(rest) > 0; {
			n := min(len(rest), keysPerCall)
			results, err := call(cmd, client, queue, rest[:n])
			if err != nil {
				return err
			}
			all.Results, rest = append(all.Results, results...), rest[n:]
		}
		if err := printResults(cmd.OutOrStdout(), all, output); err != nil {
			return err
		}
		held := 0
		for _, r := range all.GetResults() {
			if r.GetStatus() == queuev1.ItemStatus_ITEM_STATUS_HELD {
				held++
			}
		}
		if held > 0 {
			return &heldError{held, len(keys)}
		}
		if state != "" {
			return nil // keys may have moved on since they were listed
		}
		var unchanged []string
		for _, r := range all.GetResults() {
			if r.GetStatus() == queuev1.ItemStatus_ITEM_STATUS_UNCHANGED {
				unchanged = append(unchanged, r.GetKey())
			}
		}
		return unknownKeys(cmd, client, queue, unchanged)
	})
	show.RegisterOutput(cmd, &output)
	registerState(cmd, &state, "every key in this `state`, in place of KEY: "+states)
	return cmd
}

// unknownKeys is an error that names those of which the queue knows nothing.
func unknownKeys(cmd *cobra.Command, client services, queue string, keys []string) error {
	var unknown []string
	for _, key := range keys {
		answer, err := client.Inspect(cmd.Context(), &queuev1.InspectRequest{Queue: queue, Key: key})
		if err != nil {
			return err
		}
		if nothingKnown(answer) {
			unknown = append(unknown, fmt.Sprintf("%q", key))
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return &cli.HintError{
		Err:  status.Errorf(codes.NotFound, "queue %s knows nothing of the key %s: it is not queued, and nothing is kept of it", queue, show.Few(unknown)),
		Hint: fmt.Sprintf(`"deltaplane queue items %s" lists the keys it holds, "deltaplane queue add" adds one`, queue),
	}
}

// nothingKnown reports that a key has no state, and that nothing happened to it lately as far as
// the server knows.
func nothingKnown(answer *queuev1.InspectResponse) bool {
	if answer.GetItem().GetState() != queuev1.State_STATE_IDLE || len(answer.GetHistory()) > 0 {
		return false
	}
	rest := proto.CloneOf(answer.GetItem())
	rest.Key, rest.State = "", queuev1.State_STATE_UNSPECIFIED
	return proto.Size(rest) == 0
}

// keysIn reads the keys in a state.
func keysIn(cmd *cobra.Command, client services, queue string, state queuev1.State) ([]string, error) {
	var keys []string
	for token := ""; ; {
		answer, err := client.ListItems(cmd.Context(), &queuev1.ListItemsRequest{Queue: queue, State: state, PageSize: keysPerCall, PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, i := range answer.GetItems() {
			keys = append(keys, i.GetKey())
		}
		if token = answer.GetNextPageToken(); token == "" {
			return keys, nil
		}
	}
}

func printResults(out io.Writer, all *queuev1.RetryNowResponse, output string) error {
	if output == "json" {
		return show.PrintMessage(out, all)
	}
	for _, r := range all.GetResults() {
		if _, err := fmt.Fprintln(out, show.Printable(r.GetKey()), show.EnumText(r.GetStatus().String(), "ITEM_STATUS_")); err != nil {
			return err
		}
	}
	return nil
}

func newQueueRetry() *cobra.Command {
	return keysCommand(&cobra.Command{
		Use:   "retry QUEUE {KEY... | --state STATE}",
		Short: "Have delayed and dead keys run now",
		Long: `Have delayed and dead keys run now. A dead key's retries start over. Keys that are ready or
held, and have no delay pending, are left as they are.`,
		Example: `  deltaplane queue retry dev/job default/hello
  deltaplane queue retry dev/job --state dead`,
	}, "delayed, dead", func(cmd *cobra.Command, client services, queue string, keys []string) ([]*queuev1.ItemResult, error) {
		answer, err := client.RetryNow(cmd.Context(), &queuev1.RetryNowRequest{Queue: queue, Keys: keys})
		return answer.GetResults(), err
	})
}

func newQueueRelease() *cobra.Command {
	return keysCommand(&cobra.Command{
		Use:   "release QUEUE {KEY... | --state STATE}",
		Short: "Take keys away from the workers that hold them",
		Long: `Take keys away from the workers that hold them. Their leases are lost: whatever such a worker
still sends changes nothing, and its handler's context ends. The keys wait again at once,
and their retries are not counted. For a worker that hangs but still extends its lease;
"queue configure --max-processing" bounds that permanently.`,
		Example: `  deltaplane queue release dev/job default/hello`,
	}, "processing, dirty", func(cmd *cobra.Command, client services, queue string, keys []string) ([]*queuev1.ItemResult, error) {
		answer, err := client.ReleaseItems(cmd.Context(), &queuev1.ReleaseItemsRequest{Queue: queue, Keys: keys})
		return answer.GetResults(), err
	})
}

func newQueueDelete() *cobra.Command {
	return keysCommand(&cobra.Command{
		Use:   "delete QUEUE {KEY... | --state STATE}",
		Short: "Drop keys that are not held, and everything kept with them",
		Long: `Drop keys that are not held, and everything kept with them: delays, retries, barriers, saved
state and expectations. A key that is held is left alone, and the exit code is 5 then. A
controller that finds the key's object again adds it again.`,
		Example: `  deltaplane queue delete dev/job --state dead`,
	}, strings.Join(stateNames(), ", "), func(cmd *cobra.Command, client services, queue string, keys []string) ([]*queuev1.ItemResult, error) {
		answer, err := client.DeleteItems(cmd.Context(), &queuev1.DeleteItemsRequest{Queue: queue, Keys: keys})
		return answer.GetResults(), err
	})
}

func newQueueForget() *cobra.Command {
	return queueCommand(&cobra.Command{
		Use:   "forget QUEUE KEY...",
		Short: "Have the rate limiter forget the failures of keys",
		Long: `Have the rate limiter forget the failures of keys: the next retry waits as the first one. A
delay that is pending already stays; "queue retry" ends it.`,
		Example: `  deltaplane queue forget dev/job default/hello`,
		Args:    cli.Args(cobra.MinimumNArgs(2)),
	}, func(cmd *cobra.Command, client services, a []string) error {
		unknown := unknownKeys(cmd, client, a[0], a[1:])
		for rest := a[1:]; len(rest) > 0; {
			n := min(len(rest), keysPerCall)
			if _, err := client.Forget(cmd.Context(), &queuev1.ForgetRequest{Queue: a[0], Keys: rest[:n]}); err != nil {
				return err
			}
			for _, key := range rest[:n] {
				fmt.Fprintln(cmd.OutOrStdout(), show.Printable(key), "forgotten")
			}
			rest = rest[n:]
		}
		return unknown
	})
}

// gateCommand changes a queue by one call.
func gateCommand(cmd *cobra.Command, done string, call func(*cobra.Command, services, string) error) *cobra.Command {
	cmd.Args = cli.Args(cobra.ExactArgs(1))
	return queueCommand(cmd, func(cmd *cobra.Command, client services, a []string) error {
		if err := call(cmd, client, a[0]); err != nil {
			return err
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), a[0], done)
		return err
	})
}

func newQueuePause() *cobra.Command {
	return gateCommand(&cobra.Command{
		Use:   "pause QUEUE",
		Short: "Hand out no more keys",
		Long: `Hand out no more keys until "queue resume". Keys are still added, wait for their time, and
what workers hold they finish.`,
	}, "paused", func(cmd *cobra.Command, client services, queue string) error {
		_, err := client.PauseQueue(cmd.Context(), &queuev1.PauseQueueRequest{Queue: queue})
		return err
	})
}

func newQueueResume() *cobra.Command {
	return gateCommand(&cobra.Command{
		Use:   "resume QUEUE",
		Short: "Hand out keys again",
	}, "resumed", func(cmd *cobra.Command, client services, queue string) error {
		_, err := client.ResumeQueue(cmd.Context(), &queuev1.ResumeQueueRequest{Queue: queue})
		return err
	})
}

func newQueueClose() *cobra.Command {
	return gateCommand(&cobra.Command{
		Use:   "close QUEUE",
		Short: "Take no more keys",
		Long: `Take no more keys until "queue open": every add fails with QUEUE_CLOSED, and a trigger keeps
its records and adds them later. What the queue holds is worked off.`,
	}, "closed", func(cmd *cobra.Command, client services, queue string) error {
		_, err := client.CloseQueue(cmd.Context(), &queuev1.CloseQueueRequest{Queue: queue})
		return err
	})
}

func newQueueOpen() *cobra.Command {
	return gateCommand(&cobra.Command{
		Use:   "open QUEUE",
		Short: "Take keys again",
	}, "open", func(cmd *cobra.Command, client services, queue string) error {
		_, err := client.OpenQueue(cmd.Context(), &queuev1.OpenQueueRequest{Queue: queue})
		return err
	})
}

func newQueueRemove() *cobra.Command {
	var force bool
	cmd := gateCommand(&cobra.Command{
		Use:   "remove QUEUE",
		Short: "Delete a queue with everything in it",
		Long: `Delete a queue with every key, back-off entry and saved state in it, on all servers. Workers
and triggers on it get QUEUE_NOT_FOUND. While keys are leased it is refused. A queue that a
server is configured with is made again when it is next used. With --queue-expire-after servers
delete empty queues that nobody uses by themselves.`,
	}, "removed", func(cmd *cobra.Command, client services, queue string) error {
		_, err := client.DeleteQueue(cmd.Context(), &queuev1.DeleteQueueRequest{Queue: queue, Force: force})
		return err
	})
	cmd.Flags().BoolVar(&force, "force", false, "delete it although keys are leased; their settlements are then refused")
	return cmd
}

func newQueueDrain() *cobra.Command {
	var output string
	var wait, dueWithin time.Duration
	var closing bool
	cmd := longQueueCommand(&cobra.Command{
		Use:   "drain QUEUE",
		Short: "Wait until a queue is worked off",
		Long: `Wait until nothing is ready, held or delayed any more, and tell how far it is once a second.
Delayed keys that are due later than --due-within are not waited for, such as a controller's
periodic round, nor are dead ones. The first keys waited for are named, with -o json as waits_for.
The exit code is 4 when the time was over first.`,
		Example: `  deltaplane queue drain dev/mine --close --wait 10m
  deltaplane queue drain dev/job --due-within -1s   # for every delayed key`,
		Args: cli.Args(cobra.ExactArgs(1)),
	}, &wait, func(cmd *cobra.Command, client services, a []string) error {
		req := &queuev1.DrainQueueRequest{Queue: a[0], Close: closing, Timeout: durationpb.New(wait)}
		if dueWithin >= 0 {
			req.DueWithin = durationpb.New(dueWithin)
		}
		stream, err := client.DrainQueue(cmd.Context(), req)
		if err != nil {
			return err
		}
		for {
			report, err := stream.Recv()
			if err != nil {
				if errors.Is(err, io.EOF) {
					err = status.Error(codes.Unavailable, "the server ended the drain before it was over")
				}
				return err
			}
			var keys []string
			if !report.GetDrained() {
				keys = awaited(cmd.Context(), client, a[0], dueWithin)
			}
			if err := printDrain(cmd.OutOrStdout(), a[0], report, keys, output); err != nil {
				return err
			}
			switch {
			case report.GetDrained():
				return nil
			case report.GetTimedOut():
				return status.Errorf(codes.DeadlineExceeded, "%s is not drained within %v%s", a[0], wait, waitsFor(keys))
			}
		}
	})
	show.RegisterOutput(cmd, &output)
	cmd.Flags().DurationVar(&wait, "wait", 5*time.Minute, "how long to wait at most")
	cmd.Flags().DurationVar(&dueWithin, "due-within", time.Minute, "wait for delayed keys that are due within this `time`; a negative one waits for every one")
	cmd.Flags().BoolVar(&closing, "close", false, "close the queue first, so that nothing is added meanwhile")
	return cmd
}

// printDrain shows a report as a line: for people, or one JSON document.
func printDrain(out io.Writer, queue string, r *queuev1.DrainQueueResponse, keys []string, output string) error {
	if output == "json" {
		text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(r)
		if err != nil {
			return err
		}
		var line map[string]any
		if err := json.Unmarshal(text, &line); err != nil {
			return err
		}
		line["waits_for"] = show.OrEmpty(keys)
		compact, err := json.Marshal(line)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, string(compact))
		return err
	}
	if r.GetDrained() {
		_, err := fmt.Fprintln(out, queue, "drained")
		return err
	}
	c := r.GetCounts()
	missing := ""
	if p := r.GetUnreachable(); len(p) > 0 {
		missing = fmt.Sprintf("; partitions %v cannot be reached", p)
	}
	_, err := fmt.Fprintf(out, "%s: %d ready, %d held, %d delayed (%d waited for)%s%s\n",
		queue, c.GetReady(), c.GetProcessing(), c.GetDelayed(), r.GetAwaited(), missing, waitsFor(keys))
	return err
}

// awaited names the first keys of each state that a drain waits for; none when they cannot be read.
func awaited(ctx context.Context, client services, queue string, dueWithin time.Duration) []string {
	const most = 5
	var keys []string
	for _, state := range []queuev1.State{queuev1.State_STATE_PROCESSING, queuev1.State_STATE_DIRTY, queuev1.State_STATE_READY, queuev1.State_STATE_DELAYED} {
		answer, err := client.ListItems(ctx, &queuev1.ListItemsRequest{Queue: queue, State: state, PageSize: keysPerCall})
		if err != nil {
			return nil
		}
		named := 0
		for _, i := range answer.GetItems() {
			due := time.Until(i.GetDelayedUntil().AsTime())
			if state == queuev1.State_STATE_DELAYED && dueWithin >= 0 && due > dueWithin {
				continue
			}
			if named++; named > most {
				keys = append(keys, "and more "+show.StateName(state))
				break
			}
			keys = append(keys, show.Printable(i.GetKey())+" ("+strings.TrimSuffix(show.StateName(state)+", held by "+show.Printable(i.GetHolder()), ", held by ")+")")
		}
	}
	return keys
}

// waitsFor ends a message with the keys that a drain waits for.
func waitsFor(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return ": waits for " + strings.Join(keys, ", ")
}
