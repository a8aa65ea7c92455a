package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"
)

// CheckPath refuses a path that [Order] does not know.
func CheckPath(path string) error {
	_, err := parsePath(path)
	return err
}

// Order is the order of objects by what they have at a path, such as .metadata.creationTimestamp:
// numbers and quantities by their value, other text as people count, and objects without a value
// first. Equal ones stay as they are. It fails when no object has a value, and when a value is a
// list or an object.
func Order(at string, payloads [][]byte) (order []int, err error) {
	path, err := parsePath(at)
	if err != nil {
		return nil, err
	}
	keys, some := make([]any, len(payloads)), false
	for i, payload := range payloads {
		content, err := decode(payload)
		if err != nil {
			return nil, err
		}
		found, err := path.FindResults(content)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 && len(found[0]) > 0 {
			keys[i], some = found[0][0].Interface(), true
		}
		switch keys[i].(type) {
		case map[string]any, []any:
			return nil, fmt.Errorf("%s is not one value", at)
		}
		order = append(order, i)
	}
	if !some && len(payloads) > 0 {
		return nil, fmt.Errorf("no object has %s", at)
	}
	slices.SortStableFunc(order, func(a, b int) int { return compare(keys[a], keys[b]) })
	return order, nil
}

func compare(a, b any) int {
	if a == nil || b == nil {
		return cmp.Compare(btoi(a != nil), btoi(b != nil))
	}
	if x, ok := numberOf(a); ok {
		if y, ok := numberOf(b); ok {
			return cmp.Compare(x, y)
		}
	}
	x, y := fmt.Sprint(a), fmt.Sprint(b)
	if p, err := resource.ParseQuantity(x); err == nil {
		if q, err := resource.ParseQuantity(y); err == nil {
			return p.Cmp(q)
		}
	}
	return natural(x, y)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func numberOf(v any) (float64, bool) {
	switch n := v.(type) {
	case int64:
		return float64(n), true
	case float64:
		return n, true
	}
	return 0, false
}

// natural compares texts with their whole numbers as numbers: pod-2 comes before pod-10.
func natural(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x == 0 || y == 0 {
			if c := cmp.Compare(a[0], b[0]); c != 0 {
				return c
			}
			a, b = a[1:], b[1:]
			continue
		}
		p, q := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
		if c := cmp.Or(cmp.Compare(len(p), len(q)), cmp.Compare(p, q), cmp.Compare(x, y)); c != 0 {
			return c
		}
		a, b = a[x:], b[y:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits is how many digits a text begins with.
func digits(s string) int {
	return len(s) - len(strings.TrimLeftFunc(s, func(r rune) bool { return r < unicode.MaxASCII && unicode.IsDigit(r) }))
}
