package gateway_test

import (
	"testing"

	"github.com/deltaplane/deltaplane/test/api"
)

// The suite that holds the dev cluster against a real API server, through the gateway.
func TestTheAPISuiteThroughTheGateway(t *testing.T) {
	t.Parallel()
	r := onDevCluster(t, nil)
	r.mirrored("/api/v1/configmaps", "/api/v1/pods", "/apis/batch/v1/jobs")
	api.Run(t, api.Target{URL: r.url, Client: r.client, FoldsEvents: true})
	t.Logf("%v", r.gather())
}

func TestRealTheAPISuiteThroughTheGateway(t *testing.T) {
	t.Parallel()
	r := onRealServer(t, nil)
	r.mirrored("/api/v1/configmaps", "/api/v1/pods", "/apis/batch/v1/jobs")
	api.Run(t, api.Target{URL: r.url, Client: r.client, CachesWatches: true, FoldsEvents: true})
	t.Logf("%v", r.gather())
}
