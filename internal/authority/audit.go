package authority

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

const (
	// Lines of the audit log: so many at once, and so many a second after that.
	auditBurst, auditRate = 1000, 100
	// auditText bounds one text of a line.
	auditText = 512
)

// audit writes one line of JSON for each denial and administrative change. Lines beyond the rate
// are counted, and the next line says how many they were.
type audit struct {
	log   *slog.Logger
	limit *rate.Limiter

	mu      sync.Mutex
	dropped int64 // since the last line; guarded by mu
	total   int64 // guarded by mu
}

func openAudit(path string) (*audit, error) {
	var out io.Writer = os.Stderr
	if path != "" && path != "-" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // the operator's own path
		if err != nil {
			return nil, fmt.Errorf("authority: audit file: %w", err)
		}
		out = f
	}
	return newAudit(out), nil
}

func newAudit(out io.Writer) *audit {
	h := slog.NewJSONHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})
	return &audit{log: slog.New(h), limit: rate.NewLimiter(auditRate, auditBurst)}
}

func (l *audit) write(ctx context.Context, id *access.Identity, want *access.Attributes, decision, reason string) {
	attrs := []slog.Attr{slog.String("decision", decision)}
	attrs = append(attrs, calling(ctx, id)...)
	for _, f := range [...]struct{ name, value string }{
		{"verb", want.Verb},
		{"group", want.Group},
		{"resource", want.Resource},
		{"subresource", want.Subresource},
		{"of_cluster", want.Cluster},
		{"namespace", want.Namespace},
		{"name", want.Name},
		{"field_selector", want.FieldSelector},
		{"label_selector", want.LabelSelector},
		{"reason", reason},
	} {
		if f.value != "" {
			attrs = append(attrs, slog.String(f.name, clip(f.value)))
		}
	}
	l.line(ctx, attrs)
}

// calling names who called what from where.
func calling(ctx context.Context, id *access.Identity) []slog.Attr {
	var attrs []slog.Attr
	if id != nil {
		attrs = append(attrs, slog.String("user", clip(id.User)), slog.String("source", id.Source.String()))
		if len(id.Groups) > 0 {
			attrs = append(attrs, slog.String("groups", clip(fmt.Sprint(id.Groups))))
		}
		if id.Cluster != "" {
			attrs = append(attrs, slog.String("cluster", id.Cluster))
		}
	}
	if method, ok := grpc.Method(ctx); ok {
		attrs = append(attrs, slog.String("method", method))
	}
	if host := peerHost(ctx); host != "" {
		attrs = append(attrs, slog.String("addr", host))
	}
	return attrs
}

func (l *audit) line(ctx context.Context, attrs []slog.Attr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.limit.AllowN(time.Now(), 1) {
		l.dropped++
		l.total++
		return
	}
	if l.dropped > 0 {
		attrs = append(attrs, slog.Int64("dropped", l.dropped))
		l.dropped = 0
	}
	l.log.LogAttrs(context.WithoutCancel(ctx), slog.LevelInfo, "access", attrs...)
}

func (l *audit) lost() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

func clip(s string) string {
	if len(s) > auditText {
		return s[:auditText] + "..."
	}
	return s
}

// RefusedPage audits a request that an admin port has refused.
func (a *Authority) RefusedPage(r *http.Request, code int, why string) {
	if a == nil {
		return
	}
	decision := "unauthenticated"
	if code == http.StatusForbidden {
		decision = "denied"
	}
	a.audit.line(r.Context(), []slog.Attr{
		slog.String("decision", decision), slog.String("method", clip(r.Method+" "+r.URL.Path)), slog.String("addr", hostOf(r.RemoteAddr)), slog.String("reason", clip(why)),
	})
}

// refused audits a call whose caller is nobody.
func (a *Authority) refused(ctx context.Context, method string, err error) {
	attrs := append([]slog.Attr{slog.String("decision", "unauthenticated")}, calling(ctx, nil)...)
	if _, ok := grpc.Method(ctx); !ok {
		attrs = append(attrs, slog.String("method", method))
	}
	a.audit.line(ctx, append(attrs, slog.String("reason", clip(rpc.Reason(err)+": "+status.Convert(err).Message()))))
}
