package population

import (
	"context"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// PodsCollection is where populations are published.
var PodsCollection = delta.Collection{Cluster: "bench", Version: "v1", Resource: "pods"}

// Record is the log record of a pod, as a reflector makes it.
func Record(p *corev1.Pod, t delta.Type) delta.Record {
	body := Payload(p)
	owner := p.OwnerReferences[0]
	return delta.Record{
		Kind: delta.KindDelta, Collection: PodsCollection, Key: delta.NewKey(p.Namespace, p.Name), UID: string(p.UID), Type: t,
		RV: p.ResourceVersion, Watermark: p.ResourceVersion, Payload: body, Encoding: delta.EncodingJSON, Hash: delta.Hash(body),
		Owners:     []delta.Owner{{Kind: owner.Kind, Name: owner.Name, UID: string(owner.UID), Controller: true}},
		Hints:      map[string][]string{"node": {p.Spec.NodeName}},
		ObservedAt: time.Now(),
	}
}

// Publish writes a population to the log as a complete list and returns the
// writer, for more.
func Publish(ctx context.Context, conn *stream.Conn, pods []*corev1.Pod) (*stream.Writer, error) {
	w, err := conn.Writer(ctx, PodsCollection, stream.WriterConfig{Term: 1, Holder: "bench"})
	if err != nil {
		return nil, err
	}
	last := strconv.Itoa(FirstRV + len(pods))
	records := make([]delta.Record, 0, 256)
	for i, p := range pods {
		r := Record(p, delta.Added)
		r.Watermark = "" // a list vouches for nothing before its end
		if records = append(records, r); len(records) == cap(records) || i == len(pods)-1 {
			if err := w.Append(ctx, records); err != nil {
				return nil, err
			}
			records = records[:0]
		}
	}
	end := delta.Record{Kind: delta.KindSynced, Collection: PodsCollection, RV: last, Watermark: last}
	if err := w.Append(ctx, []delta.Record{end}); err != nil {
		return nil, err
	}
	return w, w.Flush(ctx)
}
