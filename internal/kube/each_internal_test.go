package kube

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/internal/jsonscan"
)

// wholePage is the plain reader of a page with its whole text in hand: what [jsonscan.Reader] and
// [pager] must agree with.
func wholePage(body []byte) (Page, error) {
	var p Page
	var kind string
	var hasItems bool
	err := jsonscan.Members(body, func(_, _ int, key, value []byte) error {
		switch string(key) {
		case "kind":
			kind, _ = jsonscan.Unquote(value)
		case "metadata":
			return jsonscan.Members(value, func(_, _ int, key, value []byte) error {
				var err error
				switch string(key) {
				case "resourceVersion":
					p.RV, err = jsonscan.Unquote(value)
				case "continue":
					p.Continue, err = jsonscan.Unquote(value)
				case "remainingItemCount":
					p.Remaining, err = strconv.ParseInt(string(value), 10, 64)
				}
				return err
			})
		case "items":
			hasItems = true
			if string(value) == "null" {
				return nil
			}
			return jsonscan.Elements(value, func(item []byte) error {
				p.Items = append(p.Items, item)
				return nil
			})
		}
		return nil
	})
	switch {
	case err != nil:
		return Page{}, err
	case kind == "Table" || kind == "PartialObjectMetadata":
		return Page{}, fmt.Errorf("the answer is a %s, not a list", kind)
	case !hasItems:
		return Page{}, fmt.Errorf("the answer (kind %q) has no items", kind)
	case p.RV == "":
		return Page{}, errors.New("the list has no resourceVersion")
	}
	return p, nil
}

// twice reports whether a member the pager reads occurs twice; JSON does not say which counts, and
// it refuses them.
func twice(body []byte) bool {
	seen := map[string]int{}
	_ = jsonscan.Members(body, func(_, _ int, key, _ []byte) error {
		seen[string(key)]++
		return nil
	})
	return max(seen["kind"], seen["metadata"], seen["items"]) > 1
}

// ragged returns reads of random sizes, sometimes empty.
type ragged struct {
	r   io.Reader
	rng *rand.Rand
}

func (r *ragged) Read(p []byte) (int, error) { return r.r.Read(p[:r.rng.IntN(min(len(p), 40)+1)]) }

func readPage(r io.Reader, size int) (Page, bool, error) {
	var got Page
	begun := 0
	var header Page
	p := pager{
		begin: func(h Page) error { begun, header = begun+1, h; return nil },
		item: func(item []byte) error {
			if begun != 1 {
				return errors.New("an item came before the header")
			}
			got.Items = append(got.Items, bytes.Clone(item))
			return nil
		},
	}
	err := p.read(jsonscan.NewReader(r, size))
	got.RV, got.Continue, got.Remaining = p.page.RV, p.page.Continue, p.page.Remaining
	return got, begun == 1 && cmp.Equal(header, p.page), err
}

func FuzzPagesAreTheSameByPiecesAsAWhole(f *testing.F) {
	for _, s := range []string{
		`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"c","remainingItemCount":3},"items":[{"a":"\\\""},{"b":[1,{}]}]}`,
		`{"items":[{"a":1} , 2,"x",[true]],"x":{"y":"]}"},"metadata":{"resourceVersion":"7"},"kind":"List"}` + "\n",
		`{"kind":"Table","metadata":{"resourceVersion":"7"},"rows":[]}`, `{"metadata":{"resourceVersion":"7"},"items":[],"kind":"Table"}`,
		`{"metadata":{"resourceVersion":"7"},"items":null}`, `{"metadata":{"resourceVersion":"7"},"items":{}}`, `{"metadata":{},"items":[]}`,
		`{"metadata":{"resourceVersion":"7"},"items":[1,]}`, `{"metadata":{"resourceVersion":"7"},"items":[{]}`, `{"metadata":{"resourceVersion":"7"},"items":[1]`,
		`{"metadata":{"resourceVersion":"7"},"items":[1]} x`, `{"kind":"a","kind":"b"}`, `[]`, `nope`, ``, `{"items":[` + strings.Repeat("[", 300),
		`{"metadata":{"resourceVersion":"7"},"items":[` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `]}`, "{\x00", `{}`,
	} {
		f.Add([]byte(s), uint64(1))
	}
	f.Fuzz(func(t *testing.T, body []byte, seed uint64) {
		want, wantErr := wholePage(body)
		rng := rand.New(rand.NewPCG(seed, 0))
		for _, r := range []io.Reader{&ragged{bytes.NewReader(body), rng}, iotest.OneByteReader(bytes.NewReader(body)), iotest.DataErrReader(bytes.NewReader(body))} {
			got, begun, err := readPage(r, 1+rng.IntN(64))
			if wantErr == nil && twice(body) {
				if err == nil {
					t.Errorf("%q: members that occur twice are taken", body)
				}
				continue
			}
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%q: %v, want %v", body, err, wantErr)
			}
			if err != nil {
				continue
			}
			if diff := cmp.Diff(want, got); diff != "" || !begun {
				t.Errorf("%q: begun once with the header %v (-want +got):\n%s", body, begun, diff)
			}
		}
	})
}

func TestAPageThatBreaksOffIsAnErrorWhereverItDoes(t *testing.T) {
	t.Parallel()
	const body = `{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[{"a":"b"},{"c":[1,2]}]}`
	broken := errors.New("connection reset")
	for n := range len(body) {
		if _, _, err := readPage(strings.NewReader(body[:n]), 8); !errors.Is(err, jsonscan.ErrSyntax) {
			t.Errorf("%q = %v, want %v", body[:n], err, jsonscan.ErrSyntax)
		}
		if _, _, err := readPage(io.MultiReader(strings.NewReader(body[:n]), iotest.ErrReader(broken)), 8); !errors.Is(err, broken) {
			t.Errorf("%q and a reset = %v, want %v", body[:n], err, broken)
		}
	}
	if _, _, err := readPage(io.MultiReader(strings.NewReader(body), iotest.ErrReader(broken)), 8); !errors.Is(err, broken) {
		t.Errorf("a whole page and a reset = %v; whether all came is not known", err)
	}
	if _, _, err := readPage(&bounded{r: strings.NewReader(body), left: len(body) - 1}, 8); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a page beyond the bound = %v", err)
	}
}

func BenchmarkPage(b *testing.B) {
	var s strings.Builder
	s.WriteString(`{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[{}`)
	for i := range 2000 {
		fmt.Fprintf(&s, `,{"metadata":{"name":"p%d"},"env":[%s{}]}`, i, strings.Repeat(`{"name":"VAR","value":"some value"},`, 140))
	}
	s.WriteString("]}")
	text := []byte(s.String())
	b.Run("whole", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			body, _ := io.ReadAll(bytes.NewReader(text))
			if _, err := wholePage(body); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("pieces", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			p := pager{begin: func(Page) error { return nil }, item: func([]byte) error { return nil }}
			if err := p.read(jsonscan.NewReader(bytes.NewReader(text), feedSize)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
