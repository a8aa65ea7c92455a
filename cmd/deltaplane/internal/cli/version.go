package cli

import "runtime/debug"

// version is set by the linker in released binaries; otherwise the module's build information is
// shown.
var version string

// BuildVersion is the version that --version and telemetry show.
func BuildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
