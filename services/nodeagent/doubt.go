package nodeagent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// live is what is asked of a [kube.Client].
type live interface {
	kube.Getter
	kube.EachLister
}

// newcomers returns the pods of a state that were not known before, as far as the
// API server has them. An index that is behind may still have a pod whose end this
// node has seen, in its last life or its containers removed: it must not start again.
func (s *source) newcomers(ctx context.Context, state map[string]*corev1.Pod) map[string]*corev1.Pod {
	unknown := map[string]*corev1.Pod{}
	s.mu.Lock()
	for key, pod := range state {
		if known := s.known[key]; known == nil || known.UID != pod.UID {
			unknown[key] = pod
		}
	}
	s.mu.Unlock()
	if len(unknown) == 0 {
		return nil
	}
	wait := attempt.Wait{First: doubtFirst, Most: doubtMost}
	for {
		there, err := s.list(ctx)
		if err == nil {
			for key, pod := range unknown {
				now := there[key]
				switch {
				case now == nil || now.UID != pod.UID:
					delete(unknown, key) // gone, or another life: the index will tell
				case older(pod, now):
					unknown[key] = now
				}
			}
			return unknown
		}
		if ctx.Err() != nil {
			return nil
		}
		s.log.Warn("pods that are new to this node wait until the API server confirms them", slog.Int(telemetry.KeyCount, len(unknown)), telemetry.Err(err))
		if !wait.Sleep(ctx, 0) {
			return nil
		}
	}
}

// list reads the pods of this node from the API server itself.
func (s *source) list(ctx context.Context) (map[string]*corev1.Pod, error) {
	pods := map[string]*corev1.Pod{}
	o := kube.ListOptions{Scope: kube.Scope{FieldSelector: "spec.nodeName=" + s.node}, Limit: 500}
	for {
		limited, cancel := context.WithTimeout(ctx, 30*time.Second)
		page, err := s.live.ListEach(limited, kube.Pods, o, func(kube.Page) error { return nil }, func(raw []byte) error {
			pod, err := decode(raw)
			if err == nil {
				pods[pod.Namespace+"/"+pod.Name] = pod
			}
			return nil // a pod that cannot be read is not run
		})
		cancel()
		if err != nil {
			return nil, fmt.Errorf("nodeagent: list pods: %w", err)
		}
		if o.Continue = page.Continue; o.Continue == "" {
			return pods, nil
		}
	}
}

// doubt is a pod of which something is here that the index does not have. Only the
// API server can say that it is gone.
type doubt struct {
	namespace, name string
	next            time.Time // when the API server is asked
	wait            time.Duration
}

const (
	doubtFirst = time.Second
	doubtMost  = 30 * time.Second
)

// doubt notes that something of a pod is here, and the index does not have the pod.
func (s *source) doubt(namespace, name string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doubts[uid] != nil {
		return
	}
	s.doubts[uid] = &doubt{namespace: namespace, name: name}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// doubted reports whether it is not known yet whether a pod exists.
func (s *source) doubted(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubts[uid] != nil
}

// settleDoubts asks the API server about each doubt until ctx ends.
func (s *source) settleDoubts(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := time.Now().Add(time.Hour)
		for uid, d := range s.dueDoubts(&next) {
			s.ask(ctx, uid, d)
		}
		timer.Reset(max(time.Until(next), 10*time.Millisecond))
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// dueDoubts returns the doubts to ask about now; next becomes the time of the first that is not.
func (s *source) dueDoubts(next *time.Time) map[types.UID]doubt {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, due := time.Now(), map[types.UID]doubt{}
	for uid, d := range s.doubts {
		if d.next.After(now) {
			if d.next.Before(*next) {
				*next = d.next
			}
			continue
		}
		due[uid] = *d
		d.wait = min(max(2*d.wait, doubtFirst), doubtMost)
		d.next = now.Add(d.wait)
		if d.next.Before(*next) {
			*next = d.next
		}
	}
	return due
}

// ask settles one doubt, or leaves it for later when the API server does not answer.
func (s *source) ask(ctx context.Context, uid types.UID, d doubt) {
	pod, err := s.read(ctx, d.namespace, d.name)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("a pod that the index does not have cannot be asked for: it is left running",
				slog.String(telemetry.KeyKey, d.namespace+"/"+d.name), slog.String(telemetry.KeyUID, string(uid)), telemetry.Err(err))
		}
		return
	}
	if pod != nil && pod.UID == uid && pod.Spec.NodeName == s.node {
		s.lives(ctx, pod)
		return
	}
	s.mu.Lock()
	known, still := s.known[d.namespace+"/"+d.name], s.doubts[uid] != nil
	s.mu.Unlock()
	if !still {
		return // the index has told of it meanwhile
	}
	s.log.Info("pod is gone", slog.String(telemetry.KeyKey, d.namespace+"/"+d.name), slog.String(telemetry.KeyUID, string(uid)))
	if known != nil && known.UID == uid {
		s.drop(ctx, known)
		return
	}
	s.mu.Lock()
	delete(s.doubts, uid)
	s.end(uid)
	s.mu.Unlock()
	s.send(ctx, change{kind: changeOrphan, uid: uid})
}

// lives takes in a pod that the API server has and the index does not. The index is
// behind, and will tell; the doubt stays, in case it never hears of the pod again.
func (s *source) lives(ctx context.Context, pod *corev1.Pod) {
	s.order.Lock()
	defer s.order.Unlock()
	key := pod.Namespace + "/" + pod.Name
	s.mu.Lock()
	known, still := s.known[key], s.doubts[pod.UID] != nil
	news := still && (known == nil || known.ResourceVersion != pod.ResourceVersion && !older(pod, known))
	other := news && known != nil && known.UID != pod.UID
	if news {
		s.known[key] = pod
	}
	if other {
		s.end(known.UID)
	}
	s.mu.Unlock()
	if other {
		s.send(ctx, change{kind: changeRemoved, pod: known, uid: known.UID})
	}
	if news {
		s.send(ctx, change{kind: changeSet, pod: pod, uid: pod.UID})
	}
}

// read gets a pod from the API server itself; nil when there is none.
func (s *source) read(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	raw, err := s.live.Get(ctx, kube.Pods.Ref(namespace, name))
	if kube.IsNotFound(err) {
		return nil, nil //nolint:nilnil // absence is the answer
	}
	if err != nil {
		return nil, fmt.Errorf("nodeagent: get pod: %w", err)
	}
	return decode(raw)
}
