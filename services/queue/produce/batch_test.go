package produce

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

func anyProduceOp(rnd *rand.Rand) *queuev1.ProduceOp {
	o := &queuev1.ProduceOp{Key: "k" + strconv.Itoa(rnd.IntN(50)), Kind: queuev1.ProduceKind(rnd.IntN(6)), Priority: int32(rnd.IntN(8) - 4)}
	switch rnd.IntN(20) {
	case 0:
		o.Kind, o.Delay = queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER, durationpb.New(time.Second)
	case 1, 10, 11, 12:
		for range 1 + rnd.IntN(3) {
			o.Barrier = append(o.Barrier, &deltav1.CollectionRevision{
				Collection: []string{"dev/pods.v1", "dev/jobs.v1.batch", "dev/nodes.v1", "no name", ""}[rnd.IntN(3+rnd.IntN(3)*rnd.IntN(2))],
				Revision:   &deltav1.Revision{Epoch: rnd.Uint64N(3), ResourceVersion: []string{"5", "007", "0", "12345", "x", ""}[rnd.IntN(4+rnd.IntN(3)*rnd.IntN(2))]},
			})
		}
		if rnd.IntN(10) == 0 {
			o.Barrier[0].Revision = nil
		}
		if rnd.IntN(20) == 0 {
			o.Barrier = slices.Repeat(o.Barrier, 20)
		}
	case 2:
		o.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	case 3:
		o.Key = ""
	case 4:
		o.Kind = 77
	case 5:
		o.Priority = 100
	case 6:
		o.Delay = durationpb.New(-time.Second)
	case 7:
		o.Traceparent = "a b"
	case 8:
		o.Policy = queuev1.DelayPolicy_DELAY_POLICY_LAST
	case 9:
		o.Policy = 9
	}
	return o
}

func TestProducedBatchesAreReadAsTheGeneratedCodeReadsThem(t *testing.T) {
	t.Parallel()
	reused := &produceBatch{known: wire.Collections{}}
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		b := &queuev1.ProduceBatch{RequestId: 1 + rnd.Uint64N(9), Queue: "q"}
		for range 1 + rnd.IntN(20) {
			b.Ops = append(b.Ops, anyProduceOp(rnd))
		}
		raw, err := proto.Marshal(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: b}})
		if err != nil {
			t.Fatal(err)
		}
		reused.reset()
		m := produceMessage{batch: reused}
		if err := m.Decode(raw); err != nil || m.batch == nil || reused.err != nil {
			t.Fatalf("decode: %v, %v", err, reused.err)
		}
		bad := map[int]string{}
		for _, o := range reused.bad {
			bad[o.at] = o.err.Error()
		}
		good := map[int]workqueue.Op{}
		for i, op := range reused.call.Ops {
			good[reused.place(i)] = op
		}
		if reused.id != b.GetRequestId() || reused.queue != "q" || reused.n != len(b.GetOps()) || len(good)+len(bad) != reused.n {
			t.Fatalf("seed %d: batch %d of %d for %q, %d good, %d bad", seed, reused.id, reused.n, reused.queue, len(good), len(bad))
		}
		for i, in := range b.GetOps() {
			c := &wire.Checks{}
			want := c.Produced(atOp(i), in)
			if err := c.Err(); err != nil {
				if bad[i] != err.Error() {
					t.Fatalf("seed %d, operation %d: refused with %q, want %q", seed, i, bad[i], err)
				}
				continue
			}
			if diff := cmp.Diff(want, good[i]); diff != "" {
				t.Fatalf("seed %d, operation %d (-generated +ours):\n%s", seed, i, diff)
			}
		}
	}
}

func TestAKeyThatIsNotUTF8IsRefusedAlone(t *testing.T) {
	t.Parallel()
	raw := []byte{0x12, 0}
	for _, key := range []string{"good", "bad\xff", "fine"} {
		op := append([]byte{0x0a, byte(len(key))}, key...)
		raw = append(append(raw, 0x1a, byte(len(op))), op...)
	}
	raw = append(raw, 0x08, 1, 0x12, 1, 'q')
	raw[1] = byte(len(raw) - 2)
	b := &produceBatch{}
	m := produceMessage{batch: b}
	if err := m.Decode(raw); err != nil || b.err != nil {
		t.Fatal(err, b.err)
	}
	if len(b.call.Ops) != 2 || b.place(1) != 2 || len(b.bad) != 1 || b.bad[0].err.Error() != "batch.ops[1].key: not valid UTF-8" {
		t.Errorf("done %v at %v, refused %v", b.call.Ops, b.at, b.bad)
	}
}

// FuzzProduceRequest: what the generated code can read can be read here, and nothing
// makes it panic.
func FuzzProduceRequest(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 1))
	produce := &queuev1.ProduceBatch{RequestId: 3, Queue: "q"}
	for range 12 {
		produce.Ops = append(produce.Ops, anyProduceOp(rnd))
	}
	raw, err := proto.Marshal(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: produce}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := produceMessage{batch: &produceBatch{}}
		ours, theirs := m.Decode(raw), proto.Unmarshal(raw, &queuev1.ProduceRequest{})
		if theirs == nil && ours != nil {
			t.Errorf("a ProduceRequest the generated code reads: %v", ours)
		}
	})
}
