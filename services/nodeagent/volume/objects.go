package volume

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// API is the API server: objects are read, tokens created.
type API interface {
	kube.Getter
	kube.EachLister
	kube.Creator
}

var (
	configMaps      = kube.Resource{Version: "v1", Name: "configmaps", Kind: "ConfigMap", Namespaced: true}
	secrets         = kube.Resource{Version: "v1", Name: "secrets", Kind: "Secret", Namespaced: true}
	services        = kube.Resource{Version: "v1", Name: "services", Kind: "Service", Namespaced: true}
	serviceAccounts = kube.Resource{Version: "v1", Name: "serviceaccounts", Kind: "ServiceAccount", Namespaced: true}
)

// Objects reads config maps, secrets and services from the API server, and asks it for tokens.
// What was read is believed for a short time, so that the pods of a node do not ask for the same
// again; what is not there is asked for every time. It is safe for concurrent use.
// Errors are those of [kube.Client].
type Objects struct {
	api API
	ttl time.Duration
	now func() time.Time

	mu    sync.Mutex
	known map[objectKey]*entry // guarded by mu
}

type objectKey struct{ resource, namespace, name string }

// entry is one object, or a call for it under way.
type entry struct {
	done  chan struct{}
	at    time.Time
	value any
	err   error
}

// NewObjects returns objects that are believed for ttl; default 10 s, negative never.
func NewObjects(api API, ttl time.Duration, now func() time.Time) *Objects {
	if now == nil {
		now = time.Now
	}
	return &Objects{api: api, ttl: cmp.Or(ttl, 10*time.Second), now: now, known: map[objectKey]*entry{}}
}

// ConfigMap reads a config map; the answer must not be changed.
func (o *Objects) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	return read(ctx, o, objectKey{configMaps.Name, namespace, name}, func() (*corev1.ConfigMap, error) {
		return get[corev1.ConfigMap](ctx, o.api, configMaps, namespace, name)
	})
}

// Secret reads a secret; the answer must not be changed.
func (o *Objects) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return read(ctx, o, objectKey{secrets.Name, namespace, name}, func() (*corev1.Secret, error) {
		return get[corev1.Secret](ctx, o.api, secrets, namespace, name)
	})
}

// Services reads the services of a namespace; the answer must not be changed. An API server without
// the resource has none.
func (o *Objects) Services(ctx context.Context, namespace string) ([]corev1.Service, error) {
	list, err := read(ctx, o, objectKey{services.Name, namespace, ""}, func() (*[]corev1.Service, error) {
		list := new([]corev1.Service)
		options := kube.ListOptions{Scope: kube.Scope{Namespace: namespace}}
		_, err := o.api.ListEach(ctx, services, options, func(kube.Page) error { return nil }, func(raw []byte) error {
			var s corev1.Service
			err := json.Unmarshal(raw, &s)
			*list = append(*list, s)
			return err
		})
		if kube.IsNotFound(err) {
			err = nil
		}
		return list, err
	})
	if err != nil {
		return nil, fmt.Errorf("services of namespace %s: %w", namespace, err)
	}
	return *list, nil
}

// Token asks for a token of a service account, bound to pod, that lives for the seconds
// wanted, and returns it with the life that the API server gave it. It is never kept here.
func (o *Objects) Token(ctx context.Context, pod *corev1.Pod, account, audience string, seconds int64) (string, time.Duration, error) {
	req := authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		},
	}
	if audience != "" {
		req.Spec.Audiences = []string{audience}
	}
	body, err := json.Marshal(req)
	if err != nil {
		return "", 0, fmt.Errorf("volume: token request: %w", err)
	}
	ref := kube.Ref{Resource: serviceAccounts, Namespace: pod.Namespace, Name: account, Subresource: "token"}
	raw, err := o.api.Create(ctx, ref, body, kube.WriteOptions{})
	if err != nil {
		return "", 0, err
	}
	var out authenticationv1.TokenRequest
	if err := json.Unmarshal(raw, &out); err != nil || out.Status.Token == "" {
		return "", 0, fmt.Errorf("volume: the answer for a token of service account %s/%s holds none", pod.Namespace, account) // err could quote the token
	}
	if given := out.Spec.ExpirationSeconds; given != nil && *given > 0 {
		seconds = *given
	}
	return out.Status.Token, time.Duration(seconds) * time.Second, nil
}

// read answers from memory or from the API server; one call serves all who ask at once.
func read[T any](ctx context.Context, o *Objects, key objectKey, ask func() (*T, error)) (*T, error) {
	for {
		o.mu.Lock()
		e := o.known[key]
		mine := e == nil
		if mine {
			e = &entry{done: make(chan struct{})}
			o.known[key] = e
		}
		o.mu.Unlock()
		if mine {
			value, err := ask()
			e.value, e.err = value, err
			o.settle(key, e)
			return value, err
		}
		select {
		case <-e.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if e.err == nil && o.now().Sub(e.at) < o.ttl {
			return e.value.(*T), nil
		}
		o.forget(key, e)
	}
}

func get[T any](ctx context.Context, api API, r kube.Resource, namespace, name string) (*T, error) {
	raw, err := api.Get(ctx, kube.Ref{Resource: r, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("volume: %s %s/%s is not what it should be", r.Kind, namespace, name) // err could quote a secret
	}
	return v, nil
}

func (o *Objects) settle(key objectKey, e *entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e.at = o.now()
	if e.err != nil && o.known[key] == e {
		delete(o.known, key)
	}
	close(e.done)
	if len(o.known) < 256 {
		return
	}
	for k, e := range o.known {
		select {
		case <-e.done:
			if o.now().Sub(e.at) >= o.ttl {
				delete(o.known, k)
			}
		default:
		}
	}
}

func (o *Objects) forget(key objectKey, e *entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known[key] == e {
		delete(o.known, key)
	}
}
