package request

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/deltaplane/deltaplane/internal/fieldmask"
)

// What stands before the path of a request, as a client writes it into the server line of its
// kubeconfig, says how its answers are to differ from those of an API server.
const (
	// VisiblePrefix asks for what the sender may see of a resource where it may not see all: the
	// objects of those namespaces in which it may list or watch them.
	VisiblePrefix = "/visible"
	// FieldsPrefix is followed by paths of fields, joined by commas: objects of lists and watches
	// have no others, besides what tells them apart.
	FieldsPrefix = "/fields/"
)

// Options is how answers are to differ. Its zero value is not at all.
type Options struct {
	Visible bool
	Mask    *fieldmask.Mask // nil keeps all
}

// always are the fields without which nobody could tell objects apart.
var always = []string{"apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion"}

// ErrFields says that the paths of [FieldsPrefix] are none.
var ErrFields = errors.New("the paths of fields in front of the request's path are wrong")

// Unprefixed is a request as an API server knows it, and what stood before its path.
func Unprefixed(r *http.Request) (*http.Request, Options, error) {
	var w Options
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, VisiblePrefix+"/"); ok {
		w.Visible, path = true, "/"+rest
	}
	if rest, ok := strings.CutPrefix(path, FieldsPrefix); ok {
		list, rest, _ := strings.Cut(rest, "/")
		var err error
		if w.Mask, err = parseFields(list); err != nil {
			return r, w, err
		}
		path = "/" + rest
	}
	before := len(r.URL.Path) - len(path)
	if before == 0 {
		return r, w, nil
	}
	out := r.Clone(r.Context())
	out.URL = &url.URL{Path: path, RawQuery: r.URL.RawQuery}
	raw := r.URL.RawPath
	if raw = raw[escaped(raw, before):]; strings.HasPrefix(raw, "/") { // nothing follows otherwise
		out.URL.RawPath = raw
	}
	return out, w, nil
}

// escaped is how long the first bytes of a path are in its escaped form.
func escaped(raw string, count int) int {
	n := 0
	for ; count > 0 && n < len(raw); count-- {
		if raw[n] == '%' {
			n += len("%XX")
		} else {
			n++
		}
	}
	return min(n, len(raw))
}

func parseFields(list string) (*fieldmask.Mask, error) {
	paths := strings.Split(list, ",")
	if len(paths) > fieldmask.MaxPaths {
		return nil, fmt.Errorf("%w: %d paths, at most %d", ErrFields, len(paths), fieldmask.MaxPaths)
	}
	mask, faults := fieldmask.Parse(append(append([]string{}, always...), paths...))
	if len(faults) > 0 {
		return nil, fmt.Errorf("%w: %w", ErrFields, faults[0])
	}
	return mask, nil
}
