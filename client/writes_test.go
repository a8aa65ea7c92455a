package client_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/wrote"
)

func TestASettlementNamesWhatItsRunWroteAndNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := work(t, client.WorkerConfig{}, func(ctx context.Context, item client.Item) (client.Result, error) {
			if item.Key == "ns/reads" {
				return client.Result{}, nil
			}
			write := func(cluster, method, path, answer string) {
				_, call := wrote.Begin(ctx, cluster, method, path)
				call.CarriedOut([]byte(answer))
			}
			write("", http.MethodPut, "/api/v1/namespaces/ns/pods/a", `{"metadata":{"resourceVersion":"7"}}`)
			write("other", http.MethodDelete, "/apis/batch/v1/namespaces/ns/jobs/b", "")
			write("", http.MethodPut, "/api/v1/nodes/\x00", "")
			return client.Result{}, errors.New("no luck")
		})
		sc := b.open()
		sc.assign(lease("ns/writes", 1), lease("ns/reads", 2))
		for range 2 {
			batch := sc.settle()
			for _, s := range batch.GetSettlements() {
				w := s.GetWrites()
				switch {
				case s.GetKey() == "ns/reads" && len(w) > 0:
					t.Errorf("a run that wrote nothing names %v", w)
				case s.GetKey() != "ns/writes":
				case len(w) != 2 || w[0].GetVerb() != "update" || w[0].GetCollection() != "dev/pods.v1" || w[0].GetKey() != "ns/a" || w[0].GetResourceVersion() != "7" ||
					w[1].GetVerb() != "delete" || w[1].GetCollection() != "other/jobs.v1.batch" || w[1].GetKey() != "ns/b":
					t.Errorf("the settlement names %v", w)
				}
			}
			sc.answer(batch)
		}
		go sc.answerAll()
		if err := b.stop(); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}
