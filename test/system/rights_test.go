package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// rightsNamespace has the service accounts of parts.
const rightsNamespace = "kube-public"

// rightsPolicy has the API server write down each request of a part.
const rightsPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts:` + rightsNamespace + `"]
  - level: None
`

// A right is a verb on a resource, in one namespace or in the cluster (""), and where it is of one
// object alone, its name.
type right struct{ verb, group, resource, namespace, name string }

func (r right) String() string {
	where := "the cluster"
	if r.namespace != "" {
		where = "namespace " + r.namespace
	}
	if r.name != "" {
		where = r.name + " in " + where
	}
	return fmt.Sprintf("%s %s of %q in %s", r.verb, r.resource, r.group, where)
}

// covers reports whether r permits what was done.
func (r right) covers(done right) bool {
	return (r.namespace == "" || r.namespace == done.namespace) && (r.name == "" || r.name == done.name) &&
		r.verb == done.verb && r.group == done.group && r.resource == done.resource
}

// compareRights names what was done and is not granted, and what is granted and was not done.
func compareRights(granted, done []right) error {
	var faults []error
	for _, d := range done {
		if !slices.ContainsFunc(granted, func(g right) bool { return g.covers(d) }) {
			faults = append(faults, fmt.Errorf("not granted: %v", d))
		}
	}
	for _, g := range granted {
		if !slices.ContainsFunc(done, g.covers) {
			faults = append(faults, fmt.Errorf("granted and never used: %v", g))
		}
	}
	return errors.Join(faults...)
}

// shippedRoles are the roles of deploy/rbac.yaml by name: those of the cluster and of namespaces.
func shippedRoles(t *testing.T) (cluster map[string]rbacv1.ClusterRole, namespaced map[string]rbacv1.Role) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cluster, namespaced = map[string]rbacv1.ClusterRole{}, map[string]rbacv1.Role{}
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var r rbacv1.Role
		if err := yaml.UnmarshalStrict(doc, &r); err != nil {
			t.Fatalf("deploy/rbac.yaml: %v", err)
		}
		if r.Kind == "ClusterRole" {
			cluster[r.Name] = rbacv1.ClusterRole{TypeMeta: r.TypeMeta, ObjectMeta: r.ObjectMeta, Rules: r.Rules}
		} else {
			namespaced[r.Name] = r
		}
	}
	return cluster, namespaced
}

func rightsOf(rules []rbacv1.PolicyRule, namespace string) []right {
	var out []right
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if len(rule.ResourceNames) == 0 {
						out = append(out, right{verb, group, resource, namespace, ""})
					}
					for _, name := range rule.ResourceNames {
						out = append(out, right{verb, group, resource, namespace, name})
					}
				}
			}
		}
	}
	return out
}

// named are the rules that name resources. Those for "*" are there for what else may be mirrored.
func named(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	return slices.DeleteFunc(slices.Clone(rules), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "*") })
}

// actor makes a service account that has the shipped roles of a part, and others, and returns its
// kubeconfig and its rights.
func (k *kubeCluster) actor(t *testing.T, part string, others ...string) (kubeconfig string, granted []right) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatalf("%s: %v", part, err)
		}
	}
	account := "/api/v1/namespaces/" + rightsNamespace + "/serviceaccounts"
	must(k.api.create(t.Context(), account, map[string]any{"metadata": map[string]any{"name": part}}, nil))
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Name: part, Namespace: rightsNamespace}}
	cluster, namespaced := shippedRoles(t)
	for _, name := range append([]string{"deltaplane-" + part}, others...) {
		if r, is := cluster[name]; is {
			r.Rules = named(r.Rules)
			must(k.api.create(t.Context(), "/apis/rbac.authorization.k8s.io/v1/clusterroles", r, nil))
			b := rbacv1.ClusterRoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}, Subjects: subjects}
			b.Name = name
			must(k.api.create(t.Context(), "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", b, nil))
			granted = append(granted, rightsOf(r.Rules, "")...)
		}
		if r, is := namespaced[name]; is {
			path := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + r.Namespace
			must(k.api.create(t.Context(), path+"/roles", r, nil))
			b := rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: subjects}
			b.Name = name
			must(k.api.create(t.Context(), path+"/rolebindings", b, nil))
			granted = append(granted, rightsOf(r.Rules, r.Namespace)...)
		}
	}
	if len(granted) == 0 {
		t.Fatalf("deploy/rbac.yaml has no role of %s", part)
	}
	for _, g := range granted { // the API server's own watch of roles may be behind
		resource, sub, _ := strings.Cut(g.resource, "/")
		review := map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": map[string]any{
			"user":               "system:serviceaccount:" + rightsNamespace + ":" + part,
			"resourceAttributes": map[string]any{"verb": g.verb, "group": g.group, "resource": resource, "subresource": sub, "namespace": g.namespace, "name": g.name},
		}}
		eventually(t, time.Minute, "the API server knows "+g.String(), func(ctx context.Context) error {
			var answer struct{ Status struct{ Allowed bool } }
			err := k.api.create(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", review, &answer)
			if err == nil && !answer.Status.Allowed {
				err = errors.New("not allowed yet")
			}
			return err
		})
	}
	var made struct{ Status struct{ Token string } }
	must(k.api.create(t.Context(), account+"/"+part+"/token", map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{}}, &made))
	config, err := clientcmd.LoadFromFile(k.kubeconfig)
	must(err)
	for _, c := range config.Contexts {
		config.AuthInfos[c.AuthInfo] = &api.AuthInfo{Token: made.Status.Token}
	}
	kubeconfig = filepath.Join(t.TempDir(), part)
	must(clientcmd.WriteToFile(*config, kubeconfig))
	return kubeconfig, granted
}

// deeds are what a part has asked the API server for, and been refused.
func deeds(t *testing.T, log, part string) (done []right, refused []string) {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e struct {
			Verb, RequestURI string
			User             struct{ Username string }
			ObjectRef        *struct{ APIGroup, Resource, Subresource, Namespace, Name string }
			ResponseStatus   struct{ Code int }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			continue // the last line is being written
		}
		if e.User.Username != "system:serviceaccount:"+rightsNamespace+":"+part {
			continue
		}
		if e.ResponseStatus.Code == http.StatusForbidden {
			refused = append(refused, e.Verb+" "+e.RequestURI)
		}
		if e.ObjectRef == nil { // discovery, which everybody may
			continue
		}
		r := right{e.Verb, e.ObjectRef.APIGroup, e.ObjectRef.Resource, e.ObjectRef.Namespace, e.ObjectRef.Name}
		if e.ObjectRef.Subresource != "" {
			r.resource += "/" + e.ObjectRef.Subresource
		}
		if !slices.Contains(done, r) {
			done = append(done, r)
		}
	}
	return done, refused
}

func TestRightsThatDifferAreNamed(t *testing.T) {
	t.Parallel()
	pods, jobs, one := right{"get", "", "pods", "", ""}, right{"get", "batch", "jobs", "a", ""}, right{"get", "", "pods", "", "p"}
	for _, c := range []struct {
		granted, done []right
		names         string
	}{
		{[]right{pods, jobs}, []right{{"get", "", "pods", "b", "p"}, jobs}, ""},
		{[]right{one}, []right{one}, ""},
		{[]right{one}, []right{{"get", "", "pods", "", "q"}}, "not granted: get pods"},
		{[]right{pods}, []right{pods, jobs}, "not granted: get jobs"},
		{[]right{pods, jobs}, []right{pods, {"get", "batch", "jobs", "b", ""}}, "not granted: get jobs"},
		{[]right{pods, jobs}, []right{pods}, "never used: get jobs"},
	} {
		if err := compareRights(c.granted, c.done); (err == nil) != (c.names == "") || err != nil && !strings.Contains(err.Error(), c.names) {
			t.Errorf("%v for %v: %v, want %q", c.granted, c.done, err, c.names)
		}
	}
}

// startAudited starts a cluster that writes down what parts ask for, in a log.
func startAudited(t *testing.T, args ...string) (k *kubeCluster, log string) {
	t.Helper()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(rightsPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	return startKube(t, append(args, "--api-arg=--audit-policy-file="+policy, "--api-arg=--audit-log-path="+log)...), log
}

// Each part runs with a service account of its own that has the shipped role alone, and does all
// that it does. What it asked for is then exactly what the role grants.
func TestRealPartsUseTheRightsTheyHaveAndNoOthers(t *testing.T) {
	t.Parallel()
	k, log := startAudited(t, "--nodes", "3", "--zones", "1", "--lease-seconds", "4")
	granted, file := map[string][]right{}, map[string]string{}
	parts := []string{"reflector", "job", "nodelifecycle", "tainteviction", "podgc"}
	for _, part := range parts {
		file[part], granted[part] = k.actor(t, part)
	}
	p := &plane{upTarget: newUp(t, k.kubeconfig)}
	p.run(t, "nats")
	p.start(t, "reflector", append(p.serveArgs("reflector"), "--liveness-every", testLiveness.String(), "--kubeconfig", file["reflector"])...)
	p.run(t, "indexer")
	p.run(t, "queue")
	control := func(name string) {
		p.start(t, name, append(p.serveArgs("controllers"), "--admin-listen", "127.0.0.1:0", "--identity", name, "--kubeconfig", file[name], "--controllers", name,
			"--node-monitor-grace-period", testGrace.String(), "--node-startup-grace-period", "20s", "--lease", "2s")...)
	}
	for _, name := range parts[1:] {
		control(name)
	}
	x := &Target{API: k.api}
	k.jobsOfAllRights(t, x, p, control)
	k.podOn(t, "node-1", "evicted", unreachable, 1)
	k.podOn(t, "node-3", "orphan", unreachable, 600)
	k.silence(t, true, "node-1", "node-3")
	k.deleted(t, "evicted")
	if err := k.api.delete(t.Context(), "/api/v1/nodes/node-3", "Background"); err != nil {
		t.Fatal(err)
	}
	k.deleted(t, "orphan")

	for _, part := range parts {
		exactly(t, log, part, granted[part])
	}
}

// exactly waits until a part has done all that it may, and sees it refused nothing.
func exactly(t *testing.T, log, part string, granted []right) {
	t.Helper()
	eventually(t, time.Minute, part+" has done all that it may", func(context.Context) error {
		done, refused := deeds(t, log, part)
		if len(refused) > 0 {
			t.Fatalf("%s was refused: %v", part, refused)
		}
		return compareRights(granted, done)
	})
	done, _ := deeds(t, log, part)
	for i, g := range granted { // any right less, and this test fails
		if less := slices.Delete(slices.Clone(granted), i, i+1); compareRights(less, done) == nil {
			t.Errorf("%s would not miss: %v", part, g)
		}
	}
}

// jobsOfAllRights has the Job controller finish, stop and delete Jobs, and begin again without what
// the queue knew: it then reads live, and a pod that is not selected any more by its name.
func (k *kubeCluster) jobsOfAllRights(t *testing.T, x *Target, p *plane, control func(string)) {
	t.Helper()
	finished := jobOf("finished", map[string]string{runSeconds: "1"}, func(s *batchv1.JobSpec) {
		s.TTLSecondsAfterFinished = new(int32(0))
	})
	if err := k.api.create(t.Context(), jobsPath, finished, nil); err != nil {
		t.Fatal(err)
	}
	createJob(t, x, jobOf("stopped", map[string]string{runSeconds: forever}, func(s *batchv1.JobSpec) {
		s.ActiveDeadlineSeconds = new(int64(1))
	}))
	lasting := createJob(t, x, jobOf("lasting", map[string]string{runSeconds: forever}, func(*batchv1.JobSpec) {}))
	var pod string
	eventually(t, 2*time.Minute, "the Jobs have begun and ended", func(ctx context.Context) error {
		if !isStatus(k.api.get(ctx, jobsPath+"/finished", nil), http.StatusNotFound) {
			return errors.New("the finished Job is still there")
		}
		var stopped, now batchv1.Job
		if err := errors.Join(k.api.get(ctx, jobsPath+"/stopped", &stopped), k.api.get(ctx, jobsPath+"/lasting", &now)); err != nil {
			return err
		}
		if stopped.Status.Failed == 0 || now.Status.Active == 0 {
			return fmt.Errorf("%d failed, %d active", stopped.Status.Failed, now.Status.Active)
		}
		pods, err := podsOf(ctx, x, lasting)
		if err == nil && len(pods) == 0 {
			err = errors.New("the lasting Job has no pod")
		}
		if err != nil {
			return err
		}
		pod = pods[0].Name
		return nil
	})
	p.stop(t, "job", syscall.SIGTERM)
	p.stop(t, "queue", syscall.SIGTERM)
	labels := map[string]any{"batch.kubernetes.io/controller-uid": nil, "controller-uid": nil}
	if err := k.api.merge(t.Context(), podsPath+"/"+pod, map[string]any{"metadata": map[string]any{"labels": labels}}); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(p.dir, "data", "queue")); err != nil {
		t.Fatal(err)
	}
	p.run(t, "queue")
	control("job")
}

// deleted waits until somebody has deleted a pod; where no kubelet answers it stays.
func (k *kubeCluster) deleted(t *testing.T, pod string) {
	t.Helper()
	eventually(t, 2*time.Minute, "the pod "+pod+" is deleted", func(ctx context.Context) error {
		var p corev1.Pod
		err := k.api.get(ctx, podsPath+"/"+pod, &p)
		if isStatus(err, http.StatusNotFound) {
			return nil
		}
		if err == nil && p.DeletionTimestamp == nil {
			err = errors.New("it is as it was")
		}
		return err
	})
}
