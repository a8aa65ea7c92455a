package delta_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
)

// What a later build writes is not malformed: it is named, and only a control record of an unknown
// kind may be passed over.
func TestWhatALaterBuildWritesIsNamed(t *testing.T) {
	t.Parallel()
	deletion := delta.Record{Kind: delta.KindDelta, Collection: jobs, Key: "n", Type: delta.Deleted, RV: "1", DeleteReason: delta.Observed}
	control := jobs.ControlSubject(delta.KindProgress)
	unknownKind := strings.TrimSuffix(control, "progress") + "compacted"
	for name, row := range map[string]struct {
		record  delta.Record
		subject string // the record's own when it is empty
		header  string
		value   string
		want    delta.UnknownError
		skip    bool
	}{
		"a version":                       {record: full(), header: delta.HeaderVersion, value: "2", want: delta.UnknownError{Part: delta.PartVersion, Value: "2"}},
		"a version of a control record":   {record: delta.Record{Kind: delta.KindSynced, Collection: jobs}, header: delta.HeaderVersion, value: "9", want: delta.UnknownError{Part: delta.PartVersion, Value: "9"}},
		"a type":                          {record: full(), header: delta.HeaderType, value: "MOVED", want: delta.UnknownError{Part: delta.PartType, Value: "MOVED"}},
		"an encoding":                     {record: full(), header: delta.HeaderEncoding, value: "cbor", want: delta.UnknownError{Part: delta.PartEncoding, Value: "cbor"}},
		"a kind":                          {record: delta.Record{Kind: delta.KindProgress, Collection: jobs}, subject: unknownKind, header: delta.HeaderKind, value: "compacted", want: delta.UnknownError{Part: delta.PartKind, Value: "compacted"}, skip: true},
		"a kind that needs a version too": {record: delta.Record{Kind: delta.KindProgress, Collection: jobs}, subject: unknownKind, header: delta.HeaderVersion, value: "2", want: delta.UnknownError{Part: delta.PartVersion, Value: "2"}},
	} {
		h := row.record.Header()
		h[row.header] = []string{row.value}
		if row.subject == "" {
			row.subject = row.record.Subject()
		}
		_, err := delta.DecodeRecord(row.subject, h, nil)
		got, ok := errors.AsType[*delta.UnknownError](err)
		if !ok || *got != row.want || got.Skippable() != row.skip || errors.Is(err, delta.ErrHeader) || !strings.Contains(err.Error(), row.value) {
			t.Errorf("%s: %v (%+v), want %+v, to be passed over: %v", name, err, got, row.want, row.skip)
		}
	}

	h := deletion.Header()
	h[delta.HeaderReason] = []string{"boredom"}
	if r, err := delta.DecodeRecord(deletion.Subject(), h, nil); err != nil || !r.Tombstone() || r.DeleteReason.Known() || r.DeleteReason != "boredom" {
		t.Errorf("a deletion for an unknown reason: %+v, %v; want a deletion", r, err)
	}
}

// Headers that a build does not know change nothing of what it reads.
func TestUnknownHeadersArePassedOver(t *testing.T) {
	t.Parallel()
	for _, want := range []delta.Record{full(), {Kind: delta.KindTerm, Collection: jobs, Epoch: 1, Term: 2, Start: 9, Writer: "a"}} {
		h := want.Header()
		before, err := delta.DecodeRecord(want.Subject(), h, nil)
		if err != nil {
			t.Fatal(err)
		}
		h["Dp-Compacted"], h["Dp-Z"] = []string{"1", "2"}, []string{""}
		after, err := delta.DecodeRecord(want.Subject(), h, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s (-without +with):\n%s", want.Kind, diff)
		}
	}
}

// A version that is no number, or is missing, is damage and no later build's.
func TestAVersionThatIsNoneIsMalformed(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", "0", "-1", "two"} {
		r := full()
		h := r.Header()
		h[delta.HeaderVersion] = []string{version}
		if _, err := delta.DecodeRecord(r.Subject(), h, nil); !errors.Is(err, delta.ErrHeader) {
			t.Errorf("version %q: %v, want ErrHeader", version, err)
		}
	}
	if _, err := delta.DecodeRecord(jobs.ControlSubject(delta.KindDelta), map[string][]string{delta.HeaderVersion: {"2"}}, nil); !errors.Is(err, delta.ErrSubject) {
		t.Errorf("a delta on a control subject: %v, want ErrSubject", err)
	}
}

// What a build announces it writes; this one writes what every reader of version 1 reads.
func TestThisBuildWritesAndReadsItsVersion(t *testing.T) {
	t.Parallel()
	for kind := delta.KindDelta; kind <= delta.KindOrigin; kind++ {
		r := delta.Record{Kind: kind, Collection: jobs}
		if got := r.Header()[delta.HeaderVersion]; len(got) != 1 || got[0] != "1" {
			t.Errorf("%s records have version %q, want 1", kind, got)
		}
	}
	if delta.Reads() != delta.SchemaVersion || delta.Announced() != 0 {
		t.Errorf("reads up to %d, announces %d; want %d and nothing", delta.Reads(), delta.Announced(), delta.SchemaVersion)
	}
	if err := delta.Needs(delta.SchemaVersion); err != nil {
		t.Errorf("the version of this build: %v", err)
	}
	if _, ok := errors.AsType[*delta.UnknownError](delta.Needs(delta.SchemaVersion + 1)); !ok {
		t.Error("the next version is taken for one that this build reads")
	}
}

func TestANewerLogIsNamedInOneSentence(t *testing.T) {
	t.Parallel()
	n := &delta.NewerError{Sequence: 17, Unknown: &delta.UnknownError{Part: delta.PartVersion, Value: "2"}, Writer: "r1", Build: "v9"}
	want := "the log is written by r1 (build v9) in a newer form: record 17 needs version 2, this build reads up to 1; upgrade readers before reflectors"
	if got := n.Error(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
