package serve

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/read"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
	"github.com/deltaplane/deltaplane/internal/devcluster/write"
)

// maxBody is the largest request body, as the real server has it.
const maxBody = 3 << 20

// view is the form in which a client wants objects.
type view int

const (
	asObject view = iota
	asTable
	asPartial
)

// call is one request to a resource.
type call struct {
	w         http.ResponseWriter
	req       *http.Request
	res       *kinds.Resource
	namespace string
	name      string
	sub       string
	as        view
}

// Server answers the API over HTTP.
type Server struct {
	Settings
	log      *slog.Logger
	store    *store.Store
	kinds    *kinds.Registry
	reader   *read.Reader
	writer   *write.Writer
	stopping chan struct{} // closed when watches must end
}

// Settings are what the configuration says about serving.
type Settings struct {
	BookmarkEvery time.Duration // the jittered interval of watch bookmarks
	WatchTimeout  time.Duration // bounds watches without a timeout to 1-2 times itself
	Forbidden     []string      // resources that answer 403
	Fault         func(*http.Request) *metav1.Status
}

// New makes a server; its watches end when stopping is closed.
func New(s Settings, log *slog.Logger, objects *store.Store, kinds *kinds.Registry, r *read.Reader, w *write.Writer, stopping chan struct{}) *Server {
	return &Server{Settings: s, log: log, store: objects, kinds: kinds, reader: r, writer: w, stopping: stopping}
}

// ServeHTTP routes a request. Every failure is answered by a Status object.
func (a *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			a.log.LogAttrs(req.Context(), slog.LevelError, "request handler panicked",
				slog.Any("error", p), slog.String("path", req.URL.Path), slog.String("stack", string(debug.Stack())))
			writeError(w, apierrors.NewInternalError(errors.New("the request handler failed")))
		}
	}()
	if fault := a.Fault; fault != nil {
		if s := fault(req); s != nil {
			writeError(w, &apierrors.StatusError{ErrStatus: *s})
			return
		}
	}
	if err := a.route(w, req); err != nil {
		writeError(w, err)
	}
}

func (a *Server) route(w http.ResponseWriter, req *http.Request) error {
	path := strings.Trim(req.URL.Path, "/")
	parts := strings.Split(path, "/")
	switch {
	case path == "healthz" || path == "readyz" || path == "livez":
		_, err := io.WriteString(w, "ok")
		return quietly(err)
	case path == "version":
		return writeJSON(w, http.StatusOK, versionInfo())
	case parts[0] == "openapi":
		return a.handleOpenAPI(w, req, parts[1:])
	case path == "api" || path == "apis" || (parts[0] == "api" && len(parts) == 2) || (parts[0] == "apis" && len(parts) <= 3):
		return a.handleDiscovery(w, req, parts)
	case parts[0] == "api":
		return a.resource(w, req, "", parts[1], parts[2:])
	case parts[0] == "apis":
		return a.resource(w, req, parts[1], parts[2], parts[3:])
	case path == "":
		return writeJSON(w, http.StatusOK, map[string][]string{"paths": {"/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"}})
	}
	return notServed()
}

// resource resolves [namespaces/NS/]RESOURCE[/NAME[/SUB]] and calls the verb.
func (a *Server) resource(w http.ResponseWriter, req *http.Request, group, version string, rest []string) error {
	c := &call{w: w, req: req}
	if isReview(group, version, rest) {
		return a.handleReview(c)
	}
	if rest[0] == "namespaces" && len(rest) > 2 && !(len(rest) == 3 && (rest[2] == "status" || rest[2] == "finalize")) {
		c.namespace, rest = rest[1], rest[2:]
	}
	if c.res = a.kinds.Find(group, version, rest[0]); c.res == nil || len(rest) > 3 {
		return notServed()
	}
	if c.namespace != "" && !c.res.Namespaced {
		return notServed()
	}
	if len(rest) > 1 {
		c.name = rest[1]
	}
	if len(rest) > 2 {
		c.sub = rest[2]
	}
	if c.name != "" && c.res.Namespaced && c.namespace == "" {
		return notServed()
	}
	if a.isForbidden(c.res) {
		return apierrors.NewForbidden(c.res.GroupResource(), c.name, errors.New(`this dev cluster is configured to forbid it`))
	}
	var err error
	if c.as, err = negotiate(req.Header.Get("Accept")); err != nil {
		return err
	}
	return a.verb(c)
}

func (a *Server) isForbidden(r *kinds.Resource) bool {
	return slices.Contains(a.Settings.Forbidden, r.ID())
}

func (a *Server) verb(c *call) error {
	if c.sub != "" {
		return a.subresource(c)
	}
	switch {
	case c.req.Method == http.MethodGet && c.name == "":
		return a.handleList(c)
	case c.req.Method == http.MethodGet || c.req.Method == http.MethodHead:
		return a.handleGet(c)
	case c.req.Method == http.MethodPost && c.name == "":
		return a.handleCreate(c)
	case c.req.Method == http.MethodPut && c.name != "":
		return a.handleUpdate(c)
	case c.req.Method == http.MethodPatch && c.name != "":
		return a.handlePatch(c)
	case c.req.Method == http.MethodDelete && c.name != "":
		return a.handleDelete(c)
	case c.req.Method == http.MethodDelete:
		return a.handleDeleteCollection(c)
	}
	return methodNotAllowed()
}

func (a *Server) handleGet(c *call) error {
	o := a.store.Get(c.res, c.key())
	if o == nil {
		return apierrors.NewNotFound(c.res.GroupResource(), c.name)
	}
	return c.object(http.StatusOK, o)
}

func (c *call) key() string { return kinds.ObjectKey(c.namespace, c.name) }

// negotiate picks the form of the answer from an Accept header; JSON only.
func negotiate(accept string) (view, error) {
	if accept == "" {
		return asObject, nil
	}
	for part := range strings.SplitSeq(accept, ",") {
		kind, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil || (kind != "application/json" && kind != "*/*" && kind != "application/*") {
			continue
		}
		switch as := params["as"]; {
		case as == "":
			return asObject, nil
		case params["g"] != metav1.GroupName || params["v"] != "v1":
		case as == "Table":
			return asTable, nil
		case as == "PartialObjectMetadata" || as == "PartialObjectMetadataList":
			return asPartial, nil
		}
	}
	return asObject, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: application/json", Details: &metav1.StatusDetails{},
	}}
}

// body reads a request body as JSON.
func (c *call) body() ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(c.w, c.req.Body, maxBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("read the request body: %v", err))
	}
	kind, _, err := mime.ParseMediaType(c.req.Header.Get("Content-Type"))
	switch {
	case c.req.Header.Get("Content-Type") == "" || kind == "application/json":
		return data, nil
	case err == nil && (kind == "application/yaml" || kind == "application/x-yaml"):
		if data, err = yaml.YAMLToJSON(data); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("yaml: %v", err))
		}
		return data, nil
	case err == nil && kind == protobufType:
		return protobufToJSON(data)
	}
	return nil, unsupportedMedia("application/json", "application/yaml", protobufType)
}
