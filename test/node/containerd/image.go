package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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

// writeImages writes an archive in the OCI image layout with both images: one layer
// that holds the program and nothing else, and a configuration for each.
func writeImages(to io.Writer, program string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := layerOf(binary)
	if err != nil {
		return err
	}
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	blob := func(media string, body []byte) descriptor {
		sum := sha256.Sum256(body)
		name := hex.EncodeToString(sum[:])
		files["blobs/sha256/"+name] = body
		return descriptor{MediaType: media, Digest: "sha256:" + name, Size: len(body)}
	}
	on := &platform{Architecture: runtime.GOARCH, OS: "linux"}
	layers := []descriptor{blob(mediaLayer, layer)}
	var index []descriptor
	for name, command := range map[string][]string{PauseImage: {"/box", "pause"}, BoxImage: {"/box", "sleep", "24h"}} {
		config, err := json.Marshal(map[string]any{
			"architecture": on.Architecture, "os": on.OS,
			"config": map[string]any{"Entrypoint": command[:1], "Cmd": command[1:], "Env": []string{"PATH=/"}, "WorkingDir": "/"},
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
		d.Platform, d.Annotations = on, map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": "1"}
		index = append(index, d)
	}
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

func layerOf(binary []byte) ([]byte, error) {
	var raw bytes.Buffer
	out := tar.NewWriter(&raw)
	for _, dir := range []string{"tmp/", "etc/", "dev/", "proc/", "sys/"} {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: time.Unix(0, 0)}); err != nil {
			return nil, err
		}
	}
	if err := entry(out, "etc/passwd", 0o644, []byte("root:x:0:0::/:/box\nnobody:x:65534:65534::/:/box\n")); err != nil {
		return nil, err
	}
	if err := entry(out, "box", 0o755, binary); err != nil {
		return nil, err
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

// importImages gives a containerd both images.
func (c *Containerd) importImages(ctx context.Context) error {
	program := filepath.Join(c.dir, "box")
	if err := buildBox(ctx, program); err != nil {
		return err
	}
	archive := filepath.Join(c.dir, "images.tar")
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	if err := writeImages(f, program); err != nil {
		return fmt.Errorf("%s: %w", archive, err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.programs.Folder, "ctr"), "--address", c.socket, "-n", "k8s.io", "images", "import", "--snapshotter", c.snapshotter, archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ctr images import: %w\n%s", err, out)
	}
	return os.Remove(archive)
}
