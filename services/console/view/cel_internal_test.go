package view

import (
	"strings"
	"testing"
)

// What an expression may cost is counted once a call is over, and one call can make gigabytes of an
// object of ordinary size.
func TestExpressionsMakeNoLongTextsOfAnObject(t *testing.T) {
	t.Parallel()
	f, err := compile(`object.text.replace("", object.text) != ""`)
	if err != nil {
		t.Fatal(err)
	}
	object := map[string]any{"text": strings.Repeat("x", 4<<10)}
	if _, _, err := f.program.Eval(map[string]any{"object": object}); err == nil || !strings.Contains(err.Error(), "a text would be") {
		t.Errorf("a text of 16 MiB: %v, want that it is too long", err)
	}
	if _, err := compile(`object.name.matches(object.pattern)`); err == nil || !strings.Contains(err.Error(), "cel: the pattern of matches must be a literal") {
		t.Errorf("a pattern of the object: %v, want a refusal", err)
	}
}
