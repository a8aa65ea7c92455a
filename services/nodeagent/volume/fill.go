package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
)

// file is one file of a volume.
type file struct {
	data []byte
	mode os.FileMode
}

// files are a volume's, by their path in it.
type files map[string]file

// filler collects the files of one volume.
type filler struct {
	m     *Manager
	pod   *corev1.Pod
	facts environ.Facts
	known *podVolumes
	files files
}

// add puts a file in; paths lead neither out of the volume nor to its bookkeeping.
func (f *filler) add(path string, data []byte, mode os.FileMode) error {
	clean := filepath.Clean(path)
	if path == "" || clean == "." || !filepath.IsLocal(path) || strings.HasPrefix(clean, "..") {
		return fmt.Errorf("path %q does not stay in the volume", path)
	}
	f.files[clean] = file{data, mode}
	return nil
}

func (f *filler) configMap(ctx context.Context, name string, items []corev1.KeyToPath, optional *bool, mode os.FileMode) error {
	o, err := f.m.objects.ConfigMap(ctx, f.pod.Namespace, name)
	if err != nil {
		return environ.Missing(err, optional, "configmap", name)
	}
	data := make(map[string][]byte, len(o.Data)+len(o.BinaryData))
	for k, v := range o.Data {
		data[k] = []byte(v)
	}
	maps.Copy(data, o.BinaryData)
	return f.keys("configmap", name, data, items, optional, mode)
}

func (f *filler) secret(ctx context.Context, name string, items []corev1.KeyToPath, optional *bool, mode os.FileMode) error {
	o, err := f.m.objects.Secret(ctx, f.pod.Namespace, name)
	if err != nil {
		return environ.Missing(err, optional, "secret", name)
	}
	return f.keys("secret", name, o.Data, items, optional, mode)
}

// keys adds an object's keys: all of them, or the items under their paths.
func (f *filler) keys(kind, name string, data map[string][]byte, items []corev1.KeyToPath, optional *bool, mode os.FileMode) error {
	if len(items) == 0 {
		for k, v := range data {
			if err := f.add(k, v, mode); err != nil {
				return fmt.Errorf("%s %q: %w", kind, name, err)
			}
		}
		return nil
	}
	for _, item := range items {
		v, ok := data[item.Key]
		if !ok {
			if optional != nil && *optional {
				continue
			}
			return fmt.Errorf("%s %q has no key %q", kind, name, item.Key)
		}
		if err := f.add(item.Path, v, itemMode(item.Mode, mode)); err != nil {
			return fmt.Errorf("%s %q: %w", kind, name, err)
		}
	}
	return nil
}

func itemMode(item *int32, otherwise os.FileMode) os.FileMode {
	if item == nil {
		return otherwise
	}
	return mode(item)
}

func (f *filler) downward(items []corev1.DownwardAPIVolumeFile, mode os.FileMode) error {
	for _, item := range items {
		var s string
		var err error
		switch {
		case item.FieldRef != nil:
			s, err = environ.Field(f.pod, item.FieldRef, f.facts)
		case item.ResourceFieldRef != nil:
			s, err = environ.Resource(f.pod, nil, item.ResourceFieldRef, f.facts.Allocatable)
		default:
			err = errors.New("neither fieldRef nor resourceFieldRef is set")
		}
		if err == nil {
			err = f.add(item.Path, []byte(s), itemMode(item.Mode, mode))
		}
		if err != nil {
			return fmt.Errorf("downward API file %q: %w", item.Path, err)
		}
	}
	return nil
}

func (f *filler) projected(ctx context.Context, volume string, src *corev1.ProjectedVolumeSource) error {
	mode := mode(src.DefaultMode)
	for i := range src.Sources {
		s := &src.Sources[i]
		var err error
		switch {
		case s.ConfigMap != nil:
			err = f.configMap(ctx, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional, mode)
		case s.Secret != nil:
			err = f.secret(ctx, s.Secret.Name, s.Secret.Items, s.Secret.Optional, mode)
		case s.DownwardAPI != nil:
			err = f.downward(s.DownwardAPI.Items, mode)
		case s.ServiceAccountToken != nil:
			err = f.token(ctx, s.ServiceAccountToken, mode)
		default:
			err = fmt.Errorf("source %d of projected volume %q is of a kind that is not supported", i, volume)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
