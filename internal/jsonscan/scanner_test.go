package jsonscan_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/deltaplane/deltaplane/internal/jsonscan"
	"github.com/deltaplane/deltaplane/internal/jsonscan/jsonscantest"
)

const maxDepth = 1000

// tooDeep reports whether text, which is JSON, nests deeper than maxDepth.
func tooDeep(text []byte) bool {
	depth, deepest := 0, 0
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		if err != nil {
			return deepest > maxDepth
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
			deepest = max(deepest, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

// read turns the next value into what encoding/json decodes it to.
func read(s *jsonscan.Scanner) (any, error) {
	switch s.Peek() {
	case '{':
		object := map[string]any{}
		err := s.Object(func(begin int, key []byte) error {
			quoted := s.Text()[begin : begin+len(key)+2]
			name, err := jsonscan.Unquote(quoted)
			if err != nil {
				return err
			}
			object[name], err = read(s)
			return err
		})
		return object, err
	case '[':
		array := []any{}
		err := s.Array(func() error {
			v, err := read(s)
			array = append(array, v)
			return err
		})
		return array, err
	}
	raw, err := s.Value()
	if err != nil {
		return nil, err
	}
	switch raw[0] {
	case '"':
		return jsonscan.Unquote(raw)
	case 't', 'f':
		return raw[0] == 't', nil
	case 'n':
		return nil, nil
	}
	return json.Number(raw), nil
}

// agree holds the scanners to encoding/json.
func agree(t *testing.T, text []byte) {
	t.Helper()
	valid := json.Valid(text)
	want := valid && !tooDeep(text)
	err := jsonscan.Valid(text, maxDepth)
	if (err == nil) != want {
		t.Fatalf("valid %v, want %v: %q", err, want, text)
	}
	if valid && !want && !errors.Is(err, jsonscan.ErrDepth) {
		t.Fatalf("an error of a text that is only too deep is %v", err)
	}
	strict := jsonscan.Scanner{Strict: true, MaxDepth: maxDepth}
	strict.Reset(text)
	got, err := read(&strict)
	if err == nil {
		err = strict.End()
	}
	if (err == nil) != want {
		t.Fatalf("read with %v, want %v: %q", err, want, text)
	}
	loose := jsonscan.Over(text)
	passed, looseErr := read(&loose)
	if looseErr == nil {
		looseErr = loose.End()
	}
	if want {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		var decoded any
		if err := d.Decode(&decoded); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, decoded) { // cmp takes very long over what nests
			t.Fatalf("%q: read %#v, want %#v", text, got, decoded)
		}
		if looseErr != nil || !reflect.DeepEqual(passed, decoded) {
			t.Fatalf("%q, not strict: %v, read %#v, want %#v", text, looseErr, passed, decoded)
		}
	}
	skipped(t, text)
	pieces(t, text)
}

// skipped checks where a scanner that is not strict finds the end of text's first value.
func skipped(t *testing.T, text []byte) {
	t.Helper()
	s := jsonscan.Over(text)
	if c := s.Peek(); c != '"' && c != '{' && c != '[' {
		return
	}
	want := closed(text[s.Offset():])
	again := s
	v, err := s.Value()
	if (err == nil) != (want > 0) || err == nil && len(v) != want {
		t.Fatalf("a value of %d bytes, %v, want %d: %q", len(v), err, want, text)
	}
	if err := again.Skip(); (err == nil) != (want > 0) || err == nil && again.Offset() != s.Offset() {
		t.Fatalf("skipped to %d, %v, want %d: %q", again.Offset(), err, s.Offset(), text)
	}
}

// closed is how long the string, object or array is that begins text, by its brackets and quotes
// alone; 0 when it does not end.
func closed(text []byte) int {
	var due []byte
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == '{':
			due = append(due, '}')
		case c == '[':
			due = append(due, ']')
		case c == '}' || c == ']':
			if due[len(due)-1] != c {
				return 0
			}
			due = due[:len(due)-1]
		}
		if !quoted && len(due) == 0 {
			return i + 1
		}
	}
	return 0
}

// pieces checks that a reader finds the members that a scanner finds.
func pieces(t *testing.T, text []byte) {
	t.Helper()
	var want, got []string
	wantErr := jsonscan.Members(text, func(_, _ int, key, value []byte) error {
		want = append(want, string(key), string(value))
		return nil
	})
	readers := []io.Reader{iotest.HalfReader(bytes.NewReader(text)), iotest.DataErrReader(bytes.NewReader(text))}
	if len(text) < 1000 { // else it takes long
		readers = append(readers, iotest.OneByteReader(bytes.NewReader(text)))
	}
	for _, r := range readers {
		got = nil
		reader := jsonscan.NewReader(r, 3)
		err := reader.Object(func(key []byte) error {
			value, err := reader.Value()
			got = append(got, string(key), string(value))
			return err
		})
		if err == nil {
			err = reader.End()
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q in pieces: %v, want %v", text, err, wantErr)
		}
		if err == nil && !slices.Equal(got, want) {
			t.Fatalf("%q in pieces: %q, want %q", text, got, want)
		}
	}
}

var texts = []string{
	"", " ", "0", "-0", "01", "-", "1.", "1.5", ".5", "1e", "1e+", "1E-7", "-1.0e10", "+1", "0x1", "NaN", "true", "tru", "truee", "null", "nul", "false ",
	`""`, `"`, `"a`, `"a\\"`, `"a\"`, `"\u00e9"`, `"\u00g9"`, `"\u12"`, `"\x"`, "\"\n\"", "\"\x00\"", "\"\x7f\"", "\"\xff\"", `"12345678\"90"`, `"1234567"`, `"12345678"`,
	"{}", "{ }", "{", "}", "[]", "[ ]", "[", "]", "[}", "{]", "[1,]", "[,1]", "[1 2]", "[1,2]", `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1 "b":2}`,
	`{"a":1,"b":[{},{"c":null}]}`, `{a:1}`, `{"a":1}x`, "\t[\r\n]\v", "\ufeff[]", `[[[]]`, `[]]`, `{"a":{"b":}}`, `[1,"a",true,null,{}]`,
	`{"metadata":{"name":"a","resourceVersion":"1"},"spec":{"nodeName":"n"}}`, `[1.5e3,"\u00e9\n",null]`, `{"a":[{}`, `{"a":{"\`,
	`{"a":["\\\"\\","\e]\"",{"\\":"\\\\"}]}`, `{"a":1,"a":[2],"\u0061":"\ud800"}`, "{\"\xff\":\"\\ud83d\\ude00\xfe\"}", `{"a":[1]}{`, `{"a":tru}`, `{"a":1"b":2}`,
	strings.Repeat("[", 70) + `{"a":"b"}` + strings.Repeat("]", 70), strings.Repeat(`{"a":[`, 40) + strings.Repeat(`]}`, 39) + `}]`,
}

func TestTheScannerAcceptsExactlyValidJSON(t *testing.T) {
	t.Parallel()
	for _, text := range texts {
		agree(t, []byte(text))
	}
	for _, depth := range []int{maxDepth, maxDepth + 1} {
		for _, pair := range []string{"[]", `{"a":1}`} {
			opening, closing := pair[:1], pair[len(pair)-1:]
			if opening == "{" {
				opening = `{"a":`
			}
			agree(t, []byte(strings.Repeat(opening, depth)+"1"+strings.Repeat(closing, depth)))
		}
	}
}

func TestTheScannerBoundsTheDepthOfWhatItSkips(t *testing.T) {
	t.Parallel()
	nested := func(depth int) []byte {
		return fmt.Appendf(nil, `{"a":%s%s}`, strings.Repeat("[", depth-1), strings.Repeat("]", depth-1))
	}
	for _, strict := range []bool{false, true} {
		for depth, want := range map[int]error{maxDepth: nil, maxDepth + 1: jsonscan.ErrDepth} {
			s := jsonscan.Scanner{Strict: strict, MaxDepth: maxDepth}
			s.Reset(nested(depth))
			err := s.Object(func(int, []byte) error { _, err := s.Value(); return err })
			if !errors.Is(err, want) {
				t.Errorf("strict %v, %d deep: %v, want %v", strict, depth, err, want)
			}
		}
		s := jsonscan.Scanner{Strict: strict, MaxDepth: maxDepth}
		s.Reset(nested(2 * maxDepth))
		if err := s.Object(func(int, []byte) error { return s.Skip() }); err != nil {
			t.Errorf("Skip has a bound: %v", err)
		}
	}
}

func TestAnErrorOfTheCallbackIsReturnedAsItIs(t *testing.T) {
	t.Parallel()
	stop := errors.New("stop")
	for _, text := range []string{`{"a":1}`, `[1]`} {
		s := jsonscan.Over([]byte(text))
		err := s.Object(func(int, []byte) error { return stop })
		if text[0] == '[' {
			s.Reset([]byte(text))
			err = s.Array(func() error { return stop })
		}
		if err != stop { //nolint:errorlint // not wrapped
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A pod with a few bytes changed: the scanner and the standard library agree.
func TestTheScannerAgreesOnDamagedPods(t *testing.T) {
	t.Parallel()
	pod, err := os.ReadFile("../kube/testdata/pod.json")
	if err != nil {
		t.Fatal(err)
	}
	valid := 0
	for seed := range uint64(1500) {
		text := jsonscantest.Damage(pod, seed)
		if json.Valid(text) {
			valid++
		}
		agree(t, text)
	}
	if valid < 100 || valid > 1400 {
		t.Errorf("%d of 1500 are valid: the damage says nothing", valid)
	}
}

func TestNothingIsAllocatedForAnOrdinaryText(t *testing.T) { //nolint:paralleltest // AllocsPerRun counts others' too
	pod, err := os.ReadFile("../kube/testdata/pod.json")
	if err != nil {
		t.Fatal(err)
	}
	pod = bytes.TrimSpace(pod)
	for _, strict := range []bool{false, true} {
		allocations := testing.AllocsPerRun(100, func() {
			s := jsonscan.Scanner{Strict: strict, MaxDepth: maxDepth}
			s.Reset(pod)
			members := 0
			err := s.Object(func(int, []byte) error {
				members++
				_, err := s.Value()
				return err
			})
			if err != nil || members == 0 {
				t.Fatal(members, err)
			}
		})
		if allocations > 0 {
			t.Errorf("strict %v: %.0f allocations", strict, allocations)
		}
	}
}

// FuzzScanner holds what scans JSON to encoding/json: it accepts the same texts and reads the same
// values, with the text in hand and in pieces.
func FuzzScanner(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(agree)
}

func BenchmarkScanner(b *testing.B) {
	pod, err := os.ReadFile("../kube/testdata/pod.json")
	if err != nil {
		b.Fatal(err)
	}
	pod = bytes.TrimSpace(pod)
	for name, strict := range map[string]bool{"strict": true, "skip": false} {
		b.Run(name, func(b *testing.B) {
			s := jsonscan.Scanner{Strict: strict, MaxDepth: maxDepth}
			b.SetBytes(int64(len(pod)))
			b.ReportAllocs()
			for b.Loop() {
				s.Reset(pod)
				if _, err := s.Value(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
