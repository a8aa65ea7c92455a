package serve

import (
	"fmt"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/read"
)

// handleList renders a page as the client asked for it.
func (a *Server) handleList(c *call) error {
	o, err := read.ParseOptions(c.res, c.namespace, "", c.req.URL.Query())
	if err != nil {
		return err
	}
	if o.Watch {
		return a.handleWatch(c, o)
	}
	p, err := a.reader.List(c.req.Context(), c.res, o)
	if err != nil {
		return err
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(p.RV, 10), Continue: p.Next, RemainingItemCount: p.Remaining}
	switch c.as {
	case asTable:
		return c.json(http.StatusOK, newTableView(c.res, p.Items, o.IncludeObject, &meta, true))
	case asPartial:
		return c.json(http.StatusOK, partialList(p.Items, meta))
	}
	return c.listOf(p, meta)
}

// listOf writes the items' bytes behind a list header, without decoding them.
func (c *call) listOf(p read.Page, meta metav1.ListMeta) error {
	b, err := marshal(meta)
	if err != nil {
		return err
	}
	size := len(b) + 128
	for _, o := range p.Items {
		size += len(o.Raw) + 1
	}
	out := make([]byte, 0, size)
	out = fmt.Appendf(out, `{"kind":%q,"apiVersion":%q,"metadata":`, c.res.Kind+"List", c.res.APIVersion())
	out = append(append(out, b...), `,"items":[`...)
	for i, o := range p.Items {
		if i > 0 {
			out = append(out, ',')
		}
		if c.res.Custom {
			out = append(out, o.Raw...)
			continue
		}
		out = append(append(out, '{'), kinds.Bare(c.res, o.Raw)...)
	}
	return c.bytes(http.StatusOK, append(out, "]}\n"...))
}
