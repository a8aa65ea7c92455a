package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/explain"
	"github.com/deltaplane/deltaplane/internal/rpc"
	accessv1 "github.com/deltaplane/deltaplane/proto/deltaplane/access/v1"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	"github.com/deltaplane/deltaplane/services/console/caller"
	"github.com/deltaplane/deltaplane/services/console/session"
	"github.com/deltaplane/deltaplane/services/console/view"
)

const (
	// maxMessage bounds a message of the pages: a thousand keys.
	maxMessage = 2 << 20
	// stalled is how long a browser may take no byte of a message before its stream is ended.
	stalled = 30 * time.Second
	// callWithin bounds calls that the pages wait for.
	callWithin = 10 * time.Second
)

// rules are the statuses of the console's own errors.
var rules = []rpc.Rule{
	{Is: session.ErrNotFound, Code: codes.NotFound, Reason: "SESSION_NOT_FOUND"},
	{Is: session.ErrOver, Code: codes.NotFound, Reason: "SESSION_NOT_FOUND"},
	{Is: view.ErrClosed, Code: codes.NotFound, Reason: "SESSION_NOT_FOUND"},
	{Is: session.ErrTooManySessions, Code: codes.ResourceExhausted, Reason: "TOO_MANY_SESSIONS", Retry: 5 * time.Second},
	{Is: errTooManyTokens, Code: codes.ResourceExhausted, Reason: "TOO_MANY_UNKNOWN_TOKENS", Retry: time.Second},
	{Is: session.ErrTooManySubscriptions, Code: codes.ResourceExhausted, Reason: "TOO_MANY_SUBSCRIPTIONS"},
	{Is: view.ErrTooManyViews, Code: codes.ResourceExhausted, Reason: "TOO_MANY_VIEWS"},
}

// register has a mux serve the calls.
func (s *Service) register(mux *http.ServeMux) {
	options := []connect.HandlerOption{
		connect.WithReadMaxBytes(maxMessage), connect.WithRequireConnectProtocolHeader(),
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, what any) error {
			s.log.Error("a call panicked", slog.String("method", spec.Procedure), slog.Any("panic", what))
			return connect.NewError(connect.CodeInternal, errors.New("internal error"))
		}),
	}
	mux.Handle(consolev1.ConsoleService_Open_FullMethodName, deadlines(connect.NewServerStreamHandler(consolev1.ConsoleService_Open_FullMethodName, s.open, options...)))
	unary(s, mux, options, consolev1.ConsoleService_Subscribe_FullMethodName, s.subscribe)
	unary(s, mux, options, consolev1.ConsoleService_Unsubscribe_FullMethodName, s.unsubscribe)
	unary(s, mux, options, consolev1.ConsoleService_Search_FullMethodName, s.search)
	unary(s, mux, options, consolev1.ConsoleService_ActOnKeys_FullMethodName, s.actOnKeys)
	unary(s, mux, options, consolev1.ConsoleService_ActOnQueue_FullMethodName, s.actOnQueue)
}

// unary registers a call, with who calls and with its errors as Connect has them.
func unary[Req, Res any](s *Service, mux *http.ServeMux, options []connect.HandlerOption, method string, call func(context.Context, who, *Req) (*Res, error)) {
	mux.Handle(method, connect.NewUnaryHandler(method, func(ctx context.Context, r *connect.Request[Req]) (*connect.Response[Res], error) {
		ctx, cancel := context.WithTimeout(ctx, callWithin)
		defer cancel()
		w := whoOf(r.Header())
		var res *Res
		err := s.forwarded(w, r.Peer().Addr, func() (err error) {
			res, err = call(ctx, w, r.Msg)
			return err
		})
		err = asConnect(err)
		s.count(method, err)
		if err != nil {
			return nil, err
		}
		return connect.NewResponse(res), nil
	}, options...))
}

func (s *Service) count(method string, err error) {
	code := "ok"
	if err != nil {
		code = connect.CodeOf(err).String()
	}
	s.metrics.calls.WithLabelValues(method[strings.LastIndexByte(method, '/')+1:], code).Inc()
}

// asConnect is an error with the code, message and details that a service gave it.
func asConnect(err error) error {
	if err == nil {
		return nil
	}
	st := view.Status(rpc.Status(err, rules))
	out := connect.NewError(connect.Code(st.Code()), errors.New(st.Message())) //nolint:gosec // the codes are the same
	for _, d := range st.Details() {
		m, ok := d.(proto.Message)
		if !ok {
			continue
		}
		if detail, err := connect.NewErrorDetail(m); err == nil {
			out.AddDetail(detail)
		}
	}
	return out
}

// who is a caller: the bearer of a token, or somebody without one.
type who struct{ token string }

func whoOf(h http.Header) who {
	scheme, token, _ := strings.Cut(h.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return who{}
	}
	return who{token: token}
}

// parts are the services as a caller reaches them.
func (s *Service) parts(w who) explain.Parts {
	of := func(p explain.Part) explain.Part {
		return explain.Part{Address: p.Address, Conn: caller.New(p.Conn, w.token, s.cfg.proves())}
	}
	return explain.Parts{Reflector: of(s.deps.Reflector), Index: of(s.deps.Index), Queue: of(s.deps.Queue), Timeout: partTimeout}
}

// partTimeout is how long a part may take to say why a key waits: the page is there meanwhile.
const partTimeout = time.Second

func (s *Service) hub(token string) *view.Hub {
	return view.NewHub(s.life, s.parts(who{token: token}), s.deps.Traces, s.log)
}

func (s *Service) open(ctx context.Context, r *connect.Request[consolev1.OpenRequest], stream *connect.ServerStream[consolev1.OpenResponse]) (err error) {
	defer func() { s.count(consolev1.ConsoleService_Open_FullMethodName, err) }()
	if err := unhurried(ctx); err != nil {
		return asConnect(err)
	}
	w := whoOf(r.Header())
	caller := &accessv1.WhoAmIResponse{}
	if err := s.forwarded(w, r.Peer().Addr, func() (err error) { caller, err = s.ask(ctx, w); return err }); err != nil {
		return asConnect(err)
	}
	one, end, err := s.sessions.Open(w.token, nameOf(caller.GetIdentity()))
	if err != nil {
		return asConnect(err)
	}
	defer end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := s.whileServing(cancel)
	defer stop()
	send := func(m *consolev1.OpenResponse) error {
		if err := extend(ctx, stalled); err != nil {
			return err
		}
		s.metrics.updates.Inc()
		return stream.Send(m)
	}
	if err := send(&consolev1.OpenResponse{Content: &consolev1.OpenResponse_Opened{Opened: s.opened(one, caller)}}); err != nil {
		return s.ended(ctx, err)
	}
	return s.ended(ctx, one.Run(ctx, send))
}

// ended is why a stream has ended, whatever that broke first.
func (s *Service) ended(ctx context.Context, err error) error {
	select {
	case <-s.draining:
		return asConnect(status.Error(codes.Unavailable, "the console is about to stop"))
	default:
	}
	if ctx.Err() != nil {
		return asConnect(ctx.Err())
	}
	return err
}

// whileServing calls cancel when the service is to stop.
func (s *Service) whileServing(cancel func()) (stop func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case <-s.draining:
			cancel()
		case <-done:
		}
	}()
	return func() { close(done); <-gone }
}

// ask asks the index who a caller is, and is an error where the index knows that it is nobody: who
// has no valid token holds no session. Where the index does not answer soon, that is not known.
func (s *Service) ask(ctx context.Context, w who) (*accessv1.WhoAmIResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	answer, err := accessv1.NewAccessServiceClient(s.parts(w).Index.Conn).WhoAmI(ctx, &accessv1.WhoAmIRequest{})
	switch {
	case err == nil:
		return answer, nil
	case rpc.Code(err) == codes.Unauthenticated, rpc.Reason(err) == "TOO_MANY_UNKNOWN_TOKENS":
		return nil, err
	}
	return &accessv1.WhoAmIResponse{}, nil
}

// nameOf tells users apart: each cluster has its own. It is empty where nobody says who it is.
func nameOf(id *accessv1.Identity) string {
	if id.GetUser() == "" {
		return ""
	}
	return id.GetCluster() + "\x00" + id.GetUser()
}

// opened is a session for its page, with who the caller is for the index.
func (s *Service) opened(one *session.Session, caller *accessv1.WhoAmIResponse) *consolev1.Opened {
	return &consolev1.Opened{
		Session: one.ID, Version: s.cfg.Version, MaxSubscriptions: session.MaxSubscriptions, MaxRows: view.MaxRows, HasTraces: s.deps.Traces != nil,
		User: caller.GetIdentity().GetUser(), Limited: caller.GetLimited(),
	}
}

type deadlineKey struct{}

// deadlines lets a handler say until when its next message must have been taken, and that nothing
// more needs to come.
func deadlines(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), deadlineKey{}, http.NewResponseController(w))))
	})
}

// unhurried lets a connection say nothing more while its stream is open: the request has come.
func unhurried(ctx context.Context) error {
	if c, ok := ctx.Value(deadlineKey{}).(*http.ResponseController); ok {
		return c.SetReadDeadline(time.Time{})
	}
	return nil
}

func extend(ctx context.Context, d time.Duration) error {
	if c, ok := ctx.Value(deadlineKey{}).(*http.ResponseController); ok {
		return c.SetWriteDeadline(time.Now().Add(d))
	}
	return nil
}
