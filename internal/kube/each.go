package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/deltaplane/deltaplane/internal/jsonscan"
)

// feedSize fits most objects; a larger one makes the reader's buffer grow.
const feedSize = 64 << 10

// List asks for one page. Errors are those of [Client.ListEach].
func (c *Client) List(ctx context.Context, r Resource, o ListOptions) (Page, error) {
	var items [][]byte
	page, err := c.ListEach(ctx, r, o, func(Page) error { return nil }, func(item []byte) error {
		items = append(items, bytes.Clone(item))
		return nil
	})
	if err != nil {
		return Page{}, err
	}
	page.Items = items
	return page, nil
}

// ListEach asks for one page and hands it over while it arrives. It calls begin once with the
// page's header, then item for each item in order; an item is valid until the call returns, and
// lacks kind and apiVersion for built-in types. The page is complete only when ListEach returns
// without an error; items handed over before are what the server sent. It returns the header.
//
// A server that sends the items before the header costs the memory of the whole page: they are held
// back until the header is known. The connection stays open while item runs, so it must not wait
// for anything slow.
//
// Errors: [StatusError] of the server; one that wraps [ErrBadAnswer] for an answer that is no list,
// such as a Table, or is no JSON; the connection's; those of begin and item as they are.
func (c *Client) ListEach(ctx context.Context, r Resource, o ListOptions, begin func(Page) error, item func(item []byte) error) (Page, error) {
	q := o.query()
	if o.Limit > 0 {
		q.Set("limit", strconv.Itoa(o.Limit))
	}
	setQuery(q, "continue", o.Continue)
	if o.Continue == "" {
		setQuery(q, "resourceVersion", o.RV)
		setQuery(q, "resourceVersionMatch", o.Match)
	}
	req := request{method: http.MethodGet, path: r.path(o.Namespace, "", ""), query: q, accept: r.accept(true)}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.send(ctx, req)
	if err != nil {
		return Page{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		body, err := readAll(resp)
		if err != nil {
			return Page{}, fmt.Errorf("kube: %s %s: %w", req.method, req.path, err)
		}
		return Page{}, newStatusError(req, resp, body)
	}
	p := pager{begin: begin, item: item, partial: r.metadata}
	f := jsonscan.NewReader(&bounded{r: resp.Body, left: maxBody}, feedSize)
	if err := p.read(f); err != nil {
		switch {
		case p.refused != nil:
			return Page{}, p.refused
		case f.Err() != nil && !errors.Is(f.Err(), io.EOF):
			return Page{}, fmt.Errorf("kube: list %s: %w", req.path, f.Err())
		}
		return Page{}, fmt.Errorf("%w: list %s: %w", ErrBadAnswer, req.path, err)
	}
	return p.page, nil
}

// bounded fails, rather than ends, after so many bytes.
type bounded struct {
	r    io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, fmt.Errorf("%w: larger than %d bytes", ErrBadAnswer, maxBody)
	}
	return n, err
}

// pager hands over one page.
type pager struct {
	begin   func(Page) error
	item    func([]byte) error
	partial bool // nothing but PartialObjectMetadata will do

	page                   Page
	kind                   string
	sawKind, sawMeta, open bool     // open: begin was called
	items                  int      // how many members of that name
	held                   [][]byte // items that came before the header
	refused                error    // what begin or item said
}

func (p *pager) read(f *jsonscan.Reader) error {
	if err := f.Object(func(key []byte) error { return p.member(f, key) }); err != nil {
		return err
	}
	if err := f.End(); err != nil {
		return err
	}
	if p.items == 0 {
		return fmt.Errorf("the answer (kind %q) has no items", p.kind)
	}
	if err := p.start(); err != nil {
		return err
	}
	return p.release()
}

func (p *pager) member(f *jsonscan.Reader, key []byte) error {
	switch string(key) {
	case "kind":
		v, err := f.Value()
		if err != nil {
			return err
		}
		if p.sawKind {
			return errors.New("the answer has two kinds")
		}
		p.sawKind = true
		p.kind, _ = jsonscan.Unquote(v)
		return p.isList()
	case "metadata":
		v, err := f.Value()
		if err != nil {
			return err
		}
		if p.sawMeta {
			return errors.New("the answer has two headers")
		}
		p.sawMeta = true
		return p.header(v)
	case "items":
		if p.items++; p.items > 1 {
			return errors.New("the answer has items twice")
		}
		return p.list(f)
	}
	_, err := f.Value()
	return err
}

func (p *pager) isList() error {
	if p.kind == "Table" || p.kind == "PartialObjectMetadata" {
		return fmt.Errorf("the answer is a %s, not a list", p.kind)
	}
	return nil
}

func (p *pager) header(metadata []byte) error {
	return jsonscan.Members(metadata, func(_, _ int, key, value []byte) error {
		var err error
		switch string(key) {
		case "resourceVersion":
			p.page.RV, err = jsonscan.Unquote(value)
		case "continue":
			p.page.Continue, err = jsonscan.Unquote(value)
		case "remainingItemCount":
			p.page.Remaining, err = strconv.ParseInt(string(value), 10, 64)
		}
		return err
	})
}

func (p *pager) list(f *jsonscan.Reader) error {
	if f.Peek() != '[' {
		v, err := f.Value()
		if err == nil && string(v) != "null" {
			err = errors.New("items is not an array")
		}
		return err
	}
	if p.sawKind && p.sawMeta {
		if err := p.start(); err != nil {
			return err
		}
	}
	return f.Array(func(item []byte) error {
		if !p.open {
			p.held = append(p.held, bytes.Clone(item))
			return nil
		}
		p.refused = p.item(item)
		return p.refused
	})
}

// start calls begin, when that was not done.
func (p *pager) start() error {
	switch {
	case p.open:
		return nil
	case p.partial && p.kind != partialKind+"List":
		return fmt.Errorf("the answer is a %.100q, though only metadata was asked for", p.kind)
	case p.page.RV == "":
		return errors.New("the list has no resourceVersion")
	}
	p.open = true
	p.refused = p.begin(p.page)
	return p.refused
}

func (p *pager) release() error {
	for i, item := range p.held {
		p.held[i] = nil
		if p.refused = p.item(item); p.refused != nil {
			return p.refused
		}
	}
	return nil
}
