package backup

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// good is a file with one queue of two keys.
func good(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w, err := newWriter(&b, header{Version: version, Build: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, add := range []func() error{
		func() error {
			q := &queuev1.QueueStatus{Config: &queuev1.QueueConfig{Name: "dev/a"}}
			return w.record(q, func(l *line, raw json.RawMessage) { l.Queue = raw })
		},
		func() error {
			return w.record(&queuev1.Item{Key: "one"}, func(l *line, raw json.RawMessage) { l.Key = raw })
		},
		func() error {
			return w.record(&queuev1.Item{Key: "two"}, func(l *line, raw json.RawMessage) { l.Key = raw })
		},
		w.close,
	} {
		if err := add(); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func readText(t *testing.T, text string) ([]string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var keys []string
	_, err := read(path, handler{key: func(it *queuev1.Item) error {
		keys = append(keys, it.GetKey())
		return nil
	}})
	return keys, err
}

func TestAFileIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	keys, err := readText(t, good(t))
	if err != nil || fmt.Sprint(keys) != "[one two]" {
		t.Errorf("read %v, %v", keys, err)
	}
}

func TestAFileThatIsNotWholeIsRefusedWithItsLine(t *testing.T) {
	t.Parallel()
	text := good(t)
	lines := strings.SplitAfter(text, "\n")
	without := func(i int) string { return strings.Join(append(append([]string{}, lines[:i]...), lines[i+1:]...), "") }
	for name, c := range map[string]struct{ text, want string }{
		"empty":            {"", "line 0: it has no end"},
		"of others":        {"{\"kind\":\"List\"}\n", "line 1: this is no backup"},
		"cut off":          {strings.Join(lines[:3], ""), "cut off after line 3"},
		"cut in a line":    {text[:len(lines[0])+len(lines[1])+4], "line 3: "},
		"a line is gone":   {without(3), "line 4: the backup has 2 records, and 3 were written"},
		"a byte differs":   {strings.Replace(text, "one", "on3", 1), "line 5: the backup was changed"},
		"a later version":  {strings.Replace(text, `"version":1`, `"version":2`, 1), "line 1: the backup has version 2, and this build reads version 1"},
		"a strange field":  {strings.Replace(text, `"key":"two"`, `"kez":"two"`, 1), `line 4: `},
		"a strange record": {strings.Replace(text, `{"key":{"key":"two"`, `{"lock":{"key":"two"`, 1), `line 4: json: unknown field "lock"`},
		"no queue":         {without(1), "line 2: a key before any queue"},
		"two files":        {text + text, "line 5: something follows the end"},
	} {
		if _, err := readText(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
