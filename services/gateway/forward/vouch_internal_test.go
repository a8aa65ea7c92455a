package forward

import (
	"net/http"
	"reflect"
	"testing"

	"github.com/deltaplane/deltaplane/core/access"
)

func TestWhatASenderWritesOfItselfIsReplaced(t *testing.T) {
	t.Parallel()
	id := &access.Identity{User: "jane", UID: "u", Groups: []string{"a", access.Authenticated, "b"}, Extra: map[string][]string{"example.com/k": {"1", "2"}}}
	for _, tc := range []struct {
		front bool
		want  http.Header
	}{
		{false, http.Header{
			"Impersonate-User": {"jane"}, "Impersonate-Uid": {"u"}, "Impersonate-Group": {"a", "b"}, "Impersonate-Extra-Example.com%2fk": {"1", "2"}, "Accept": {"*/*"},
		}},
		{true, http.Header{
			"X-Remote-User": {"jane"}, "X-Remote-Uid": {"u"}, "X-Remote-Group": {"a", "b"}, "X-Remote-Extra-Example.com%2fk": {"1", "2"}, "Accept": {"*/*"},
			"Impersonate-User": {"eve"}, "Impersonate-Extra-Scopes": {"all"},
		}},
	} {
		h := http.Header{"Authorization": {"Bearer t"}, "Accept": {"*/*"}, "Impersonate-User": {"eve"}, "Impersonate-Extra-Scopes": {"all"}}
		(&Voucher{FrontProxy: tc.front}).name(h, id)
		if !reflect.DeepEqual(h, tc.want) {
			t.Errorf("front proxy %v: %v, want %v", tc.front, h, tc.want)
		}
	}
}
