package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/cri"
)

// The grammar of image references: [DOMAIN[:PORT]/]PATH[/PATH...][:TAG][@DIGEST].
var reference = regexp.MustCompile(`^` +
	`(?:(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?/)?` +
	`[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*` +
	`(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?` +
	`(@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?$`)

// normal is a reference with the tag that runtimes take when there is none.
func normal(image string) (string, error) {
	if image == "" {
		return "", errors.New("image name is empty")
	}
	parts := reference.FindStringSubmatch(image)
	if parts == nil || len(image) > 4096 {
		return "", fmt.Errorf("couldn't parse image name %q: invalid reference format", image)
	}
	if parts[1] == "" && parts[2] == "" {
		return image + ":latest", nil
	}
	return image, nil
}

// policyOf is a container's pull policy, as the API server sets it where there is none.
func policyOf(c *corev1.Container, ref string) corev1.PullPolicy {
	if c.ImagePullPolicy != "" {
		return c.ImagePullPolicy
	}
	if strings.HasSuffix(ref, ":latest") {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// ensureImage makes the image of a container present as its pull policy says. Its errors are
// [*ContainerError] and [*BackoffError].
func (s *syncing) ensureImage(ctx context.Context, c *corev1.Container) (*runtimeapi.Image, error) {
	fail := func(reason, message string, err error) (*runtimeapi.Image, error) {
		s.event(s.pod, corev1.EventTypeWarning, "Failed", "Error: "+message)
		return nil, &ContainerError{Container: c.Name, Reason: reason, Message: message, Err: err}
	}
	ref, err := normal(c.Image)
	if err != nil {
		message := fmt.Sprintf("Failed to apply default image tag %q: %v", c.Image, err)
		s.event(s.pod, corev1.EventTypeWarning, "InspectFailed", message)
		return fail(ReasonInvalidImageName, message, err)
	}
	image, err := s.imageStatus(ctx, ref)
	if err != nil {
		return fail(ReasonImageInspectError, fmt.Sprintf("Failed to inspect image %q: %s", c.Image, cri.Message(err)), err)
	}
	switch policy := policyOf(c, ref); {
	case policy == corev1.PullNever && image == nil:
		s.event(s.pod, corev1.EventTypeWarning, "ErrImageNeverPull", fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image))
		return fail(ReasonErrImageNeverPull, fmt.Sprintf("Container image %q is not present with pull policy of Never", c.Image), nil)
	case image != nil && policy != corev1.PullAlways:
		s.event(s.pod, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", c.Image))
		return image, nil
	}
	return s.pull(ctx, c, ref)
}

// pullErrorShown is how long a pod waits because of ErrImagePull at most. The sync after it finds
// the back-off, says ImagePullBackOff, and names the time of the next pull.
const pullErrorShown = 10 * time.Second

func (s *syncing) pull(ctx context.Context, c *corev1.Container, ref string) (*runtimeapi.Image, error) {
	key := string(s.pod.UID) + "_" + ref
	now := s.now()
	if left := s.pulls.leftSinceUpdate(key, now); left > 0 {
		message := fmt.Sprintf("Back-off pulling image %q", c.Image)
		s.event(s.pod, corev1.EventTypeNormal, "BackOff", message)
		return nil, &BackoffError{Expiry: now.Add(left), Reason: ReasonImagePullBackOff, Message: message}
	}
	select {
	case s.pulling <- struct{}{}:
		defer func() { <-s.pulling }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.event(s.pod, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", c.Image))
	start := s.now()
	r, err := s.rt.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}, SandboxConfig: s.config})
	var image *runtimeapi.Image
	if err == nil {
		if image, err = s.imageStatus(ctx, r.GetImageRef()); err == nil && image == nil {
			err = errors.New("the runtime does not have the image that it pulled")
		}
	}
	if err == nil {
		s.pulls.remove(key)
		s.event(s.pod, corev1.EventTypeNormal, "Pulled",
			fmt.Sprintf("Successfully pulled image %q in %v", c.Image, s.now().Sub(start).Round(time.Millisecond)))
		return image, nil
	}
	if ctx.Err() != nil {
		return nil, err // the pod is to end: nothing is wrong with the image
	}
	message := fmt.Sprintf("failed to pull image %q: %s", c.Image, cri.Message(err))
	s.event(s.pod, corev1.EventTypeWarning, "Failed", "Failed to pull image: "+message)
	now = s.now()
	delay, _ := s.pulls.next(key, s.pod.UID, now, now) // it is in memory, there is no file to fail
	return nil, &ContainerError{
		Container: c.Name, Reason: ReasonErrImagePull, Message: message,
		Err: errors.Join(err, &BackoffError{Expiry: now.Add(min(delay/2, pullErrorShown)), Reason: ReasonImagePullBackOff, Message: message}),
	}
}

// imageStatus is nil for an image that the runtime does not have.
func (s *syncing) imageStatus(ctx context.Context, ref string) (*runtimeapi.Image, error) {
	r, err := s.rt.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if cri.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return r.GetImage(), nil
}
