package containerd

import (
	"fmt"
	"os"
	"path/filepath"
)

// writeConfig writes what both generations of containerd need to run where tests
// run: an OOM score that need not be lowered, no AppArmor, our pause image, and CNI
// folders in which there is nothing, since pods are on the node's network.
func (c *Containerd) writeConfig() error {
	at := func(name string) string { return filepath.Join(c.dir, name) }
	for _, folder := range []string{"root", "state", "cni/bin", "cni/conf"} {
		if err := os.MkdirAll(at(folder), 0o711); err != nil {
			return err
		}
	}
	head := fmt.Sprintf(`root = %q
state = %q
oom_score = 0
[grpc]
  address = %q
[debug]
  level = "info"
`, at("root"), at("state"), c.socket)
	text := "version = 3\n" + `disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs", "io.containerd.differ.v1.erofs", "io.containerd.internal.v1.tracing"]` + "\n" + head + fmt.Sprintf(`
[plugins."io.containerd.cri.v1.images"]
  snapshotter = %q
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  ignore_image_defined_volumes = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%q]
    conf_dir = %q
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = %q
`, c.snapshotter, PauseImage, at("cni/bin"), at("cni/conf"), c.programs.Runc)
	if c.programs.Major < 2 {
		text = "version = 2\n" + head + fmt.Sprintf(`
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %q
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = %q
`, PauseImage, at("cni/bin"), at("cni/conf"), c.snapshotter, c.programs.Runc)
	}
	return os.WriteFile(c.config, []byte(text), 0o600)
}
