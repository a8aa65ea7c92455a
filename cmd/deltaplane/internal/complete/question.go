package complete

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/collections"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/internal/kube"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// within bounds what a press of the tab key waits for, and page what is offered.
const (
	within = time.Second
	page   = 1000
)

// source offers what may stand at a place.
type source func(context.Context, *question)

// question is what is to be completed.
type question struct {
	cmd    *cobra.Command
	done   []string // arguments before
	prefix string   // what is there of it
	dial   cli.DialFlags
	kube   cli.KubeFlags

	out   []string
	more  bool // what is offered goes on: no space behind it
	conns []*grpc.ClientConn
}

// arguments completes each argument from its source; the last one is for all that follow if it
// repeats.
func arguments(repeats bool, sources ...source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, done []string, prefix string) ([]string, cobra.ShellCompDirective) {
		at := len(done)
		if repeats {
			at = min(at, len(sources)-1)
		}
		if at >= len(sources) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return ask(cmd, done, prefix, sources[at])
	}
}

// flag completes the value of a flag.
func flag(from source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, done []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return ask(cmd, done, prefix, from)
	}
}

func ask(cmd *cobra.Command, done []string, prefix string, from source) ([]string, cobra.ShellCompDirective) {
	q := &question{cmd: cmd, done: done, prefix: prefix}
	defer func() {
		for _, c := range q.conns {
			_ = c.Close()
		}
	}()
	if q.settings() == nil {
		ctx, cancel := cli.ContextWithTimeout(cmd, within)
		defer cancel()
		from(ctx, q)
	}
	directive := cobra.ShellCompDirectiveNoFileComp
	if q.more {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return q.out, directive
}

// settings are those of the command, which runs only later: they are yet to be applied.
func (q *question) settings() error {
	if err := q.cmd.Root().PersistentPreRunE(q.cmd, nil); err != nil {
		return err
	}
	own := pflag.NewFlagSet("completion", pflag.ContinueOnError)
	q.dial.Register(own)
	q.kube.Register(own)
	var faults []error
	own.VisitAll(func(f *pflag.Flag) {
		if given := q.cmd.Flags().Lookup(f.Name); given != nil {
			faults = append(faults, f.Value.Set(given.Value.String()))
		}
	})
	return errors.Join(faults...)
}

// offer adds a name that goes on from what is there, with a word about it. Names that a line cannot
// hold as they are do not stand in one.
func (q *question) offer(name, about string) {
	if !strings.HasPrefix(name, q.prefix) || show.Printable(name) != name || len(q.out) >= page {
		return
	}
	if about != "" {
		name += "\t" + about
	}
	q.out = append(q.out, name)
}

// connect connects to a service without a word about what is wrong with its address.
func (q *question) connect(target string) grpc.ClientConnInterface {
	c, err := cli.Connect(target, q.dial.Config)
	if err != nil {
		return away{err}
	}
	q.conns = append(q.conns, c)
	return c
}

// away is a service whose address cannot be used.
type away struct{ err error }

// Invoke implements [grpc.ClientConnInterface].
func (a away) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return a.err }

// NewStream implements [grpc.ClientConnInterface].
func (a away) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, a.err
}

func (q *question) index() indexv1.IndexServiceClient {
	return indexv1.NewIndexServiceClient(q.connect(q.dial.Index))
}

func (q *question) queue() queuev1.QueueAdminServiceClient {
	return queuev1.NewQueueAdminServiceClient(q.connect(q.dial.Queue))
}

func (q *question) reflector() reflectorv1.ReflectorServiceClient {
	return reflectorv1.NewReflectorServiceClient(q.connect(q.dial.Reflector))
}

// api is the API server that the flags name.
func (q *question) api() (*kube.Client, error) { return q.kube.Load() }

// text is the value of a flag, the first of several; empty where the command has none.
func (q *question) text(flag string) string {
	f := q.cmd.Flags().Lookup(flag)
	if f == nil {
		return ""
	}
	text, _, _ := strings.Cut(strings.Trim(f.Value.String(), "[]"), ",")
	return text
}

// find finds the collection that a word means.
func (q *question) find(ctx context.Context, index indexv1.IndexServiceClient, word string) (string, *indexv1.CollectionStatus) {
	answer, err := index.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil {
		return "", nil
	}
	if cluster := q.text("cluster"); cluster != "" && !strings.Contains(word, "/") {
		word = cluster + "/" + word
	}
	name, found, err := collections.Find(answer.GetCollections(), word)
	if err != nil {
		return "", nil
	}
	return name, found
}
