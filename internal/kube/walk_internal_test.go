package kube

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
)

// walked reports whether a strict walker takes text for one value.
func walked(text []byte) bool {
	w := walker{b: text, strict: true}
	_, err := w.value()
	return err == nil && w.end() == nil
}

func TestTheWalkerAcceptsExactlyValidJSON(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "0", "-0", "01", "-", "1.", "1.5", ".5", "1e", "1e+", "1E-7", "-1.0e10", "+1", "0x1", "NaN", "true", "tru", "truee", "null", "nul", "false ",
		`""`, `"`, `"a`, `"a\\"`, `"a\"`, `"\u00e9"`, `"\u00g9"`, `"\u12"`, `"\x"`, "\"\n\"", "\"\x00\"", "\"\x7f\"", "\"\xff\"", `"12345678\"90"`, `"1234567"`, `"12345678"`,
		"{}", "{ }", "{", "}", "[]", "[ ]", "[", "]", "[}", "{]", "[1,]", "[,1]", "[1 2]", "[1,2]", `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1 "b":2}`,
		`{"a":1,"b":[{},{"c":null}]}`, `{a:1}`, `{"a":1}x`, "\t[\r\n]\v", "\ufeff[]", `[[[]]`, `[]]`, `{"a":{"b":}}`, `[1,"a",true,null,{}]`,
	} {
		if got, want := walked([]byte(text)), json.Valid([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	for _, depth := range []int{delta.MaxDepth, delta.MaxDepth + 1} {
		text := []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
		if got, want := walked(text), !delta.TooDeep(text); got != want {
			t.Errorf("%d deep: %v, want %v", depth, got, want)
		}
	}
}

// A pod with a few bytes changed: the walker and the standard library agree, and Normalize never stores what is not JSON.
func TestTheWalkerAgreesOnDamagedPods(t *testing.T) {
	t.Parallel()
	pod, err := os.ReadFile("testdata/pod.json")
	if err != nil {
		t.Fatal(err)
	}
	valid := 0
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 5))
		text := bytes.Clone(pod)
		for range 1 + rng.IntN(3) {
			at := rng.IntN(len(text))
			switch rng.IntN(4) {
			case 0:
				text[at] = byte(rng.Uint32())
			case 1:
				text[at] = `{}[]",:\0 e`[rng.IntN(11)]
			case 2:
				text = append(text[:at], text[at+1:]...)
			default:
				if rng.IntN(4) == 0 {
					text = text[:at+1]
				}
			}
		}
		if json.Valid(text) {
			valid++
		}
		agree(t, text)
	}
	if valid < 100 || valid > 1400 {
		t.Errorf("%d of 1500 are valid: the damage says nothing", valid)
	}
}

// closed is how long the string, object or array is that begins text, by its brackets and quotes alone; 0 when it does not end.
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

func agree(t *testing.T, text []byte) {
	t.Helper()
	if got, want := walked(text), json.Valid(text) && !delta.TooDeep(text); got != want {
		t.Fatalf("walked %v, valid %v:\n%q", got, want, text)
	}
	w := walker{b: text}
	if c := w.peek(); c == '"' || c == '{' || c == '[' {
		want := closed(text[w.i:])
		v, err := w.value()
		if (err == nil) != (want > 0) || err == nil && len(v) != want {
			t.Fatalf("a value of %d bytes, %v, want %d:\n%q", len(v), err, want, text)
		}
	}
	tr := Transform{Hints: map[string]string{"node": "spec.nodeName"}}
	slow := Transform{Hints: map[string]string{"node": "spec.nodeName", "slow": "spec.#"}} // not found on the way
	r := Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}
	o, err := tr.Normalize(text, r)
	if err == nil && !json.Valid(o.Payload) {
		t.Fatalf("stored %q", o.Payload)
	}
	if s, _ := slow.Normalize(text, r); err == nil && len(o.Hints["node"]) == 1 && (len(s.Hints["node"]) != 1 || s.Hints["node"][0] != o.Hints["node"][0]) {
		t.Fatalf("hints %v, by path %v", o.Hints, s.Hints)
	}
}

func FuzzWalker(f *testing.F) {
	for _, text := range []string{`{"metadata":{"name":"a","resourceVersion":"1"},"spec":{"nodeName":"n"}}`, `[1.5e3,"\u00e9\n",null]`, `{"a":[{}`, `{"a":{"\`} {
		f.Add([]byte(text))
	}
	f.Fuzz(agree)
}
