package criruntime

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const slowPull = 2 * time.Second

// elements are the words of an image's name before its last.
func elements(name string) []string {
	parts := strings.Split(name, "/")
	return parts[:len(parts)-1]
}

// present reports whether an image is on the node.
func (s *state) present(name string) bool {
	if here, known := s.pulled[name]; known {
		return here
	}
	return !slices.ContainsFunc(elements(name), func(e string) bool { return e == "missing" || e == "slow" || e == "pull" })
}

// imageOf describes an image by its name alone.
func imageOf(name string) *runtimeapi.Image {
	sum := sha256.Sum256([]byte(name))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	repo, _, _ := strings.Cut(name, "@")
	if colon := strings.LastIndexByte(repo, ':'); colon > strings.LastIndexByte(repo, '/') {
		repo = repo[:colon]
	}
	return &runtimeapi.Image{Id: digest, RepoTags: []string{name}, RepoDigests: []string{repo + "@" + digest}, Size: 1 << 20, Spec: &runtimeapi.ImageSpec{Image: name}}
}

// imageNamed finds the name of an image by name, ID or digest.
func (s *state) imageNamed(ref string) string {
	if !strings.Contains(ref, "sha256:") {
		return ref
	}
	for _, name := range s.imageNames() {
		if i := imageOf(name); i.Id == ref || i.RepoDigests[0] == ref {
			return name
		}
	}
	return ref
}

// imageNames are the images that were pulled or are used.
func (s *state) imageNames() []string {
	seen := maps.Clone(s.pulled)
	for _, c := range s.containers {
		if _, known := seen[c.item.Image.Image]; !known {
			seen[c.item.Image.Image] = true
		}
	}
	var out []string
	for name, here := range seen {
		if here {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func imageSpec(spec *runtimeapi.ImageSpec) (string, error) {
	name := spec.GetImage()
	if name == "" {
		return "", invalid("image.image must not be empty")
	}
	if strings.ContainsAny(name, " \t\n") || strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") || strings.HasSuffix(name, ":") || lastWord(name) != strings.ToLower(lastWord(name)) {
		return "", invalid("image %q: invalid reference format", name)
	}
	return name, nil
}

// lastWord is a name's last element without tag and digest.
func lastWord(name string) string {
	name, _, _ = strings.Cut(name[strings.LastIndexByte(name, '/')+1:], "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}

// ImageStatus describes an image; without one when it is not on the node.
func (s *Server) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	name, err := imageSpec(r.GetImage())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name = s.state.imageNamed(name)
	if !s.state.present(name) {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: imageOf(name)}, nil
}

// ListImages lists what was pulled or is used: all the others that are there have no end.
func (s *Server) ListImages(_ context.Context, r *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &runtimeapi.ListImagesResponse{}
	want := r.GetFilter().GetImage().GetImage()
	if want != "" {
		if name := s.state.imageNamed(want); s.state.present(name) {
			out.Images = append(out.Images, imageOf(name))
		}
		return out, nil
	}
	for _, name := range s.state.imageNames() {
		out.Images = append(out.Images, imageOf(name))
	}
	return out, nil
}

// PullImage brings an image onto the node. Errors: NotFound, and InvalidArgument for a bad name.
func (s *Server) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	name, err := imageSpec(r.GetImage())
	if err != nil {
		return nil, err
	}
	delay := s.cfg.PullDelay
	if slices.Contains(elements(name), "slow") {
		delay = slowPull
	}
	if err := sleep(ctx, delay); err != nil {
		return nil, err
	}
	if slices.Contains(elements(name), "missing") {
		return nil, status.Errorf(codes.NotFound, "failed to pull and unpack image %q: not found", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if here, known := s.state.pulled[name]; !known || !here {
		if err := s.commit(record{Op: opImage, ID: name}); err != nil {
			return nil, internal(err)
		}
	}
	return &runtimeapi.PullImageResponse{ImageRef: imageOf(name).Id}, nil
}

// RemoveImage takes an image off the node; one that is not there is fine.
func (s *Server) RemoveImage(_ context.Context, r *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	name, err := imageSpec(r.GetImage())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if name = s.state.imageNamed(name); s.state.present(name) {
		if err := s.commit(record{Op: opImageRemoved, ID: name}); err != nil {
			return nil, internal(err)
		}
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo tells of a file system that holds nothing.
func (s *Server) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	usage := &runtimeapi.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
		UsedBytes: &runtimeapi.UInt64Value{}, InodesUsed: &runtimeapi.UInt64Value{},
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{usage}, ContainerFilesystems: []*runtimeapi.FilesystemUsage{usage}}, nil
}
