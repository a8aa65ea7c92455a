package extract_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
)

// podJSON is a pod of about 5 KB as an API server writes it.
func podJSON(i int) []byte {
	var env, containers, statuses []string
	for j := range 12 {
		env = append(env, fmt.Sprintf(`{"name":"SETTING_%d","value":"some value of setting %d"}`, j, j))
	}
	for _, name := range []string{"app", "proxy"} {
		containers = append(containers, fmt.Sprintf(`{"name":%q,"image":"registry.example.com/team/%s:v1.%d","args":["--listen=:8080","--verbose"],"ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}],"env":[%s],"resources":{"limits":{"cpu":"500m","memory":"512Mi"},"requests":{"cpu":"250m","memory":"256Mi"}},"volumeMounts":[{"name":"config","mountPath":"/etc/app"},{"name":"kube-api-access","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}],"livenessProbe":{"httpGet":{"path":"/healthz","port":"http","scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent","securityContext":{"capabilities":{"drop":["ALL"]},"runAsNonRoot":true,"allowPrivilegeEscalation":false}}`, name, name, i%7, strings.Join(env, ",")))
		statuses = append(statuses, fmt.Sprintf(`{"name":%q,"state":{"running":{"startedAt":"2026-01-01T00:00:0%dZ"}},"lastState":{},"ready":true,"restartCount":0,"image":"registry.example.com/team/%s:v1.%d","imageID":"registry.example.com/team/%s@sha256:4bc6a8d9a8d1f2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b","containerID":"containerd://%064d","started":true}`, name, i%10, name, i%7, name, i))
	}
	var conditions []string
	for _, c := range []string{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		conditions = append(conditions, fmt.Sprintf(`{"type":%q,"status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"}`, c))
	}
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-%06d","generateName":"web-","namespace":"ns-%d","uid":"3f1c2d4e-0000-4000-8000-%012d","resourceVersion":"%d","generation":1,"creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app.kubernetes.io/name":"web-%d","app.kubernetes.io/part-of":"shop","pod-template-hash":"5d9c7b8f%d","tier":"frontend"},"annotations":{"checksum/config":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-5d9c7b8f","uid":"aaaaaaaa-0000-4000-8000-%012d","controller":true,"blockOwnerDeletion":true}]},"spec":{"volumes":[{"name":"config","configMap":{"name":"web","defaultMode":420}},{"name":"kube-api-access","projected":{"sources":[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}},{"configMap":{"name":"kube-root-ca.crt","items":[{"key":"ca.crt","path":"ca.crt"}]}},{"downwardAPI":{"items":[{"path":"namespace","fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"}}]}}],"defaultMode":420}}],"containers":[%s],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"web","nodeName":"node-%d","securityContext":{},"schedulerName":"default-scheduler","tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300},{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}],"priority":0,"enableServiceLinks":true,"preemptionPolicy":"PreemptLowerPriority"},"status":{"phase":"Running","conditions":[%s],"hostIP":"10.0.0.%d","podIP":"10.1.%d.%d","startTime":"2026-01-01T00:00:00Z","containerStatuses":[%s],"qosClass":"Burstable"}}`,
		i, i%50, i, i, i%500, i%500, i%500, strings.Join(containers, ","), i%1000, strings.Join(conditions, ","), i%250, i%250, i%200, strings.Join(statuses, ","))
}

func paths(t testing.TB, texts ...string) []definition.Path {
	t.Helper()
	var list []definition.Path
	for _, text := range texts {
		p, err := definition.ParsePath(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

func record(i int, hash bool) delta.Record {
	r := delta.Record{
		Kind: delta.KindDelta, Key: delta.Key(fmt.Sprintf("ns-%d/web-%06d", i%50, i)), UID: fmt.Sprintf("3f1c2d4e-0000-4000-8000-%012d", i), RV: fmt.Sprint(i + 1),
		Type: delta.Updated, Epoch: 1, Sequence: uint64(i + 1), Payload: podJSON(i), Encoding: delta.EncodingJSON,
	}
	if hash {
		r.Hash = delta.Hash(r.Payload)
	}
	return r
}

// BenchmarkObject is the cost of one pod of 5 KB at ingest: with the record's
// checksum, which the reflector's validation stands behind, and without.
func BenchmarkObject(b *testing.B) {
	for _, run := range []struct {
		name  string
		hash  bool
		paths []string
		cel   string
	}{
		{"trusted", true, []string{"spec.nodeName", "status.phase"}, ""},
		{"validated", false, []string{"spec.nodeName", "status.phase"}, ""},
		{"images", true, []string{"spec.nodeName", "status.phase", "spec.containers[].image"}, ""},
		{"cel", true, []string{"spec.nodeName", "status.phase"}, "object.spec.containers.map(c, c.image)"},
	} {
		b.Run(run.name, func(b *testing.B) {
			var programs []*definition.Program
			if run.cel != "" {
				p, err := definition.Compile(definition.Definition{Name: "x", CEL: run.cel})
				if err != nil {
					b.Fatal(err)
				}
				programs = append(programs, p)
			}
			x := extract.New(extract.NewPlan(paths(b, run.paths...), programs))
			records := make([]delta.Record, 2000)
			for i := range records {
				records[i] = record(i, run.hash)
				if o := x.Object(b.Context(), &records[i]); o.Faulty() {
					b.Fatal(o.Fault())
				}
			}
			b.SetBytes(int64(len(records[0].Payload)))
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				x.Object(b.Context(), &records[i%len(records)])
				i++
			}
		})
	}
}

// BenchmarkHash is the part of the above that the checksum takes.
func BenchmarkHash(b *testing.B) {
	p := podJSON(1)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		delta.Hash(p)
	}
}
