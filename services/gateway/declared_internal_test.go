package gateway

import (
	"strconv"
	"testing"

	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// selecting is a read of a resource by a field.
func selecting(resource, field string) *request.Read {
	return &request.Read{Path: request.Path{Resource: request.Resource{Version: "v1", Name: resource}}, Declared: []string{field}}
}

func TestNothingIsKeptOfResourcesThatOnlyRequestsName(t *testing.T) {
	t.Parallel()
	var s Service
	for i := range 100 {
		if s.alone(selecting("made-up-"+strconv.Itoa(i), "spec.a"), "unmirrored") {
			t.Fatal("the fields of a resource that nobody looked at are known")
		}
	}
	if n := len(s.declared.all); n != 0 {
		t.Errorf("%d resources are kept", n)
	}
}
