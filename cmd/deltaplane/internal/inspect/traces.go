package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/internal/telemetry/recent"
)

// traceFlags say where traces are kept.
type traceFlags struct {
	admin   string
	timeout time.Duration
	output  string
	dial    rpc.DialConfig
}

func (f *traceFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.admin, "admin-url", "http://127.0.0.1:7451", "`URL` of an admin port of \"up\"")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Second, "how long to wait for an answer")
	show.RegisterOutput(cmd, &f.output)
	cli.RegisterDial(cmd.Flags(), &f.dial)
}

// NewTraces is the command "traces".
func NewTraces() *cobra.Command {
	var f traceFlags
	var text string
	var failed bool
	var atLeast time.Duration
	var limit int
	cmd := &cobra.Command{
		Use:   "traces",
		Short: "List the last traces that up keeps",
		Long: `List the last traces that "up" keeps when no collector is named: those of the API events
that --trace-ratio of it samples, one in a hundred by default, and those of errors. Services
that run alone send theirs to a collector (--otlp-endpoint).`,
		Example: `  deltaplane traces --failed
  deltaplane traces --text default/web --at-least 50ms`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{"text": {text}, "failed": {fmt.Sprint(failed)}, "at-least": {atLeast.String()}, "limit": {fmt.Sprint(limit)}}
			var page telemetry.Traces
			if err := f.get(cmd, query, &page); err != nil || f.output == "json" {
				return err
			}
			rows := [][]string{{"TRACE", "BEGAN", "TOOK", "SPANS", "ERRORS", "NAME"}}
			for _, t := range page.Traces {
				rows = append(rows, []string{t.ID, t.Start.UTC().Format(time.RFC3339), short(t.Duration), fmt.Sprint(t.Spans), fmt.Sprint(t.Errors), show.Printable(t.Name)})
			}
			return show.Table(cmd.OutOrStdout(), rows)
		},
	}
	cmd.Flags().StringVar(&text, "text", "", "only traces with this `text` in their id, or in a name, attribute or error of a span")
	cmd.Flags().BoolVar(&failed, "failed", false, "only traces with an error")
	cmd.Flags().DurationVar(&atLeast, "at-least", 0, "only traces that took so long")
	cmd.Flags().IntVar(&limit, "limit", 50, "how many `traces` are listed")
	f.register(cmd)
	return cmd
}

// NewTrace is the command "trace".
func NewTrace() *cobra.Command {
	var f traceFlags
	cmd := &cobra.Command{
		Use:   "trace ID",
		Short: "Show one of the last traces that up keeps",
		Long: `Show the spans of a trace that "up" keeps, each below what it is a part of: when it began
after the first, how long it took, and what it is about. Links lead to other traces, those
of the events of what was written among them; most of these are recorded only where the
write's trace is.`,
		Args:              cli.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: f.complete,
		RunE: func(cmd *cobra.Command, a []string) error {
			var t recent.Trace
			if err := f.get(cmd, url.Values{"id": {a[0]}}, &t); err != nil || f.output == "json" {
				return err
			}
			return printTrace(cmd.OutOrStdout(), t)
		},
	}
	f.register(cmd)
	return cmd
}

func printTrace(out io.Writer, t recent.Trace) error {
	rows := [][]string{{"AT", "TOOK", "SERVICE", "SPAN"}}
	for _, s := range t.Spans {
		indent := strings.Repeat("  ", s.Depth)
		rows = append(rows, []string{short(s.Start.Sub(t.Start)), short(s.End.Sub(s.Start)), strings.TrimPrefix(s.Service, "deltaplane-"), indent + spanText(s)})
		if s.Failed {
			rows = append(rows, []string{"", "", "", indent + "  error: " + show.Printable(s.Status)})
		}
		for _, l := range s.Links {
			if l.Kept {
				rows = append(rows, []string{"", "", "", indent + "  " + linkText(l)})
			}
		}
	}
	for _, l := range t.LinkedFrom {
		rows = append(rows, []string{"", "", "", "linked from a span of trace " + l.Trace})
	}
	if t.Dropped > 0 {
		rows = append(rows, []string{"", "", "", fmt.Sprintf("%d more spans were not kept", t.Dropped)})
	}
	return show.Table(out, rows)
}

// spanText is a span's name and what it is about.
func spanText(s recent.Span) string {
	var about []string
	for key, v := range s.Attributes {
		if name, ours := strings.CutPrefix(key, "deltaplane."); ours && v != "" {
			about = append(about, show.Printable(name+"="+v))
		}
	}
	slices.Sort(about)
	return strings.Join(append([]string{show.Printable(s.Name)}, about...), " ")
}

func linkText(l recent.Link) string {
	switch l.Attributes["deltaplane.cause"] {
	case "event":
		return "its event: trace " + l.Trace
	case "write":
		return "caused by a write: trace " + l.Trace
	}
	return "see trace " + l.Trace
}

func short(d time.Duration) string { return d.Round(time.Microsecond).String() }

// get asks the admin port, and prints the answer where JSON is wanted.
func (f *traceFlags) get(cmd *cobra.Command, query url.Values, into any) error {
	ctx, cancel := cli.ContextWithTimeout(cmd, f.timeout)
	defer cancel()
	body, err := f.fetch(ctx, query)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s/traces: %w", f.admin, err)
	}
	if f.output == "json" {
		return show.PrintJSON(cmd.OutOrStdout(), into)
	}
	return nil
}

// complete offers the ids of the traces that are kept, the newest first, within a second.
func (f *traceFlags) complete(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := cli.ContextWithTimeout(cmd, min(f.timeout, time.Second))
	defer cancel()
	var page telemetry.Traces
	if body, err := f.fetch(ctx, url.Values{"limit": {"200"}}); err != nil || json.Unmarshal(body, &page) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ids := make([]cobra.Completion, len(page.Traces))
	for i, t := range page.Traces {
		ids[i] = cobra.CompletionWithDesc(t.ID, show.Printable(t.Name))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// mostPage bounds an answer.
const mostPage = 64 << 20

func (f *traceFlags) fetch(ctx context.Context, query url.Values) ([]byte, error) {
	at, err := url.Parse(f.admin)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, &cli.UsageError{Err: fmt.Errorf("--admin-url %q: want http(s)://host:port", f.admin)}
	}
	conf, err := certs.Client(f.dial.TLS, f.dial.ServerName)
	if err != nil {
		return nil, &cli.UsageError{Err: err}
	}
	transport := &http.Transport{TLSClientConfig: conf}
	defer transport.CloseIdleConnections()
	at.Path, at.RawQuery = "/traces", query.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return nil, &cli.UsageError{Err: err}
	}
	if f.dial.TokenFile != "" {
		if at.Scheme != "https" && !f.dial.AllowPlainToken && !rpc.Loopback(at.Host) {
			return nil, &cli.UsageError{Err: fmt.Errorf("--admin-url %s: a token would travel in plain text; use https", f.admin)}
		}
		token, err := os.ReadFile(f.dial.TokenFile)
		if err != nil {
			return nil, &cli.UsageError{Err: fmt.Errorf("--token-file: %w", err)}
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error()+`: "deltaplane up" keeps traces; is it running?`)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostPage))
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	text := strings.TrimSpace(string(body))
	switch answer.StatusCode {
	case http.StatusOK:
		return body, nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, status.Error(codes.PermissionDenied, text)
	case http.StatusBadRequest:
		return nil, status.Error(codes.InvalidArgument, text)
	case http.StatusNotFound:
		if !query.Has("id") || !strings.HasPrefix(text, "id:") {
			text = f.admin + " keeps no traces: a service alone, and up with a collector, do not"
		}
		return nil, status.Error(codes.NotFound, text)
	}
	return nil, status.Errorf(codes.Unavailable, "%s answered %s: %s", f.admin, answer.Status, text)
}
