package criruntime

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/dirlock"
)

// ErrCorrupt says that the journal holds something that was never written to it.
var ErrCorrupt = errors.New("criruntime: journal is corrupt")

const journalFile = "journal"

// journal is the state as a sequence of records, a line each: the CRC-32 of a record
// in eight hexadecimal digits, a space, the record in JSON. A line without its end was
// being written when the process was killed, and does not count. Nothing is synced: a
// journal outlives the process, not the machine, and nor do containers.
type journal struct {
	path      string
	file      *os.File
	size      int64 // now
	compacted int64 // when it was written anew
	compactAt int64
}

// open takes the directory, reads its journal and writes it anew.
func (s *Server) open() error {
	if s.cfg.Dir == "" {
		return nil
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("criruntime: %w", err)
	}
	lock, err := dirlock.Lock(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("criruntime: %w", err)
	}
	s.lock = lock
	s.journal = &journal{path: filepath.Join(s.cfg.Dir, journalFile), compactAt: s.cfg.CompactAt}
	if err := s.journal.load(s.state); err != nil {
		return errors.Join(err, s.closeFiles())
	}
	if err := s.journal.compact(s.state); err != nil {
		return errors.Join(fmt.Errorf("criruntime: %w", err), s.closeFiles())
	}
	return nil
}

func (s *Server) closeFiles() error {
	var faults []error
	if s.journal != nil && s.journal.file != nil {
		faults = append(faults, s.journal.file.Close())
	}
	if s.lock != nil {
		faults = append(faults, s.lock.Close())
	}
	return errors.Join(faults...)
}

func (j *journal) load(into *state) error {
	f, err := os.Open(j.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("criruntime: %w", err)
	}
	err = replay(f, into)
	if err != nil {
		err = fmt.Errorf("%s: %w", j.path, err)
	}
	return errors.Join(err, f.Close())
}

// replay applies every record of a journal.
func replay(from io.Reader, into *state) error {
	in := bufio.NewReaderSize(from, 64<<10)
	for number := 1; ; number++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r, err := decode(line)
		if err == nil {
			err = into.apply(r)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w: %w", number, ErrCorrupt, err)
		}
	}
}

func encode(r record) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	line := make([]byte, 0, len(body)+10)
	line = fmt.Appendf(line, "%08x ", crc32.ChecksumIEEE(body))
	line = append(line, body...)
	return append(line, '\n'), nil
}

func decode(line []byte) (record, error) {
	var r record
	sum, body, ok := bytes.Cut(bytes.TrimSuffix(line, []byte{'\n'}), []byte{' '})
	if !ok || len(sum) != 8 {
		return r, errors.New("no checksum")
	}
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil {
		return r, errors.New("no checksum")
	}
	if crc32.ChecksumIEEE(body) != uint32(want) {
		return r, errors.New("the checksum does not fit")
	}
	return r, json.Unmarshal(body, &r)
}

func (j *journal) append(r record) error {
	line, err := encode(r)
	if err != nil {
		return err
	}
	n, err := j.file.Write(line)
	if err != nil {
		// What was written of the line must not precede the next one.
		return errors.Join(err, j.file.Truncate(j.size))
	}
	j.size += int64(n)
	return nil
}

func (j *journal) full() bool { return j.size > j.compactAt && j.size > 4*j.compacted }

// compact writes the journal anew, with what the state needs and nothing else. The
// old one stays in place until the new one is complete.
func (j *journal) compact(s *state) error {
	next, err := os.OpenFile(j.path+".next", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(next, 256<<10)
	var size int64
	err = s.records(func(r record) error {
		line, err := encode(r)
		if err != nil {
			return err
		}
		size += int64(len(line))
		_, err = out.Write(line)
		return err
	})
	if err = errors.Join(err, out.Flush()); err == nil {
		err = os.Rename(j.path+".next", j.path)
	}
	if err != nil {
		return errors.Join(err, next.Close())
	}
	old := j.file
	j.file, j.size, j.compacted = next, size, size
	if old != nil {
		return old.Close()
	}
	return nil
}

// records gives the shortest history that leads to a state.
func (s *state) records(give func(record) error) error {
	for _, name := range slices.Sorted(maps.Keys(s.pulled)) {
		op := opImage
		if !s.pulled[name] {
			op = opImageRemoved
		}
		if err := give(record{Op: op, ID: name}); err != nil {
			return err
		}
	}
	for id, box := range s.sandboxes {
		if err := box.records(id, give); err != nil {
			return err
		}
	}
	return nil
}

func (s *sandbox) records(id string, give func(record) error) error {
	config, err := proto.Marshal(&runtimeapi.PodSandboxConfig{
		Metadata: s.item.Metadata, LogDirectory: s.logDir, Labels: s.item.Labels, Annotations: s.item.Annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: s.options}},
	})
	if err != nil {
		return err
	}
	if err := give(record{Op: opSandbox, ID: id, At: s.item.CreatedAt, Config: config, IP: s.ip}); err != nil {
		return err
	}
	for id, c := range s.containers {
		if err := c.records(id, give); err != nil {
			return err
		}
	}
	if s.ready() {
		return nil
	}
	return give(record{Op: opSandboxStopped, ID: id})
}

func (c *container) records(id string, give func(record) error) error {
	logPath := ""
	if c.logPath != "" {
		rel, err := filepath.Rel(c.sandbox.logDir, c.logPath)
		if err != nil {
			return err
		}
		logPath = rel
	}
	config, err := proto.Marshal(&runtimeapi.ContainerConfig{
		Metadata: c.item.Metadata, Image: c.item.Image, Labels: c.item.Labels, Annotations: c.item.Annotations, Mounts: c.mounts, LogPath: logPath,
	})
	if err != nil {
		return err
	}
	out := []record{{Op: opContainer, ID: id, Sandbox: c.sandbox.item.Id, At: c.item.CreatedAt, Config: config}}
	if c.startedAt != 0 {
		out = append(out, record{Op: opStarted, ID: id, At: c.startedAt, Due: c.due, Code: c.dueCode})
	}
	if c.item.State == runtimeapi.ContainerState_CONTAINER_EXITED {
		out = append(out, record{Op: opExited, ID: id, At: c.finishedAt, Code: c.exitCode, Reason: c.reason, Message: c.message})
	}
	for _, r := range out {
		if err := give(r); err != nil {
			return err
		}
	}
	return nil
}
