package kuberuntime

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

const (
	// ownerFile in a pod's log directory names the node, so that agents which share a log root
	// leave each other's logs alone.
	ownerFile = ".deltaplane-node"
	// maxMessage is how much of a container's message file is read, in bytes.
	maxMessage = 4096
	// maxLogMessage and maxLogLines bound a message made of the end of a container's log.
	maxLogMessage, maxLogLines = 2048, 80
)

// makeDirs makes the directories of a pod's files and logs.
func (s *syncing) makeDirs() error {
	if dir := s.podDir(s.pod.UID); dir != "" {
		if err := os.MkdirAll(filepath.Join(dir, "containers"), 0o750); err != nil {
			return fmt.Errorf("make the directory of the pod: %w", err)
		}
	}
	dir := s.logDir(s.pod.Namespace, s.pod.Name, s.pod.UID)
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the log directory of the pod: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, ownerFile), []byte(s.cfg.Node+"\n"), 0o600); err != nil {
		return fmt.Errorf("mark the log directory of the pod: %w", err)
	}
	return nil
}

// makeLogDir makes the directory that a container's log is written to.
func (s *syncing) makeLogDir(c *corev1.Container) error {
	dir := s.logDir(s.pod.Namespace, s.pod.Name, s.pod.UID)
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, c.Name), 0o755); err != nil {
		return fmt.Errorf("make the log directory: %w", err)
	}
	return nil
}

// InLogs says that a path, which a runtime named, lies below the log root.
func (m *Manager) InLogs(path string) bool {
	if m.cfg.LogRoot == "" {
		return false
	}
	rel, err := filepath.Rel(m.cfg.LogRoot, path)
	return err == nil && filepath.IsLocal(rel) && rel != "."
}

// messageFile is the file that a container writes its last words to; "" when pods have no files.
func (m *Manager) messageFile(uid types.UID, name string, attempt uint32) string {
	dir := m.podDir(uid)
	if dir == "" || !plain(name) {
		return ""
	}
	return filepath.Join(dir, "containers", name, strconv.FormatUint(uint64(attempt), 10))
}

// makeMessageFile makes an empty one, which any user in the container may write.
func (s *syncing) makeMessageFile(c *corev1.Container, attempt uint32) (string, error) {
	path := s.messageFile(s.pod.UID, c.Name, attempt)
	if path == "" || c.TerminationMessagePath == "" {
		return "", nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return "", fmt.Errorf("make the file of the termination message: %w", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return "", fmt.Errorf("make the file of the termination message: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // whatever the umask
		return "", fmt.Errorf("make the file of the termination message: %w", err)
	}
	return path, nil
}

// terminationMessage is what a container that ended left: what it wrote to its message file, else,
// when its policy asks for that and it failed, the end of its log. "" is nothing.
func (m *Manager) terminationMessage(uid types.UID, s *runtimeapi.ContainerStatus) string {
	if s.GetAnnotations()[container.AnnotationMessagePath] != "" {
		if path := m.messageFile(uid, s.GetLabels()[container.LabelContainerName], s.GetMetadata().GetAttempt()); path != "" {
			if text, err := readEnd(path, maxMessage, false); err == nil && len(text) > 0 {
				return strings.ToValidUTF8(string(text), "\uFFFD")
			}
		}
	}
	fallback := s.GetAnnotations()[container.AnnotationMessagePolicy] == string(corev1.TerminationMessageFallbackToLogsOnError)
	if !fallback || s.GetExitCode() == 0 || !m.InLogs(s.GetLogPath()) {
		return ""
	}
	// A line of the log has at most 16 KB of text, but 80 lines of the longest are not needed for 2
	// KB.
	raw, err := readEnd(s.GetLogPath(), 4*16<<10, true)
	if err != nil {
		return ""
	}
	return logTail(raw, maxLogLines, maxLogMessage)
}

// readEnd reads up to limit bytes of a plain file: its last ones, or its first.
func readEnd(path string, limit int64, last bool) (text []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no plain file", path)
	}
	if from := st.Size() - limit; last && from > 0 {
		if _, err := f.Seek(from, io.SeekStart); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, limit))
}
