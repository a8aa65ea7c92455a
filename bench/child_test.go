package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestAChildAnswersCallsUntilItsInputEnds(t *testing.T) {
	t.Parallel()
	in := strings.NewReader(`{"part":"indexer"}
{"op":"usage"}
{"op":"frob"}
`)
	var out bytes.Buffer
	if err := serveChild(t.Context(), servants(), "pipeline", in, &out); err != nil {
		t.Fatal(err)
	}
	answers := json.NewDecoder(&out)
	var info, used, unknown reply
	for _, r := range []*reply{&info, &used, &unknown} {
		if err := answers.Decode(r); err != nil {
			t.Fatal(err)
		}
	}
	var u usage
	if err := json.Unmarshal(used.Value, &u); err != nil || u.CPU <= 0 || u.Mallocs == 0 {
		t.Errorf("usage = %+v, %v", u, err)
	}
	if info.Error != "" || !strings.Contains(unknown.Error, `"frob"`) {
		t.Errorf("answers %+v and %+v, want the second to name the operation", info, unknown)
	}
}

func TestAChildOfUnknownKindOrThatCannotStartSaysSo(t *testing.T) {
	t.Parallel()
	if err := serveChild(t.Context(), servants(), "frob", strings.NewReader("{}"), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "informer") {
		t.Errorf("unknown child = %v, want the kinds there are", err)
	}
	var out bytes.Buffer
	if err := serveChild(t.Context(), servants(), "pipeline", strings.NewReader(`{"part":"frob"}`), &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "unknown part") {
		t.Errorf("answer = %s, want the unknown part", &out)
	}
}

func TestSidesTakeTurnsAndTheFirstIsNotCounted(t *testing.T) {
	t.Parallel()
	var order []string
	turn := func(name string) side {
		return side{name, func() func(context.Context, time.Duration) (map[string]float64, error) {
			n := 0.
			return func(context.Context, time.Duration) (map[string]float64, error) {
				n++
				order = append(order, name)
				return map[string]float64{"n": n}, nil
			}
		}()}
	}
	for want, rotate := range map[string]bool{"abcabcabcabc": false, "abcabcacbcab": true} {
		order = nil
		b := &bench{stderr: &bytes.Buffer{}}
		got, err := interleave(t.Context(), b, plan{what: "test", rounds: 3, turn: time.Millisecond, rotate: rotate}, turn("a"), turn("b"), turn("c"))
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(order, ""); text != want {
			t.Errorf("order %q, want %s", text, want)
		}
		if n := got.of("b", "n"); len(n) != 3 || n[0]+n[1]+n[2] != 9 {
			t.Errorf("b's rounds = %v, want 2, 3 and 4", n)
		}
	}
}
