package criruntime

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// state is all that a runtime remembers. It changes by records alone, the same ones
// that the journal keeps, so that a restart arrives where the process left off.
// It is guarded by the server's mutex.
type state struct {
	sandboxes  map[string]*sandbox
	containers map[string]*container
	// names maps the reserved name of a sandbox or container to its ID.
	names map[string]string
	// pulled are images by name: true was pulled, false was removed. Others follow their name.
	pulled map[string]bool
	// bySandbox and byContainer find what carries an indexed label.
	bySandbox   index[*sandbox]
	byContainer index[*container]
	due         dueHeap
	// usedIPs are the addresses of ready sandboxes.
	usedIPs map[uint32]bool
	lastIP  uint32
}

type sandbox struct {
	// item is what a list shows. It is replaced, never changed, since answers share it.
	item        *runtimeapi.PodSandbox
	logDir      string
	ip          uint32
	hostNetwork bool
	options     *runtimeapi.NamespaceOption
	containers  map[string]*container
}

type container struct {
	sandbox *sandbox
	// item is what a list shows; replaced, never changed.
	item                  *runtimeapi.Container
	mounts                []*runtimeapi.Mount
	logPath               string
	plan                  plan
	startedAt, finishedAt int64
	exitCode              int32
	reason, message       string

	// due is when the run ends and dueCode how; 0 is never. at is the place in the heap, from 1.
	due     int64
	dueCode int32
	at      int
	// ended is closed at the end of the run; made by the first who waits.
	ended chan struct{}
	// shown, when set, is the state that answers show instead.
	shown *runtimeapi.ContainerState
}

func (c *container) running() bool {
	return c.item.State == runtimeapi.ContainerState_CONTAINER_RUNNING
}

func (s *sandbox) ready() bool { return s.item.State == runtimeapi.PodSandboxState_SANDBOX_READY }

func newState() *state {
	return &state{
		sandboxes: map[string]*sandbox{}, containers: map[string]*container{}, names: map[string]string{}, pulled: map[string]bool{},
		bySandbox: index[*sandbox]{}, byContainer: index[*container]{}, usedIPs: map[uint32]bool{},
	}
}

// indexed are the labels by which agents ask: their own node's pods, and one pod.
var indexed = []string{"deltaplane.io/node", "io.kubernetes.pod.uid"}

// index holds members by the value of an indexed label.
type index[T comparable] map[[2]string]map[T]struct{}

func (x index[T]) add(labels map[string]string, member T) {
	for _, label := range indexed {
		if value, set := labels[label]; set {
			key := [2]string{label, value}
			if x[key] == nil {
				x[key] = map[T]struct{}{}
			}
			x[key][member] = struct{}{}
		}
	}
}

func (x index[T]) remove(labels map[string]string, member T) {
	for _, label := range indexed {
		key := [2]string{label, labels[label]}
		delete(x[key], member)
		if len(x[key]) == 0 {
			delete(x, key)
		}
	}
}

// candidates is the smallest set that has all matches; ok is false when no label is indexed.
func (x index[T]) candidates(selector map[string]string) (set map[T]struct{}, ok bool) {
	for _, label := range indexed {
		value, asked := selector[label]
		if !asked {
			continue
		}
		if found := x[[2]string{label, value}]; !ok || len(found) < len(set) {
			set, ok = found, true
		}
	}
	return set, ok
}

// Operations of a record.
const (
	opBegin          = "begin" // nothing changes
	opSandbox        = "sandbox"
	opSandboxStopped = "sandbox-stopped"
	opSandboxRemoved = "sandbox-removed"
	opContainer      = "container"
	opStarted        = "started"
	opDue            = "due"
	opExited         = "exited"
	opRemoved        = "removed"
	opImage          = "image"
	opImageRemoved   = "image-removed"
)

// record is one change of the state, kept in the journal as JSON. Times are Unix nanoseconds.
type record struct {
	Op      string `json:"op"`
	ID      string `json:"id"`
	At      int64  `json:"at,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
	// Config is a PodSandboxConfig or ContainerConfig in protobuf, less what nobody asks for later.
	Config  []byte `json:"config,omitempty"`
	IP      uint32 `json:"ip,omitempty"`
	Due     int64  `json:"due,omitempty"`
	Code    int32  `json:"code,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// apply makes one change. An error means that the record does not fit, and changes nothing.
func (s *state) apply(r record) error {
	switch r.Op {
	case opBegin:
		return nil
	case opSandbox:
		return s.addSandbox(r)
	case opContainer:
		return s.addContainer(r)
	case opImage, opImageRemoved:
		s.pulled[r.ID] = r.Op == opImage
		return nil
	case opSandboxStopped, opSandboxRemoved:
		box := s.sandboxes[r.ID]
		if box == nil {
			return fmt.Errorf("%s: no sandbox %q", r.Op, r.ID)
		}
		if r.Op == opSandboxStopped {
			s.stopSandbox(box)
			return nil
		}
		return s.removeSandbox(box)
	}
	c := s.containers[r.ID]
	if c == nil {
		return fmt.Errorf("%s: no container %q", r.Op, r.ID)
	}
	switch r.Op {
	case opStarted:
		s.show(c, runtimeapi.ContainerState_CONTAINER_RUNNING)
		c.startedAt = r.At
		s.setDue(c, r.Due, r.Code)
	case opDue:
		s.setDue(c, r.Due, r.Code)
	case opExited:
		s.show(c, runtimeapi.ContainerState_CONTAINER_EXITED)
		c.finishedAt, c.exitCode, c.reason, c.message = r.At, r.Code, r.Reason, r.Message
		s.setDue(c, 0, 0)
		if c.ended != nil {
			close(c.ended)
			c.ended = nil
		}
	case opRemoved:
		s.setDue(c, 0, 0)
		s.byContainer.remove(c.item.Labels, c)
		delete(s.names, containerName(c.sandbox.item.Metadata, c.item.Metadata))
		delete(c.sandbox.containers, r.ID)
		delete(s.containers, r.ID)
	default:
		return fmt.Errorf("unknown operation %q", r.Op)
	}
	return nil
}

func (s *state) addSandbox(r record) error {
	config := &runtimeapi.PodSandboxConfig{}
	if err := proto.Unmarshal(r.Config, config); err != nil {
		return fmt.Errorf("sandbox %q: %w", r.ID, err)
	}
	if config.Metadata == nil {
		return fmt.Errorf("sandbox %q has no metadata", r.ID)
	}
	options := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	box := &sandbox{
		item: &runtimeapi.PodSandbox{
			Id: r.ID, Metadata: config.Metadata, State: runtimeapi.PodSandboxState_SANDBOX_READY, CreatedAt: r.At,
			Labels: config.Labels, Annotations: config.Annotations,
		},
		logDir: config.LogDirectory, ip: r.IP, options: options,
		hostNetwork: options.GetNetwork() == runtimeapi.NamespaceMode_NODE, containers: map[string]*container{},
	}
	s.sandboxes[r.ID] = box
	s.names[sandboxName(config.Metadata)] = r.ID
	s.bySandbox.add(config.Labels, box)
	if r.IP != 0 {
		s.usedIPs[r.IP], s.lastIP = true, r.IP
	}
	return nil
}

func (s *state) stopSandbox(box *sandbox) {
	next := box.copyItem()
	next.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	box.item = next
	delete(s.usedIPs, box.ip)
	box.ip = 0
}

func (s *state) removeSandbox(box *sandbox) error {
	if len(box.containers) > 0 {
		return fmt.Errorf("sandbox %q still has %d containers", box.item.Id, len(box.containers))
	}
	delete(s.usedIPs, box.ip)
	s.bySandbox.remove(box.item.Labels, box)
	delete(s.names, sandboxName(box.item.Metadata))
	delete(s.sandboxes, box.item.Id)
	return nil
}

func (s *state) addContainer(r record) error {
	config := &runtimeapi.ContainerConfig{}
	if err := proto.Unmarshal(r.Config, config); err != nil {
		return fmt.Errorf("container %q: %w", r.ID, err)
	}
	box := s.sandboxes[r.Sandbox]
	if box == nil {
		return fmt.Errorf("container %q: no sandbox %q", r.ID, r.Sandbox)
	}
	if config.Metadata == nil || config.Image == nil {
		return fmt.Errorf("container %q has no metadata or no image", r.ID)
	}
	plan, err := readPlan(config.Metadata.Name, config.Annotations, box.item.Annotations)
	if err != nil {
		return fmt.Errorf("container %q: %w", r.ID, err)
	}
	image := imageOf(cmp.Or(config.Image.UserSpecifiedImage, config.Image.Image))
	c := &container{
		sandbox: box,
		item: &runtimeapi.Container{
			Id: r.ID, PodSandboxId: r.Sandbox, Metadata: config.Metadata, Image: config.Image, ImageRef: image.RepoDigests[0], ImageId: image.Id,
			State: runtimeapi.ContainerState_CONTAINER_CREATED, CreatedAt: r.At, Labels: config.Labels, Annotations: config.Annotations,
		},
		mounts: config.Mounts, plan: plan,
	}
	if box.logDir != "" && config.LogPath != "" {
		c.logPath = joinLog(box.logDir, config.LogPath)
	}
	s.containers[r.ID], box.containers[r.ID] = c, c
	s.names[containerName(box.item.Metadata, config.Metadata)] = r.ID
	s.byContainer.add(config.Labels, c)
	return nil
}

func (s *state) show(c *container, to runtimeapi.ContainerState) {
	next := c.copyItem()
	next.State = to
	c.item = next
}

// copyItem is a shallow copy: labels, annotations and metadata are immutable.
func (c *container) copyItem() *runtimeapi.Container {
	i := c.item
	return &runtimeapi.Container{
		Id: i.Id, PodSandboxId: i.PodSandboxId, Metadata: i.Metadata, Image: i.Image, ImageRef: i.ImageRef, ImageId: i.ImageId,
		State: i.State, CreatedAt: i.CreatedAt, Labels: i.Labels, Annotations: i.Annotations,
	}
}

func (s *sandbox) copyItem() *runtimeapi.PodSandbox {
	i := s.item
	return &runtimeapi.PodSandbox{
		Id: i.Id, Metadata: i.Metadata, State: i.State, CreatedAt: i.CreatedAt, Labels: i.Labels, Annotations: i.Annotations,
	}
}

// sorted are a sandbox's containers, newest first, as far as the clock tells.
func (s *sandbox) sorted() []*container {
	return slices.SortedFunc(maps.Values(s.containers), func(a, b *container) int {
		if a.item.CreatedAt != b.item.CreatedAt {
			return int(max(-1, min(1, b.item.CreatedAt-a.item.CreatedAt)))
		}
		return strings.Compare(a.item.Id, b.item.Id)
	})
}

// A sandbox is one attempt of one pod, a container one attempt of one name in it.
func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.Name, m.Namespace, m.Uid, m.Attempt)
}

func containerName(box *runtimeapi.PodSandboxMetadata, m *runtimeapi.ContainerMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%s_%d", m.Name, box.Name, box.Namespace, box.Uid, m.Attempt)
}
