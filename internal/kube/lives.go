package kube

import (
	"context"
	"net/http"
	"net/url"

	"github.com/tidwall/gjson"
)

// metadataOf asks for an object's metadata only, where the server can leave the rest out.
const metadataOf = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// Lives asks for the UID of the object that has the name at rv or later; empty when there is none.
// The answer comes from the server's cache once it has reached rv. Errors are those of [Client.Get]
// but for [IsNotFound].
func (c *Client) Lives(ctx context.Context, ref Ref, rv string) (uid string, err error) {
	q := url.Values{}
	setQuery(q, "resourceVersion", rv)
	body, err := c.do(ctx, request{method: http.MethodGet, path: ref.Resource.path(ref.Namespace, ref.Name, ""), query: q, accept: metadataOf})
	switch {
	case IsNotFound(err):
		return "", nil
	case err != nil:
		return "", err
	}
	return gjson.GetBytes(body, "metadata.uid").String(), nil
}
