package ask

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// watchRetry is the pause before a broken watch is resumed, doubled while it
// breaks again without a word up to watchRetryMost, unless the server asks for more.
const (
	watchRetry     = 500 * time.Millisecond
	watchRetryMost = 5 * time.Second
)

// NewWatch is the command "watch".
func NewWatch() *cobra.Command {
	var s selection
	var changesOnly bool
	cmd := &cobra.Command{
		Use:   "watch COLLECTION [KEY]",
		Short: "Follow the changes of a collection",
		Long: `Show the objects of a collection, then every change, until interrupted.

A broken connection is resumed from the last position, on any replica, without repeating
or losing a change; when history was lost the whole state is shown again. A line on standard
error says when the watch was interrupted, at which revision it was resumed, how long it was
away, and which of the two follows.`,
		Example: `  deltaplane watch pods -n default
  deltaplane watch jobs -o json --changes-only`,
		Args: cli.Args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := s.read(a); err != nil {
				return err
			}
			return runWatch(cmd, &s, changesOnly)
		},
	}
	s.register(cmd)
	cmd.Flags().BoolVar(&changesOnly, "changes-only", false, "begin with changes and do not show the present state")
	return cmd
}

func runWatch(cmd *cobra.Command, s *selection, changesOnly bool) error {
	conn, err := cli.Dial(s.DialFlags.Index, s.Config)
	if err != nil {
		return err
	}
	defer conn.Close()
	index := indexv1.NewIndexServiceClient(conn)
	if err := s.resolve(cmd.Context(), index); err != nil {
		return err
	}
	request := &indexv1.WatchRequest{
		Collection: s.collection, Namespaces: s.namespaces, LabelSelector: s.selector, FieldSelector: s.fields,
		View: s.view(), SkipInitialState: changesOnly, Consistency: s.consistency(), VisibleOnly: s.visibleOnly,
	}
	if s.index != "" {
		request.Index, request.IndexValue, _ = strings.Cut(s.index, "=")
	}
	w := watcher{cmd: cmd, selection: s, client: index}
	w.printer = show.NewPrinter(cmd.OutOrStdout(), s.output, s.collection, s.noHeaders)
	w.printer.Each = true
	w.printer.Columns = s.columns(cmd.Context(), index)
	w.printer.Table.Widths = []int{len("UPDATED")}
	pause := attempt.Wait{First: watchRetry, Most: watchRetryMost, Low: 0.5, High: 1.5}
	for opened := false; ; opened = true {
		w.heard = false
		err := w.follow(request)
		if cmd.Context().Err() != nil {
			return nil
		}
		retriable := errors.Is(err, io.EOF) || rpc.Code(err) == codes.Unavailable || rpc.Code(err) == codes.ResourceExhausted
		if !retriable || (!opened && request.GetResume() == nil && !w.seen) {
			return err
		}
		if w.away.IsZero() {
			w.away = time.Now()
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "watch interrupted, resuming:", cli.Message(err))
		if !pause.Sleep(cmd.Context(), rpc.RetryDelay(err)) {
			return nil
		}
		if w.heard {
			pause.Reset()
		}
	}
}

// watcher prints one watch over any number of streams.
type watcher struct {
	cmd       *cobra.Command
	selection *selection
	client    indexv1.IndexServiceClient
	printer   *show.Printer
	seen      bool
	heard     bool      // on this stream
	away      time.Time // since when there is no stream; zero while there is one
	revision  string    // that was reached last
}

// follow reads one stream to its end and moves the request's resume position along.
func (w *watcher) follow(request *indexv1.WatchRequest) error {
	stream, err := w.client.Watch(w.cmd.Context(), request)
	if err != nil {
		return err
	}
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		w.seen, w.heard = true, true
		gap := message.GetGap()
		switch {
		case !w.away.IsZero():
			fmt.Fprintln(w.cmd.ErrOrStderr(), w.resumed(request, gap, time.Since(w.away)))
			w.away = time.Time{}
		case gap != nil:
			fmt.Fprintln(w.cmd.ErrOrStderr(), "history was lost:", gap.GetReason()+"; the whole state follows")
		}
		if rv := message.GetRevision().GetResourceVersion(); rv != "" {
			w.revision = rv
		}
		if position := message.GetPosition(); position != nil {
			request.Resume, request.SkipInitialState = position, false
		}
		if gap != nil {
			request.Resume = nil // it names nothing any more, also when the state breaks off
		}
		if err := w.print(message.GetEvents().GetEvents()); err != nil {
			return err
		}
	}
}

// resumed says where a watch goes on that was away for a time.
func (w *watcher) resumed(request *indexv1.WatchRequest, gap *indexv1.Gap, away time.Duration) string {
	text := fmt.Sprintf("watch resumed after %v", away.Round(10*time.Millisecond))
	switch {
	case gap != nil:
		return text + ": history was lost: " + gap.GetReason() + "; the whole state follows"
	case request.GetResume() == nil && request.GetSkipInitialState():
		return text + ": nothing was seen before, only changes from now on follow"
	case request.GetResume() == nil:
		return text + ": it broke off within the state; the whole state follows"
	case w.revision == "":
		return text + ": the changes since follow"
	}
	return text + " at revision " + w.revision + ": the changes since follow"
}

func (w *watcher) print(events []*indexv1.Event) error {
	if len(events) == 0 {
		return nil
	}
	p := w.printer
	for _, e := range events {
		if key := w.selection.key; key != "" && e.GetObject().GetKey() != key {
			continue
		}
		kind := strings.TrimPrefix(e.GetType().String(), "DELTA_TYPE_")
		switch {
		case p.Format == "json" || p.Format == "yaml":
			if err := w.document(p, kind, e); err != nil {
				return err
			}
		case p.Format == "jsonpath" && (e.GetQuarantined() || e.GetType() == deltav1.DeltaType_DELTA_TYPE_DELETED):
			fmt.Fprintln(w.cmd.ErrOrStderr(), strings.ToLower(kind)+":", show.Printable(e.GetObject().GetKey()))
		case e.GetQuarantined() && p.Format != "keys" && p.Format != "name":
			p.Table.Row([]string{kind, show.Printable(e.GetObject().GetKey()) + ": its newest version cannot be read"})
		case e.GetType() == deltav1.DeltaType_DELTA_TYPE_DELETED && p.Format != "keys" && p.Format != "name":
			p.Table.Row(append([]string{kind}, strings.Split(e.GetObject().GetKey(), "/")...)) // below namespace and name
		default:
			p.Add(e.GetObject(), kind)
		}
	}
	if p.Format == "json" || p.Format == "yaml" {
		return p.Err
	}
	return p.Flush()
}

// document writes one event for programs: JSON on one line, YAML as a document of its own.
func (w *watcher) document(p *show.Printer, kind string, e *indexv1.Event) error {
	object := e.GetObject().GetPayload()
	if len(object) == 0 {
		object = fmt.Appendf(nil, `{"key":%q}`, e.GetObject().GetKey())
	}
	quarantined := ""
	if e.GetQuarantined() {
		quarantined = `"quarantined":true,`
	}
	line := fmt.Appendf(nil, `{"type":%q,"key":%q,%s"object":%s}`, kind, e.GetObject().GetKey(), quarantined, object)
	if p.Format == "yaml" {
		p.Printf("---\n")
		return p.Document(line)
	}
	p.Printf("%s\n", line)
	return p.Err
}
