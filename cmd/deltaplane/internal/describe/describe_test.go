package describe

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/inspect"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/internal/table"
)

// shown is an object as people read it, a line as words.
func shown(t *testing.T, a *Answer) string {
	t.Helper()
	var b strings.Builder
	if err := a.print(&b); err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(` +`).ReplaceAllString(b.String(), " ")
}

func TestKnownKindsHaveASummary(t *testing.T) {
	t.Parallel()
	const podTemplate = `"template":{"metadata":{"labels":{"app":"web"}},"spec":{"nodeSelector":{"disk":"ssd"},"containers":[{"name":"main","image":"nginx","ports":[{"containerPort":80}],"resources":{"limits":{"cpu":"1"}}}],"volumes":[{"name":"v"}]}}`
	for name, c := range map[string]struct {
		object string
		want   []string
	}{
		"a Deployment": {
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop"},"spec":{"replicas":3,"selector":{"matchLabels":{"app":"web"},"matchExpressions":[{"key":"tier","operator":"In","values":["a","b"]}]},"strategy":{"type":"Recreate"},` + podTemplate + `},"status":{"replicas":2,"availableReplicas":1}}`,
			[]string{"Selector: app=web,tier in (a, b)\n", "Replicas: 3 desired | 0 updated | 2 total | 1 available | 0 unavailable\n", "Strategy: Recreate\n", " Node selector: disk=ssd\n", " container main:", " Image: nginx\n", " Ports: 80/TCP\n", " cpu: 1\n", " Volumes: v\n"},
		},
		"a Job": {
			`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j","ownerReferences":[{"kind":"CronJob","name":"c","controller":true}]},"spec":{"completions":4,` + podTemplate + `},"status":{"succeeded":2,"failed":1}}`,
			[]string{"Owner: CronJob/c (controller)\n", "Completions: 4\n", "Pods: 0 active | 0 ready | 2 succeeded | 1 failed\n"},
		},
		"a Service": {
			`{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"type":"NodePort","selector":{"app.io/x":"y"},"ports":[{"name":"http","port":80,"targetPort":"web","nodePort":30080},{"port":53,"protocol":"UDP"}]}}`,
			[]string{"Selector: app.io/x=y\n", "Type: NodePort\n", "Ports: http 80/TCP to web, node port 30080; 53/UDP\n"},
		},
		"a ConfigMap": {
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"1","b":"x\ny\n"}}`,
			[]string{"Data:\n a: 1\n b:\n x\n y\n"},
		},
		"a volume claim": {
			`{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"p"},"spec":{"accessModes":["ReadWriteOnce","ReadOnlyMany"]},"status":{"phase":"Bound"}}`,
			[]string{"Status: Bound\n", "Access modes: ReadWriteOnce, ReadOnlyMany\n"},
		},
		"conditions and what a terminal would obey": {
			`{"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{"name":"r","labels":{"x":"\u001b[31m"}},"status":{"conditions":[{"type":"ReplicaFailure","status":"True","reason":"FailedCreate","message":"quota"}]}}`,
			[]string{`Labels: "x=\x1b[31m"` + "\n", "CONDITION STATUS REASON SINCE MESSAGE\nReplicaFailure True FailedCreate - quota\n"},
		},
	} {
		a := read([]byte(c.object))
		text := shown(t, a)
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not show %q:\n%s", name, want, text)
			}
		}
		if a.Fields != nil {
			t.Errorf("%s shows all fields too", name)
		}
	}
}

func TestAnyOtherKindShowsItsColumnsAndFields(t *testing.T) {
	t.Parallel()
	const widget = `{"apiVersion":"x.io/v1","kind":"Widget","metadata":{"name":"w","finalizers":["x.io/f"]},"spec":{"size":3,"none":null,"empty":{},"list":[1,"b"],"no":[],"blank":"",
		"parts":[{"name":"p","deep":{"er":true}},{"x":1},{"name":"bare"}]},"status":{"phase":"Bad","conditions":[{"type":"Ready","status":"False"}]},"extra":"top"}`
	a := read([]byte(widget))
	a.columns([]byte(widget), []table.Column{{Name: "Size", Type: "integer", JSONPath: ".spec.size"}, {Name: "Lost", Type: "string", JSONPath: ".spec.lost"}})
	text := shown(t, a)
	if !strings.HasPrefix(text, "Name: w\nKind: Widget, x.io/v1\nFinalizers: x.io/f\nSize: 3\n"+
		"spec:\n size: 3\n list: 1, b\n parts: \n p: \n deep: \n er: true\n [1]: \n x: 1\n bare: \nstatus:\n phase: Bad\nextra: top\n\nCONDITION") {
		t.Errorf("it shows\n%s", text)
	}
}

func TestNoValueOfASecretIsShown(t *testing.T) {
	t.Parallel()
	for _, object := range []string{
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"data\":{\"k\":\"aHVzaA==\"}}"}},"type":"Opaque","data":{"k":"aHVzaA=="}}`,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":"aHVzaA==","stringData":{"k":"hush"}}`,
	} {
		a := read([]byte(object))
		document, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{shown(t, a), string(document)} {
			if strings.Contains(text, "aHVzaA") || strings.Contains(text, "hush") {
				t.Errorf("it shows %s", text)
			}
		}
		if strings.Contains(object, "Opaque") && !strings.Contains(shown(t, a), "Data:\n k: 4 bytes\n") {
			t.Errorf("it does not show the size:\n%s", shown(t, a))
		}
	}
}

func TestWhatIsKnownHereFollows(t *testing.T) {
	t.Parallel()
	a := &Answer{
		Collection: "dev/pods.v1", Name: "p", RV: "7", Index: Currency{Revision: "9", Epoch: 1, State: "serving", Lag: 3}, NoEvents: "nobody answers",
		Queues:  []*why.Answer{{Queue: "dev/job", Key: "ns/p", State: "delayed", Cause: why.Backoff, Sentence: "it waits."}},
		Silent:  []why.Silence{{Part: "reflector", Why: "refused"}},
		Unasked: 2,
	}
	text := shown(t, a)
	for _, want := range []string{
		"Events are not known: nobody answers\n", "Collection: dev/pods.v1, serving\n", "Version: 7, in an index at revision 9 of epoch 1, 3 records behind\n",
		"Not known: the reflector did not answer: refused\n", "Not asked: 2 more queues\n", "dev/job ns/p delayed backoff it waits.\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	a = &Answer{Events: []inspect.EventAnswer{{Type: "Warning", Reason: "BackOff", Count: 3, Last: time.Now(), Message: "again"}}, NoQueues: "you may not"}
	if text := shown(t, a); !strings.Contains(text, "Warning BackOff 3 ") || !strings.Contains(text, "Queues: not known: you may not\n") {
		t.Errorf("it says\n%s", text)
	}
}
