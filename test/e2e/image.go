//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/deltaplane/deltaplane/test/node/containerd"
)

// images gives the runtime the images that the specs name, made here: nothing can be pulled.
func images(ctx context.Context, m made, runtime *containerd.Containerd) error {
	list, err := output(ctx, m.root, io.Discard, m.suite, "--list-images")
	if err != nil {
		return err
	}
	shells, pauses := imagesNamed(list, "busybox"), imagesNamed(list, "pause")
	if len(shells) == 0 || len(pauses) == 0 {
		return fmt.Errorf("the suite lists no image busybox or none called pause:\n%s", list)
	}
	files, err := busybox(ctx)
	if err != nil {
		return err
	}
	made := make([]containerd.Image, len(shells))
	for i, name := range shells {
		made[i] = containerd.Image{Name: name, Files: files, Command: []string{"/bin/sh"}}
	}
	if err := runtime.Import(ctx, made...); err != nil {
		return err
	}
	for _, name := range pauses {
		if err := runtime.Alias(ctx, containerd.PauseImage, name); err != nil {
			return err
		}
	}
	return nil
}

// imagesNamed are the references of a list whose name, without registry and tag, is name: there are
// several versions of some.
func imagesNamed(list, name string) []string {
	var found []string
	for line := range strings.Lines(list) {
		reference := strings.TrimSpace(line)
		if path, _, tagged := strings.Cut(reference[strings.LastIndex(reference, "/")+1:], ":"); tagged && path == name {
			found = append(found, reference)
		}
	}
	return found
}

// busybox are the files of an image with every command of the machine's static busybox.
func busybox(ctx context.Context) ([]containerd.File, error) {
	program, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("no busybox on PATH (Debian: apt-get install busybox-static): %w", err)
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	list, err := exec.CommandContext(ctx, program, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", program, err)
	}
	const path = "bin/busybox"
	files := []containerd.File{
		{Path: "etc/passwd", Mode: 0o644, Body: []byte("root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")},
		{Path: path, Mode: 0o755, Body: binary},
	}
	for name := range strings.FieldsSeq(string(list)) {
		if name != "busybox" {
			files = append(files, containerd.File{Path: "bin/" + name, Mode: 0o755, Link: path})
		}
	}
	return files, nil
}
