package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// Images that every containerd of this package has.
const (
	// PauseImage is what a sandbox runs.
	PauseImage = "registry.deltaplane.test/pause:1"
	// BoxImage has the program of test/node/box at /box.
	BoxImage = "registry.deltaplane.test/box:1"
)

// buildBox compiles the test program, static.
func buildBox(ctx context.Context, into string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", into, "github.com/deltaplane/deltaplane/test/node/box")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the test program: %w\n%s", err, out)
	}
	return nil
}

// descriptor points to a blob of an OCI image layout.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// Image is an image to import. It has one layer.
type Image struct {
	// Name is what pods call it.
	Name  string
	Files []File
	// Entrypoint and Command are what a container runs; its own command replaces both, its own
	// arguments the second.
	Entrypoint, Command []string
}

// File is a file of an image, owned by root.
type File struct {
	// Path has no slash at its beginning.
	Path string
	// Mode are the permission bits.
	Mode int64
	Body []byte
	// Link, where it is not empty, makes this a hard link to that path, which must come earlier.
	Link string
}

// writeImages writes an archive in the OCI image layout.
func writeImages(to io.Writer, images []Image) error {
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	blob := func(media string, body []byte) descriptor {
		sum := sha256.Sum256(body)
		name := hex.EncodeToString(sum[:])
		files["blobs/sha256/"+name] = body
		return descriptor{MediaType: media, Digest: "sha256:" + name, Size: len(body)}
	}
	on := &platform{Architecture: runtime.GOARCH, OS: "linux"}
	var index []descriptor
	for _, image := range images {
		layer, err := layerOf(image.Files)
		if err != nil {
			return fmt.Errorf("image %s: %w", image.Name, err)
		}
		layers := []descriptor{blob(mediaLayer, layer)}
		config, err := json.Marshal(map[string]any{
			"architecture": on.Architecture, "os": on.OS,
			"config": map[string]any{"Entrypoint": image.Entrypoint, "Cmd": image.Command, "Env": []string{"PATH=/bin:/"}, "WorkingDir": "/"},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layers[0].Digest}},
		})
		if err != nil {
			return err
		}
		body, err := json.Marshal(manifest{SchemaVersion: 2, MediaType: mediaManifest, Config: blob(mediaConfig, config), Layers: layers})
		if err != nil {
			return err
		}
		d := blob(mediaManifest, body)
		d.Platform, d.Annotations = on, map[string]string{"io.containerd.image.name": image.Name, "org.opencontainers.image.ref.name": "1"}
		index = append(index, d)
	}
	var err error
	if files["index.json"], err = json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": index}); err != nil {
		return err
	}
	out := tar.NewWriter(to)
	for name, body := range files {
		if err := entry(out, name, 0o644, body); err != nil {
			return err
		}
	}
	return out.Close()
}

func layerOf(files []File) ([]byte, error) {
	var raw bytes.Buffer
	out := tar.NewWriter(&raw)
	for _, dir := range []string{"bin/", "tmp/", "etc/", "dev/", "proc/", "sys/"} {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: time.Unix(0, 0)}); err != nil {
			return nil, err
		}
	}
	for _, file := range files {
		if file.Link != "" {
			header := &tar.Header{Typeflag: tar.TypeLink, Name: file.Path, Linkname: file.Link, Mode: file.Mode, ModTime: time.Unix(0, 0)}
			if err := out.WriteHeader(header); err != nil {
				return nil, err
			}
			continue
		}
		if err := entry(out, file.Path, file.Mode, file.Body); err != nil {
			return nil, err
		}
	}
	err := out.Close()
	return raw.Bytes(), err
}

func entry(out *tar.Writer, name string, mode int64, body []byte) error {
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(body)), ModTime: time.Unix(0, 0)}); err != nil {
		return err
	}
	_, err := out.Write(body)
	return err
}

// importOwn gives a containerd the images that it has from the start.
func (c *Containerd) importOwn(ctx context.Context) error {
	program := filepath.Join(c.dir, "box")
	if err := buildBox(ctx, program); err != nil {
		return err
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	files := []File{
		{Path: "etc/passwd", Mode: 0o644, Body: []byte("root:x:0:0::/:/box\nnobody:x:65534:65534::/:/box\n")},
		{Path: "box", Mode: 0o755, Body: binary},
	}
	return c.Import(ctx,
		Image{Name: PauseImage, Files: files, Entrypoint: []string{"/box"}, Command: []string{"pause"}},
		Image{Name: BoxImage, Files: files, Entrypoint: []string{"/box"}, Command: []string{"sleep", "24h"}})
}

// Import gives the containerd further images and waits until pods can name them.
func (c *Containerd) Import(ctx context.Context, images ...Image) error {
	archive := filepath.Join(c.dir, "images.tar")
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	if err := writeImages(f, images); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", archive, err), f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := c.ctr(ctx, "images", "import", "--snapshotter", c.snapshotter, archive); err != nil {
		return err
	}
	names := make([]string, 0, len(images))
	for _, image := range images {
		names = append(names, image.Name)
	}
	return errors.Join(os.Remove(archive), c.until(ctx, has(c.conn, names)))
}

// Alias gives an image that is there a further name.
func (c *Containerd) Alias(ctx context.Context, image, name string) error {
	if err := c.ctr(ctx, "images", "tag", image, name); err != nil {
		return err
	}
	return c.until(ctx, has(c.conn, []string{name}))
}

func (c *Containerd) ctr(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.programs.Folder, "ctr"), append([]string{"--address", c.socket, "-n", "k8s.io"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ctr %s: %w\n%s", args[:2], err, out)
	}
	return nil
}
