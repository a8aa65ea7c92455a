package gateway_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltaplane/deltaplane/internal/table"
	"github.com/deltaplane/deltaplane/services/gateway/answer"
)

// asTable is what kubectl accepts.
const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"

type tableAnswer struct {
	Kind, APIVersion  string
	Metadata          map[string]any
	ColumnDefinitions []map[string]any
	Rows              []struct {
		Cells      []any
		Conditions []any
		Object     map[string]any
	}
}

// table asks for one; by says who answered.
func (r *rig) table(base, path string) (t tableAnswer, by string) {
	r.t.Helper()
	resp := r.ask(base, http.MethodGet, path, "", "Accept", asTable)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &t); err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%s: %d %.500s: %v", path, resp.StatusCode, raw, err)
	}
	return t, resp.Header.Get(answer.ServedBy)
}

// sameTable compares a Table of the gateway with that of the API server. Ages grow while they are
// compared, so a cell is right that the API server had before or has behind it.
func (r *rig) sameTable(path string) {
	r.t.Helper()
	var before, mine, after tableAnswer
	for by := ""; by != "index"; { // other objects may have changed in between
		version, _ := r.table(r.url, path+any0)
		at := path + "?resourceVersionMatch=Exact&resourceVersion=" + fmt.Sprint(version.Metadata["resourceVersion"])
		before, _ = r.table(r.direct, at)
		mine, by = r.table(r.url, at)
		after, _ = r.table(r.direct, at)
		if r.t.Context().Err() != nil {
			r.t.Fatalf("%s: it is not answered from the index", path)
		}
	}
	if mine.Kind != "Table" || mine.APIVersion != "meta.k8s.io/v1" || !reflect.DeepEqual(mine.ColumnDefinitions, before.ColumnDefinitions) || !reflect.DeepEqual(mine.Metadata, before.Metadata) {
		r.t.Errorf("%s: the table is %s %s %v %v", path, mine.Kind, mine.APIVersion, mine.Metadata, mine.ColumnDefinitions)
	}
	if len(mine.Rows) != len(before.Rows) || len(mine.Rows) == 0 {
		r.t.Fatalf("%s: %d rows, want %d", path, len(mine.Rows), len(before.Rows))
	}
	for i, got := range mine.Rows {
		want, later := before.Rows[i], after.Rows[i]
		withoutInternal(got.Object)
		if !reflect.DeepEqual(got.Object, want.Object) || !reflect.DeepEqual(got.Conditions, want.Conditions) {
			r.t.Errorf("%s: row %d is of %v %v, want %v %v", path, i, got.Object, got.Conditions, want.Object, want.Conditions)
		}
		for n := range got.Cells {
			if n >= len(want.Cells) || !reflect.DeepEqual(got.Cells[n], want.Cells[n]) && !reflect.DeepEqual(got.Cells[n], later.Cells[n]) {
				r.t.Errorf("%s: row %d, %v: %q, want %q", path, i, mine.ColumnDefinitions[n]["name"], got.Cells, want.Cells)
				break
			}
		}
	}
}

// withoutInternal takes an annotation away that API servers keep elsewhere in between.
func withoutInternal(object map[string]any) {
	metadata, _ := object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	if delete(annotations, "deprecated.daemonset.template.generation"); len(annotations) == 0 {
		delete(metadata, "annotations")
	}
}

// made creates an object of the administrator, with a status where one is given.
func (r *rig) made(path, object, status string) {
	r.t.Helper()
	resp := r.ask(r.direct, http.MethodPost, path, object, "Content-Type", "application/json")
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusCreated {
		r.t.Fatalf("POST %s: %d %s", path, resp.StatusCode, raw)
	}
	if status == "" {
		return
	}
	var o struct{ Metadata struct{ Name string } }
	if err := json.Unmarshal(raw, &o); err != nil {
		r.t.Fatal(err)
	}
	patched := r.ask(r.direct, http.MethodPatch, path+"/"+o.Metadata.Name+"/status", `{"status":`+status+`}`, "Content-Type", "application/merge-patch+json")
	defer patched.Body.Close()
	if raw, _ = io.ReadAll(patched.Body); patched.StatusCode != http.StatusOK {
		r.t.Fatalf("PATCH %s/%s/status %s: %d %s", path, o.Metadata.Name, status, patched.StatusCode, raw)
	}
}

func pick(rng *rand.Rand, from ...string) string { return from[rng.IntN(len(from))] }

// randomPod is a pod, and a status that a kubelet might have written.
func randomPod(rng *rand.Rand, name string) (object, status string) {
	var containers, inits, statuses, initStatuses, conditions []string
	state := func() string {
		at := time.Now().Add(-time.Duration(rng.IntN(4000)) * time.Minute).UTC().Format(time.RFC3339)
		return pick(rng, `{}`, `{"running":{"startedAt":"`+at+`"}}`, `{"running":{"startedAt":"`+at+`"}}`, `{"waiting":{"reason":"CrashLoopBackOff"}}`, `{"waiting":{"reason":"PodInitializing"}}`,
			`{"waiting":{}}`, `{"terminated":{"exitCode":0,"reason":"Completed","finishedAt":"`+at+`"}}`, `{"terminated":{"exitCode":1,"reason":"Error","finishedAt":"`+at+`"}}`,
			`{"terminated":{"exitCode":137,"signal":9,"finishedAt":"`+at+`"}}`, `{"terminated":{"exitCode":3,"finishedAt":"`+at+`"}}`)
	}
	one := func(name string) string {
		return fmt.Sprintf(`{"name":%q,"image":"i","imageID":"","ready":%v,"started":%v,"restartCount":%d,"state":%s,"lastState":%s}`,
			name, rng.IntN(2) == 0, rng.IntN(2) == 0, rng.IntN(3), state(), state())
	}
	for i := range 1 + rng.IntN(3) {
		containers = append(containers, fmt.Sprintf(`{"name":"c%d","image":"i:%d"}`, i, i))
		statuses = append(statuses, one(fmt.Sprintf("c%d", i)))
	}
	for i := range rng.IntN(3) {
		policy := pick(rng, "", `,"restartPolicy":"Always"`)
		inits = append(inits, fmt.Sprintf(`{"name":"i%d","image":"i"%s}`, i, policy))
		initStatuses = append(initStatuses, one(fmt.Sprintf("i%d", i)))
	}
	for _, kind := range []string{"Ready", "Initialized", "example.com/gate"} {
		if rng.IntN(2) == 0 {
			conditions = append(conditions, fmt.Sprintf(`{"type":%q,"status":%q}`, kind, pick(rng, "True", "False")))
		}
	}
	if rng.IntN(8) == 0 {
		conditions = append(conditions, `{"type":"PodScheduled","status":"False","reason":"SchedulingGated"}`)
	}
	join := func(all []string) string { return "[" + strings.Join(all, ",") + "]" }
	more := pick(rng, "", `,"readinessGates":[{"conditionType":"example.com/gate"}]`) + pick(rng, "", `,"nodeName":"nowhere"`)
	object = fmt.Sprintf(`{"metadata":{"name":%q,"finalizers":["example.com/kept"],"labels":{"app":"a"}},"spec":{"schedulerName":"nobody","containers":%s,"initContainers":%s%s}}`, name, join(containers), join(inits), more)
	status = fmt.Sprintf(`{"phase":%q,"conditions":%s,"containerStatuses":%s,"initContainerStatuses":%s%s%s}`,
		pick(rng, "Pending", "Running", "Running", "Succeeded", "Failed"), join(conditions), join(statuses), join(initStatuses),
		pick(rng, "", "", "", `,"reason":"NodeLost"`, `,"reason":"Evicted"`), pick(rng, "", `,"podIP":"10.1.2.3","podIPs":[{"ip":"10.1.2.3"}]`))
	return object, status
}

// The API server says of each cell what it is.
func TestRealTablesAreThoseOfTheAPIServer(t *testing.T) {
	t.Parallel()
	r := onRealServer(t, nil)
	n := r.tenant()
	core, apps, batch := "/api/v1/namespaces/"+n.ns, "/apis/apps/v1/namespaces/"+n.ns, "/apis/batch/v1/namespaces/"+n.ns
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test's seed
	for i := range 60 {
		object, status := randomPod(rng, fmt.Sprintf("p-%d", i))
		r.made(core+"/pods", object, status)
		if rng.IntN(4) == 0 {
			r.ask(r.direct, http.MethodDelete, fmt.Sprintf("%s/pods/p-%d?gracePeriodSeconds=30", core, i), "").Body.Close()
		}
	}
	t.Cleanup(func() { n.release(core+"/pods", 60) })
	pods := `"template":{"metadata":{"labels":{"a":"b"}},"spec":{"restartPolicy":"Always","nodeSelector":{"k":"v"},"containers":[{"name":"x","image":"x:1"},{"name":"y","image":"y:2"}]}}`
	selector := `"selector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"NotIn","values":["d","e"]}]}`
	labelled := strings.Replace(pods, `"a":"b"`, `"a":"b","c":"z"`, 1)
	for name, status := range map[string]string{"none": "", "some": `{"replicas":3,"readyReplicas":2,"updatedReplicas":3,"availableReplicas":1}`} {
		r.made(apps+"/deployments", `{"metadata":{"name":"`+name+`"},"spec":{"replicas":3,`+selector+`,`+labelled+`}}`, status)
		r.made(apps+"/replicasets", `{"metadata":{"name":"`+name+`"},"spec":{"replicas":0,`+selector+`,`+labelled+`}}`, strings.Replace(status, `,"updatedReplicas":3`, "", 1))
		r.made(apps+"/statefulsets", `{"metadata":{"name":"`+name+`"},"spec":{"serviceName":"s",`+selector+`,`+labelled+`}}`, status)
	}
	r.made(apps+"/daemonsets", `{"metadata":{"name":"d"},"spec":{`+selector+`,`+labelled+`}}`,
		`{"desiredNumberScheduled":5,"currentNumberScheduled":4,"numberReady":3,"updatedNumberScheduled":2,"numberAvailable":1,"numberMisscheduled":0}`)
	once := strings.Replace(pods, "Always", "Never", 1)
	for name, spec := range map[string]string{"plain": "", "five": `"completions":5,"parallelism":2,`, "any": `"parallelism":3,`, "suspended": `"suspend":true,`} {
		r.made(batch+"/jobs", `{"metadata":{"name":"`+name+`"},"spec":{`+spec+once+`}}`, "")
	}
	r.made(batch+"/jobs", `{"metadata":{"name":"begun"},"spec":{`+once+`}}`, `{"startTime":"`+time.Now().Add(-3*time.Hour).UTC().Format(time.RFC3339)+`","active":1}`)
	r.made(batch+"/cronjobs", `{"metadata":{"name":"a"},"spec":{"schedule":"*/5 * * * *","timeZone":"Europe/Berlin","suspend":true,"jobTemplate":{"spec":{`+once+`}}}}`,
		`{"lastScheduleTime":"2026-01-01T00:00:00Z","active":[{"name":"x"}]}`)
	r.made(batch+"/cronjobs", `{"metadata":{"name":"b"},"spec":{"schedule":"@daily","jobTemplate":{"spec":{`+once+`}}}}`, "")
	r.made(core+"/services", `{"metadata":{"name":"plain"},"spec":{"selector":{"b":"1","a":"2"},"ports":[{"name":"x","port":80},{"name":"y","port":443,"protocol":"UDP"}],"externalIPs":["192.0.2.1"]}}`, "")
	r.made(core+"/services", `{"metadata":{"name":"headless"},"spec":{"clusterIP":"None"}}`, "")
	r.made(core+"/services", `{"metadata":{"name":"port"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`, "")
	r.made(core+"/services", `{"metadata":{"name":"pending"},"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`, "")
	r.made(core+"/services", `{"metadata":{"name":"balanced"},"spec":{"type":"LoadBalancer","ports":[{"port":80}],"externalIPs":["192.0.2.9"]}}`,
		`{"loadBalancer":{"ingress":[{"hostname":"z.example.com"},{"ip":"192.0.2.5"}]}}`)
	r.made(core+"/services", `{"metadata":{"name":"named"},"spec":{"type":"ExternalName","externalName":"example.com"}}`, "")
	r.made(core+"/configmaps", `{"metadata":{"name":"full"},"data":{"a":"1","b":"2"},"binaryData":{"c":"AAAA"}}`, "")
	at := time.Now().Add(-50 * time.Minute).UTC()
	about := `"involvedObject":{"kind":"Pod","name":"p","namespace":"` + n.ns + `","fieldPath":"spec.x"},"reason":"R","type":"Warning","message":" said\n"`
	r.made(core+"/events", `{"metadata":{"name":"old"},`+about+`,"firstTimestamp":"`+at.Format(time.RFC3339)+`","lastTimestamp":"`+at.Add(time.Minute).Format(time.RFC3339)+`","count":7,"source":{"component":"c","host":"h"}}`, "")
	r.made(core+"/events", `{"metadata":{"name":"new"},`+about+`,"eventTime":"`+at.Format("2006-01-02T15:04:05.000000Z")+`","action":"A","reportingComponent":"example.com/c","reportingInstance":"i",
		"series":{"count":9,"lastObservedTime":"`+at.Add(2*time.Minute).Format("2006-01-02T15:04:05.000000Z")+`"}}`, "")
	r.made(core+"/events", `{"metadata":{"name":"bare"},"involvedObject":{"kind":"Node","namespace":"`+n.ns+`"}}`, "")
	r.made(core+"/persistentvolumeclaims", `{"metadata":{"name":"bound"},"spec":{"accessModes":["ReadWriteOnce","ReadOnlyMany"],"volumeName":"v","storageClassName":"fast","resources":{"requests":{"storage":"1Gi"}}}}`,
		`{"phase":"Bound","capacity":{"storage":"2Gi"},"accessModes":["ReadWriteMany"]}`)
	r.made(core+"/persistentvolumeclaims", `{"metadata":{"name":"pending"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`, "")
	r.made("/api/v1/persistentvolumes", `{"metadata":{"name":"v-`+n.ns+`"},"spec":{"capacity":{"storage":"1500Mi"},"accessModes":["ReadWriteOncePod"],"storageClassName":"slow","claimRef":{"namespace":"a","name":"b"},"hostPath":{"path":"/x"}}}`, `{"phase":"Failed","reason":"Why"}`)
	r.made("/apis/storage.k8s.io/v1/storageclasses", `{"metadata":{"name":"s-`+n.ns+`","annotations":{"storageclass.kubernetes.io/is-default-class":"true"}},"provisioner":"p","allowVolumeExpansion":true}`, "")
	r.made("/apis/networking.k8s.io/v1/namespaces/"+n.ns+"/ingresses", `{"metadata":{"name":"i"},"spec":{"ingressClassName":"c","tls":[{"hosts":["a.b"]}],"rules":[{"host":"a.b"},{"host":"c.d"},{"host":"e.f"},{"host":"g.h"}]}}`, `{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"}]}}`)
	r.made("/apis/networking.k8s.io/v1/namespaces/"+n.ns+"/ingresses", `{"metadata":{"name":"j"},"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`, "")
	r.made("/apis/policy/v1/namespaces/"+n.ns+"/poddisruptionbudgets", `{"metadata":{"name":"x"},"spec":{"maxUnavailable":"25%","selector":{"matchLabels":{"a":"b"}}}}`, "")
	r.made("/apis/policy/v1/namespaces/"+n.ns+"/poddisruptionbudgets", `{"metadata":{"name":"y"},"spec":{"minAvailable":2,"selector":{"matchLabels":{"a":"b"}}}}`, "")
	r.made(roleBindings+n.ns+"/rolebindings", `{"metadata":{"name":"many"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"view"},"subjects":[
		{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"u"},{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"g"},{"kind":"ServiceAccount","namespace":"n","name":"s"},{"kind":"ServiceAccount","namespace":"n","name":"t"}]}`, "")
	plural := "things" + strings.TrimPrefix(n.ns, "tenant-")
	group := "tables.example.com"
	r.made("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"`+plural+`.`+group+`"},"spec":{"group":"`+group+`","scope":"Namespaced","names":{"plural":"`+plural+`","kind":"Thing`+plural+`"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},"additionalPrinterColumns":[
		{"name":"Text","type":"string","jsonPath":".spec.text"},{"name":"Count","type":"integer","jsonPath":".spec.count","priority":1},{"name":"Ratio","type":"number","jsonPath":".spec.ratio"},
		{"name":"On","type":"boolean","jsonPath":".spec.on"},{"name":"When","type":"date","jsonPath":".spec.when"},{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}]}]}}`, "")
	things := "/apis/" + group + "/v1/namespaces/" + n.ns + "/" + plural
	deadline := time.Now().Add(time.Minute)
	for { // it is served a moment later
		resp := r.ask(r.direct, http.MethodGet, things, "")
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the custom resource is not served")
		}
	}
	for i, spec := range []string{
		`{"text":"a<b","count":3,"ratio":1.5,"on":true,"when":"2026-01-02T03:04:05Z"},"status":{"conditions":[{"type":"Other","status":"False"},{"type":"Ready","status":"True"}]}`,
		`{"text":5,"count":2.5,"ratio":2,"on":"yes","when":"never"}`, `{}`, `{"text":["a","b"],"count":"x","ratio":null}`,
	} {
		r.made(things, fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Thing%s","metadata":{"name":"t-%d"},"spec":%s}`, group, plural, i, spec), "")
	}
	for _, path := range []string{
		core + "/pods", core + "/services", core + "/configmaps", core + "/events", core + "/serviceaccounts", core + "/persistentvolumeclaims",
		"/api/v1/nodes", "/api/v1/namespaces", "/api/v1/persistentvolumes", apps + "/deployments", apps + "/replicasets", apps + "/statefulsets", apps + "/daemonsets",
		batch + "/jobs", batch + "/cronjobs", "/apis/networking.k8s.io/v1/namespaces/" + n.ns + "/ingresses", "/apis/policy/v1/namespaces/" + n.ns + "/poddisruptionbudgets",
		roleBindings + n.ns + "/rolebindings", roleBindings + n.ns + "/roles", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "/apis/rbac.authorization.k8s.io/v1/clusterroles",
		"/apis/storage.k8s.io/v1/storageclasses", "/apis/scheduling.k8s.io/v1/priorityclasses", things,
	} {
		r.mirrored(path)
		r.sameTable(path)
		r.sameWidth(path)
	}
	r.sameWidth("/apis/coordination.k8s.io/v1/leases")
	r.sameWatch(things)
}

// sameWidth compares which columns of a built-in resource only wide tables have.
func (r *rig) sameWidth(path string) {
	r.t.Helper()
	parts := strings.Split(strings.Trim(path, "/"), "/")
	resource := schema.GroupResource{Resource: parts[len(parts)-1]}
	if parts[0] == "apis" {
		resource.Group = parts[1]
	}
	ours := table.Builtin(resource)
	if ours == nil {
		return
	}
	server, _ := r.table(r.direct, path)
	for i, c := range ours.Columns {
		if priority, _ := server.ColumnDefinitions[i]["priority"].(float64); c.Wide != (priority > 0) {
			r.t.Errorf("%s: the column %s is wide: %v, but its priority is %v", resource, c.Name, c.Wide, priority)
		}
	}
}

// release lets the pods go that were kept.
func (n *tenant) release(path string, count int) {
	for i := range count {
		req, err := http.NewRequest(http.MethodPatch, fmt.Sprintf("%s%s/p-%d", n.direct, path, i), strings.NewReader(`{"metadata":{"finalizers":null}}`)) //nolint:noctx // the test's is over
		if err != nil {
			continue
		}
		req.Header.Set("Content-Type", "application/merge-patch+json")
		if resp, err := n.api.Do(req); err == nil {
			resp.Body.Close()
		}
	}
}

// sameWatch compares the events of a watch of Tables.
func (r *rig) sameWatch(path string) {
	r.t.Helper()
	begin, _ := r.table(r.url, path)
	at := fmt.Sprintf("%s?watch=1&timeoutSeconds=300&resourceVersion=%v", path, begin.Metadata["resourceVersion"])
	var watches []chan string
	for _, base := range []string{r.url, r.direct} {
		resp := r.ask(base, http.MethodGet, at, "", "Accept", asTable)
		if base == r.url && resp.Header.Get(answer.ServedBy) != "index" {
			r.t.Errorf("%s: the watch is not answered from the index", path)
		}
		defer resp.Body.Close()
		lines := make(chan string, 10)
		watches = append(watches, lines)
		go func() {
			defer close(lines)
			for scan := bufio.NewScanner(resp.Body); scan.Scan(); {
				lines <- scan.Text()
			}
		}()
	}
	next := func(n int, change string) string {
		r.t.Helper()
		select {
		case line := <-watches[n]:
			return line
		case <-time.After(time.Minute):
			r.t.Fatalf("watch %d (0 is the gateway's) does not show %s", n, change)
			return ""
		}
	}
	seen := func(change string) { // one by one: changes that quickly follow each other may be one
		r.t.Helper()
		one, other := next(0, change), next(1, change)
		var a, b map[string]any
		if json.Unmarshal([]byte(one), &a) != nil || json.Unmarshal([]byte(other), &b) != nil || !reflect.DeepEqual(a, b) {
			r.t.Errorf("%s is %s at one and %s at the other", change, one, other)
		}
	}
	patch := func(body string) {
		r.t.Helper()
		r.ask(r.direct, http.MethodPatch, path+"/t-0", body, "Content-Type", "application/merge-patch+json").Body.Close()
		seen(body)
	}
	patch(`{"spec":{"text":"x","when":null}}`)
	patch(`{"spec":{"text":"y"}}`)
	r.ask(r.direct, http.MethodDelete, path+"/t-1", "").Body.Close()
	seen("the deletion")
	patch(`{"spec":{"text":"z"}}`) // nothing more was between
}
