package jsonscan_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/deltaplane/deltaplane/internal/jsonscan"
)

// whole reads an object to its end.
func whole(r *jsonscan.Reader) error {
	err := r.Object(func([]byte) error {
		if r.Peek() == '[' {
			return r.Array(func([]byte) error { return nil })
		}
		_, err := r.Value()
		return err
	})
	if err != nil {
		return err
	}
	return r.End()
}

func TestATextThatBreaksOffIsAnErrorWhereverItDoes(t *testing.T) {
	t.Parallel()
	const text = `{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[{"a":"b\"c"},{"c":[1,2]}],"x":null}`
	broken := errors.New("connection reset")
	for n := range len(text) {
		if err := whole(jsonscan.NewReader(strings.NewReader(text[:n]), 8)); !errors.Is(err, jsonscan.ErrSyntax) {
			t.Errorf("%q = %v, want %v", text[:n], err, jsonscan.ErrSyntax)
		}
		r := jsonscan.NewReader(io.MultiReader(strings.NewReader(text[:n]), iotest.ErrReader(broken)), 8)
		if err := whole(r); !errors.Is(err, broken) || !errors.Is(r.Err(), broken) {
			t.Errorf("%q and a reset = %v, want %v", text[:n], err, broken)
		}
	}
	if err := whole(jsonscan.NewReader(io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken)), 8)); !errors.Is(err, broken) {
		t.Errorf("a whole text and a reset = %v; whether all came is not known", err)
	}
}

// A reader that never gets anywhere must not spin.
func TestAReaderWithoutProgressFails(t *testing.T) {
	t.Parallel()
	if err := whole(jsonscan.NewReader(empty{}, 8)); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("%v, want %v", err, io.ErrNoProgress)
	}
}

type empty struct{}

func (empty) Read([]byte) (int, error) { return 0, nil }

func ExampleScanner() {
	s := jsonscan.Over([]byte(`{"metadata": {"name": "a"}, "spec": {"nodeName": "n"}}`))
	err := s.Object(func(begin int, key []byte) error {
		value, err := s.Value()
		fmt.Printf("%s at %d: %s\n", key, begin, value)
		return err
	})
	fmt.Println(err)
	// Output:
	// metadata at 1: {"name": "a"}
	// spec at 28: {"nodeName": "n"}
	// <nil>
}

// most counts what is asked of a connection at once, which is what the buffer has room for.
type most struct {
	r io.Reader
	n int
}

func (m *most) Read(p []byte) (int, error) {
	m.n = max(m.n, len(p))
	return m.r.Read(p)
}

func TestTheReaderHoldsOneElementAtATime(t *testing.T) {
	t.Parallel()
	const items = 20_000
	var b strings.Builder
	b.WriteString(`{"items":[{"big":"` + strings.Repeat("x", 3<<20) + `"}`)
	for i := range items {
		fmt.Fprintf(&b, `,{"metadata":{"name":"p%d"},"x":%q}`, i, strings.Repeat("y", 500))
	}
	b.WriteString("]}")
	in := &most{r: strings.NewReader(b.String())}
	r, n, size := jsonscan.NewReader(in, 64<<10), 0, 0
	err := r.Object(func([]byte) error {
		return r.Array(func(element []byte) error { n, size = n+1, size+len(element); return nil })
	})
	if err != nil || n != items+1 || size < 13<<20 {
		t.Fatalf("%d elements, %d bytes, %v", n, size, err)
	}
	if in.n > 8<<20 {
		t.Errorf("the buffer has room for %d bytes, for an element of 3 MB", in.n)
	}
}
