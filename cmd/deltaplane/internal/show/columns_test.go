package show

import (
	"testing"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

func TestAPodsStatusIsThatOfWhatHoldsItUp(t *testing.T) {
	t.Parallel()
	const initializing = `"containerStatuses":[{"name":"main","restartCount":0,"state":{"waiting":{"reason":"PodInitializing"}}}]`
	ended := func(code, rest string) string {
		return `{"restartCount":0,"started":false,"state":{"terminated":{"exitCode":` + code + rest + `}}}`
	}
	next := `{"restartCount":0,"started":false,"state":{"waiting":{"reason":"PodInitializing"}}}`
	sidecar := `{"restartCount":1,"started":true,"ready":true,"state":{"running":{}}}`
	for _, c := range []struct{ name, status, want, restarts string }{
		{"before its node reports", `"phase":"Pending"`, "Pending", "0"},
		{"an init container runs", `"initContainerStatuses":[` + ended("0", "") + `,{"restartCount":2,"started":true,"ready":false,"state":{"running":{}}},` + next + `],` + initializing, "Init:1/3", "2"},
		{"an init container fails again and again", `"initContainerStatuses":[{"restartCount":3,"state":{"waiting":{"reason":"CrashLoopBackOff"}}},` + next + `],` + initializing, "Init:CrashLoopBackOff", "3"},
		{"an init container failed permanently", `"phase":"Failed","initContainerStatuses":[` + ended("2", `,"reason":"Error"`) + `],` + initializing, "Init:Error", "0"},
		{"without a reason", `"phase":"Failed","initContainerStatuses":[` + ended("2", "") + `],` + initializing, "Init:ExitCode:2", "0"},
		{"a sidecar runs on", `"phase":"Running","initContainerStatuses":[` + ended("0", "") + `,` + sidecar + `],"containerStatuses":[{"restartCount":4,"state":{"running":{}}}]`, "Running", "4"},
		{"a container waits", `"phase":"Running","initContainerStatuses":[` + ended("0", "") + `],"containerStatuses":[{"restartCount":5,"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]`, "CrashLoopBackOff", "5"},
		{"the pod was refused", `"phase":"Failed","reason":"UnsupportedPodSpec","initContainerStatuses":[` + ended("137", "") + `]`, "UnsupportedPodSpec", "0"},
	} {
		o := &indexv1.Object{Payload: []byte(`{"status":{` + c.status + `}}`)}
		if got := podStatus(o); got != c.want {
			t.Errorf("%s: status %q, want %q", c.name, got, c.want)
		}
		if got := podRestarts(o); got != c.restarts {
			t.Errorf("%s: %s restarts, want %s", c.name, got, c.restarts)
		}
	}
}
