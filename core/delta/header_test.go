package delta_test

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
)

var jobs = delta.Collection{Cluster: "dev", Group: "batch", Version: "v1", Resource: "jobs"}

func full() delta.Record {
	return delta.Record{
		Kind: delta.KindDelta, Collection: jobs, Key: "default/a,b=%", UID: "u-1", Type: delta.Deleted, RV: "12", Epoch: 3, Term: 4, Watermark: "11",
		Hash: 0xfeed, Payload: []byte(`{}`), Encoding: delta.EncodingJSON, Sealed: "0badcafe", Generation: 7,
		Owners:   []delta.Owner{{Kind: "CronJob", Name: "c,1", UID: "x=y", Controller: true}, {Kind: "Other", Name: "é"}},
		Hints:    map[string][]string{"node": {"n1", "n,2"}, "a=b": {"c"}},
		Labels:   map[string][]string{"app": {""}},
		Overflow: true, DeleteReason: delta.Inferred,
		ObservedAt: time.UnixMicro(1_700_000_000_000_001).UTC(), PublishedAt: time.UnixMicro(1_700_000_000_000_002).UTC(),
		Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

// The contract names every header, so that other languages can read the log.
func TestTheContractNamesEveryHeader(t *testing.T) {
	t.Parallel()
	contract, err := os.ReadFile("../../proto/deltaplane/delta/v1/delta.proto")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("header.go")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`"(Dp-[A-Za-z]+)"`).FindAllStringSubmatch(string(code), -1)
	for _, name := range names {
		if !regexp.MustCompile(name[1] + `\b`).Match(contract) {
			t.Errorf("the contract does not name %s", name[1])
		}
	}
	if len(names) < 20 {
		t.Errorf("%d headers were found", len(names))
	}
}

func TestARecordSurvivesItsHeaders(t *testing.T) {
	t.Parallel()
	for _, want := range []delta.Record{
		full(),
		{Kind: delta.KindDelta, Collection: jobs, Key: "n", Type: delta.Added, RV: "1"},
		{Kind: delta.KindSynced, Collection: jobs, RV: "9", Epoch: 1, Term: 2, Watermark: "9"},
		{Kind: delta.KindTerm, Collection: jobs, Epoch: 1, Term: 2, Start: 99, Writer: "host 1", Build: "v1.2 beta", Source: "1-2 3", Needs: 2},
		{Kind: delta.KindLiveness, Collection: jobs, Epoch: 1, Term: 2, Live: 7, Counted: true, Scope: delta.ClusterScoped, Names: []string{"job", "jb", "j-2"}},
		{Kind: delta.KindSynced, Collection: jobs, Epoch: 1, Term: 2, RV: "5", Scope: delta.Namespaced},
		{Kind: delta.KindSynced, Collection: jobs, Epoch: 1, Term: 2, RV: "5", Dropped: []string{delta.LastApplied, "status.ein Ö"}},
		{Kind: delta.KindLiveness, Collection: jobs, Epoch: 1, Term: 2, Dropped: []string{}, All: true}, // nothing, which is not the same as nobody said
		{Kind: delta.KindSynced, Collection: jobs, Epoch: 1, Term: 2, RV: "5", Counted: true, Digested: true},
		{Kind: delta.KindLiveness, Collection: jobs, Epoch: 1, Term: 2, Digest: 1 << 63, Digested: true},
	} {
		h := want.Header()
		for name, values := range h {
			for _, v := range values {
				for i := range len(v) {
					if v[i] <= ' ' || v[i] >= 0x7f {
						t.Errorf("%s %q is not printable", name, v)
					}
				}
			}
		}
		want.Checksum = delta.Checksum(want.Payload)
		got, err := delta.DecodeRecord(want.Subject(), h, want.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Kind, diff)
		}
		if !got.Intact() {
			t.Errorf("%s is not intact", want.Kind)
		}
	}
}

func TestDamagedPayloadsAreFoundByChecksumOrHash(t *testing.T) {
	t.Parallel()
	payload := []byte(`{"kind":"Pod","spec":{"nodeName":"n"}}`)
	for name, r := range map[string]delta.Record{
		"checksum": {Checksum: delta.Checksum(payload)},
		"both":     {Checksum: delta.Checksum(payload), Hash: delta.Hash(payload)},
		"hash":     {Hash: delta.Hash(payload)}, // as older logs have it
	} {
		r.Payload = payload
		if !r.Intact() {
			t.Errorf("%s: the payload itself is not intact", name)
		}
		for i := range payload {
			for bit := range 8 {
				damaged := bytes.Clone(payload)
				damaged[i] ^= 1 << bit
				if r.Payload = damaged; r.Intact() {
					t.Errorf("%s: byte %d, bit %d is damaged and it is intact", name, i, bit)
				}
			}
		}
		if r.Payload = payload[:len(payload)-1]; r.Intact() {
			t.Errorf("%s: cut off and intact", name)
		}
	}
}

func TestMalformedHeadersAreErrorsThatNameTheHeader(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		delta.HeaderVersion: "0", delta.HeaderKind: "synced", delta.HeaderType: "", delta.HeaderKey: "default/other", delta.HeaderRV: "x1",
		delta.HeaderEpoch: "-1", delta.HeaderTerm: "1e3", delta.HeaderWatermark: "w", delta.HeaderHash: "zz", delta.HeaderChecksum: "100000000", delta.HeaderReason: "",
		delta.HeaderOwner: "a,b", delta.HeaderHint: "nope", delta.HeaderLabel: "a=%zz", delta.HeaderObserved: "now", delta.HeaderUID: "%2",
	} {
		r := full()
		h := r.Header()
		h[name] = []string{value}
		if _, err := delta.DecodeRecord(r.Subject(), h, nil); !errors.Is(err, delta.ErrHeader) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s %q: %v, want ErrHeader and the name", name, value, err)
		}
	}
	r := full()
	h := r.Header()
	delete(h, delta.HeaderRV)
	if _, err := delta.DecodeRecord(r.Subject(), h, nil); !errors.Is(err, delta.ErrHeader) {
		t.Errorf("a delta without a resource version: %v", err)
	}
}

// Names come from the author of a definition: what is no name is left out by writers and by
// readers, and never keeps a record from being read.
func TestWhatIsNoNameOfAResourceIsLeftOut(t *testing.T) {
	t.Parallel()
	long, many := strings.Repeat("x", 63), make([]string, 0, 100)
	for i := range cap(many) {
		many = append(many, "n"+strconv.Itoa(i))
	}
	for _, row := range []struct {
		words, want []string
	}{
		{[]string{"job", "Job", "jobs", "JB"}, []string{"job", "jb"}},
		{[]string{"", "a b", "a,b", "a/b", "a.b", "a\r\nDp-Kind: delta", "é", "%2", "ok", long, long + "x"}, []string{"ok", long}},
		{many, many[:16]},
		{[]string{"jobs"}, nil},
	} {
		if got := delta.OtherNames("jobs", row.words...); !slices.Equal(got, row.want) {
			t.Errorf("OtherNames(%.60q) = %q, want %q", row.words, got, row.want)
		}
		r := delta.Record{Kind: delta.KindLiveness, Collection: jobs, Epoch: 1, Term: 2, Names: row.words}
		h := r.Header()
		if got := h[delta.HeaderNames]; !slices.Equal(got, row.want) {
			t.Errorf("the headers of %.60q are %q, want %q", row.words, got, row.want)
		}
		h[delta.HeaderNames] = row.words
		if got, err := delta.DecodeRecord(r.Subject(), h, nil); err != nil || !slices.Equal(got.Names, row.want) {
			t.Errorf("headers %.60q are read as %q, %v; want %q", row.words, got.Names, err, row.want)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add("default/a", "DELETED", "12", "c,b,d", "node=n1", "observed", "po")
	f.Add("a", "ADDED", "", "a,b,c,c", "=", "", "Two words")
	f.Fuzz(func(t *testing.T, key, typ, rv, owner, hint, reason, name string) {
		k, err := delta.ParseKey(key)
		if err != nil {
			return
		}
		base := delta.Record{Kind: delta.KindDelta, Collection: jobs, Key: k, Type: delta.Added, RV: "1"}
		h := base.Header()
		h[delta.HeaderType], h[delta.HeaderRV], h[delta.HeaderReason] = []string{typ}, []string{rv}, []string{reason}
		h[delta.HeaderOwner], h[delta.HeaderHint] = []string{owner}, []string{hint}
		h[delta.HeaderNames] = []string{name, "n"}
		r, err := delta.DecodeRecord(base.Subject(), h, nil)
		if err != nil {
			return
		}
		again, err := delta.DecodeRecord(r.Subject(), r.Header(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Errorf("second reading differs:\n%s", diff)
		}
	})
}
