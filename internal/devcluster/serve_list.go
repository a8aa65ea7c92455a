package devcluster

import (
	"fmt"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// handleList renders a page as the client asked for it.
func (a *server) handleList(c *call) error {
	o, err := parseListOptions(c.res, c.namespace, "", c.req.URL.Query())
	if err != nil {
		return err
	}
	if o.watch {
		return a.handleWatch(c, o)
	}
	p, err := a.reader.list(c.req.Context(), c.res, o)
	if err != nil {
		return err
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(p.rv, 10), Continue: p.next, RemainingItemCount: p.remaining}
	switch c.as {
	case asTable:
		return c.json(http.StatusOK, newTableView(c.res, p.items, o.includeObj, &meta, true))
	case asPartial:
		return c.json(http.StatusOK, partialList(p.items, meta))
	}
	return c.listOf(p, meta)
}

// listOf writes the items' bytes behind a list header, without decoding them.
func (c *call) listOf(p page, meta metav1.ListMeta) error {
	b, err := marshal(meta)
	if err != nil {
		return err
	}
	size := len(b) + 128
	for _, o := range p.items {
		size += len(o.raw) + 1
	}
	out := make([]byte, 0, size)
	out = fmt.Appendf(out, `{"kind":%q,"apiVersion":%q,"metadata":`, c.res.kind+"List", c.res.apiVersion())
	out = append(append(out, b...), `,"items":[`...)
	for i, o := range p.items {
		if i > 0 {
			out = append(out, ',')
		}
		if c.res.custom {
			out = append(out, o.raw...)
			continue
		}
		out = append(append(out, '{'), bare(c.res, o.raw)...)
	}
	return c.bytes(http.StatusOK, append(out, "]}\n"...))
}
