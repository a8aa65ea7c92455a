package serve

import (
	"strings"
	"testing"
)

func TestAPasswordIsNotShown(t *testing.T) {
	t.Parallel()
	for _, list := range []string{"nats://u:hush@a:1,nats://u:hush@b:1", "nats://u:hush@a b"} {
		if got := withoutPassword(list); strings.Contains(got, "hush") {
			t.Errorf("%q is shown as %q", list, got)
		}
	}
}
