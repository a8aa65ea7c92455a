package show

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestObjectsAreOrderedByWhatIsAtAPath(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ values, want []string }{
		"numbers":            {[]string{"10", "9", "-1", "9.5"}, []string{"-1", "9", "9.5", "10"}},
		"quantities":         {[]string{`"1Gi"`, `"900Mi"`, `"2k"`}, []string{`"2k"`, `"900Mi"`, `"1Gi"`}},
		"times":              {[]string{`"2026-11-02T00:00:00Z"`, `"2025-12-01T00:00:00Z"`}, []string{`"2025-12-01T00:00:00Z"`, `"2026-11-02T00:00:00Z"`}},
		"text with numbers":  {[]string{`"pod-10"`, `"pod-2"`, `"pod-02"`, `"pod"`, `"p"`}, []string{`"p"`, `"pod"`, `"pod-2"`, `"pod-02"`, `"pod-10"`}},
		"without a value":    {[]string{`"b"`, "null", `"a"`}, []string{"null", `"a"`, `"b"`}},
		"truth":              {[]string{"true", "false"}, []string{"false", "true"}},
		"equal ones in turn": {[]string{"1", "1.0", "0"}, []string{"0", "1", "1.0"}},
	} {
		payloads := make([][]byte, len(c.values))
		for i, v := range c.values {
			payloads[i] = fmt.Appendf(nil, `{"spec":{"x":%s}}`, v)
		}
		order, err := Order(".spec.x", payloads)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := make([]string, len(order))
		for i, from := range order {
			got[i] = c.values[from]
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestAnOrderByNothingIsRefused(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		".spec.y": "no object has .spec.y",
		".spec":   ".spec is not one value",
		".a[":     "template",
		"":        `path ""`,
	} {
		if _, err := Order(path, [][]byte{[]byte(`{"spec":{"x":1}}`)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v does not say %q", path, err, want)
		}
	}
	if order, err := Order(".spec.x", nil); err != nil || len(order) != 0 {
		t.Errorf("of no objects: %v, %v", order, err)
	}
}
