package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

func TestAChildAnswersCallsUntilItsInputEnds(t *testing.T) {
	t.Parallel()
	in := strings.NewReader(`{"part":"indexer"}
{"op":"usage"}
{"op":"frob"}
`)
	var out bytes.Buffer
	if err := harness.ServeChild(t.Context(), servants(), "pipeline", in, &out); err != nil {
		t.Fatal(err)
	}
	answers := json.NewDecoder(&out)
	var info, used, unknown harness.Reply
	for _, r := range []*harness.Reply{&info, &used, &unknown} {
		if err := answers.Decode(r); err != nil {
			t.Fatal(err)
		}
	}
	var u harness.Usage
	if err := json.Unmarshal(used.Value, &u); err != nil || u.CPU <= 0 || u.Mallocs == 0 {
		t.Errorf("usage = %+v, %v", u, err)
	}
	if info.Error != "" || !strings.Contains(unknown.Error, `"frob"`) {
		t.Errorf("answers %+v and %+v, want the second to name the operation", info, unknown)
	}
}

func TestAChildOfUnknownKindOrThatCannotStartSaysSo(t *testing.T) {
	t.Parallel()
	if err := harness.ServeChild(t.Context(), servants(), "frob", strings.NewReader("{}"), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "informer") {
		t.Errorf("unknown child = %v, want the kinds there are", err)
	}
	var out bytes.Buffer
	if err := harness.ServeChild(t.Context(), servants(), "pipeline", strings.NewReader(`{"part":"frob"}`), &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "unknown part") {
		t.Errorf("answer = %s, want the unknown part", &out)
	}
}
