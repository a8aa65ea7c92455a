package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Columns are those of the Table that the API server makes of a resource.
func (c *Client) Columns(ctx context.Context, r Resource) ([]metav1.TableColumnDefinition, error) {
	raw, err := c.do(ctx, request{
		method: http.MethodGet, path: r.path("", "", ""), query: url.Values{"limit": {"1"}, "includeObject": {"None"}},
		accept: "application/json;as=Table;g=meta.k8s.io;v=v1",
	})
	if err != nil {
		return nil, err
	}
	var t metav1.Table
	if err := json.Unmarshal(raw, &t); err != nil {
		return nil, fmt.Errorf("%w: a table of %s: %w", ErrBadAnswer, r.Name, err)
	}
	if t.Kind != "Table" || len(t.ColumnDefinitions) == 0 {
		return nil, fmt.Errorf("%w: %s: want a table with columns, got %q", ErrBadAnswer, r.Name, t.Kind)
	}
	return t.ColumnDefinitions, nil
}
