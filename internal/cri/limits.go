package cri

import (
	"context"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// How long a call may take.
const (
	// ChangeLimit is that of calls that change something, and what such calls get
	// beyond the grace period or the command's time that they carry.
	ChangeLimit = 2 * time.Minute
	// SandboxLimit is that of RunPodSandbox, which may pull an image and set up a network.
	SandboxLimit = 4 * time.Minute
	// ReadLimit is that of calls that only read.
	ReadLimit = 30 * time.Second
)

// limited gives every call its time limit and room for its answer.
type limited struct {
	conn    grpc.ClientConnInterface
	observe func(operation string, took time.Duration, err error)
}

func (l limited) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if d := Limit(method, args); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	start := time.Now()
	err := l.conn.Invoke(ctx, method, args, reply, append(opts, big...)...)
	if l.observe != nil {
		l.observe(operation(method), time.Since(start), err)
	}
	return err
}

func (l limited) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return l.conn.NewStream(ctx, desc, method, append(opts, big...)...)
}

var big = []grpc.CallOption{grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)}

// Limit is how long a call may take, by its full method name and its request; 0 is without limit.
func Limit(method string, args any) time.Duration {
	switch r := args.(type) {
	case *runtimeapi.PullImageRequest:
		return 0 // as long as bytes come; the caller's context ends it
	case *runtimeapi.RunPodSandboxRequest:
		return SandboxLimit
	case *runtimeapi.StopContainerRequest:
		return plus(r.GetTimeout())
	case *runtimeapi.ExecSyncRequest:
		if r.GetTimeout() <= 0 {
			return 0
		}
		return plus(r.GetTimeout())
	}
	name := path.Base(method)
	if name == "Version" || strings.HasPrefix(name, "List") || strings.HasSuffix(name, "Status") || strings.HasSuffix(name, "Stats") {
		return ReadLimit
	}
	return ChangeLimit
}

// plus is the limit of a call that carries seconds of its own, bounded against overflow.
func plus(seconds int64) time.Duration {
	const year = 365 * 24 * 3600
	return ChangeLimit + time.Duration(min(max(seconds, 0), year))*time.Second
}

// operations are the kubelet's words where they are not the method's in snake case.
var operations = map[string]string{
	"RunPodSandbox": "run_podsandbox", "StopPodSandbox": "stop_podsandbox", "RemovePodSandbox": "remove_podsandbox",
	"PodSandboxStatus": "podsandbox_status", "ListPodSandbox": "list_podsandbox",
}

func operation(method string) string {
	name := path.Base(method)
	if o, ok := operations[name]; ok {
		return o
	}
	var b strings.Builder
	for i, r := range name {
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}
