package stream_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// What a reader is given is the same whether the library reads its messages or the tap does, and whether payloads are lent or its own.
func TestReadersGetTheSameLentOrOwnThroughTapOrLibrary(t *testing.T) {
	t.Parallel()
	const objects = 700
	url := embeddedtest.NATS(t).URL()
	w := write(t, connect(t, url, nil), stream.WriterConfig{Term: 1})
	var records []delta.Record
	want := map[delta.Key][]byte{}
	for i := range objects {
		r := pod(fmt.Sprintf("pod-%d", i), 1+i)
		size := 3000
		if i == objects/2 {
			size = 1 << 20 // more than is read at a time
		}
		r.Payload = fmt.Appendf(nil, `{"pad":%q}`, strings.Repeat(string(rune('a'+i%26)), size))
		r.Hash = delta.Hash(r.Payload)
		want[r.Key] = r.Payload
		records = append(records, r)
	}
	put(t, w, append(records, gone("pod-7", objects+1), synced(objects+1))...)
	delete(want, delta.NewKey("default", "pod-7"))
	for name, cfg := range map[string]stream.ReadConfig{"own": {}, "lent": {Lend: true}, "lent, few at a time": {Lend: true, MaxBatch: 7}} {
		for _, tapped := range []bool{true, false} {
			c := connect(t, url, func(cfg *stream.Config) {
				if !tapped {
					cfg.Options = []nats.Option{nats.SetCustomDialer(&cable{})}
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			got := map[delta.Key][]byte{}
			own := map[delta.Key][]byte{}
			err := c.Read(ctx, pods, cfg, func(_ context.Context, b delta.Batch) error {
				for i := range b.Records {
					r := &b.Records[i]
					if r.Kind != delta.KindDelta || r.Tombstone() {
						continue
					}
					if !r.Intact() || r.Checksum == 0 || r.Hash != delta.Hash(r.Payload) {
						t.Errorf("%s, tapped %v: %s is damaged", name, tapped, r.Key)
					}
					got[r.Key], own[r.Key] = bytes.Clone(r.Payload), r.Payload
				}
				if b.Replayed {
					cancel()
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(want) {
				t.Errorf("%s, tapped %v: %d objects, want %d", name, tapped, len(got), len(want))
			}
			for k, p := range want {
				if !bytes.Equal(got[k], p) {
					t.Errorf("%s, tapped %v: %s is %.40q, want %.40q", name, tapped, k, got[k], p)
				}
				if !cfg.Lend && !bytes.Equal(own[k], p) {
					t.Errorf("tapped %v: %s has changed since it was handed over", tapped, k)
				}
			}
		}
	}
}
