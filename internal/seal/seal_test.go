package seal_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/internal/seal"
	"github.com/deltaplane/deltaplane/internal/seal/sealtest"
)

func TestWhatIsSealedIsOpenedForWhatItIsAboutAlone(t *testing.T) {
	t.Parallel()
	k, _ := sealtest.Open(t, sealtest.Line())
	payload, about := []byte(`{"data":{"password":"aHVudGVyMg=="}}`), []byte("dev/secrets.v1 web/db")
	sealed := k.Seal(payload, about)
	if bytes.Contains(sealed, payload[:8]) || len(sealed) != len(payload)+seal.Overhead {
		t.Errorf("sealed is %q", sealed)
	}
	if bytes.Equal(sealed, k.Seal(payload, about)) {
		t.Error("the same payload looks the same twice")
	}
	if got, err := k.Open(sealed, about); err != nil || !bytes.Equal(got, payload) {
		t.Errorf("Open = %q, %v", got, err)
	}
	if got, err := k.Open(sealed, []byte("dev/secrets.v1 web/other")); !errors.Is(err, seal.ErrDamaged) {
		t.Errorf("Open of another's = %q, %v", got, err)
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if got, err := k.Open(bad, about); err == nil {
			t.Fatalf("byte %d was changed, and Open = %q", i, got)
		}
		if got, err := k.Open(sealed[:i], about); err == nil {
			t.Fatalf("%d bytes are left, and Open = %q", i, got)
		}
	}
}

func TestKeysAreRotatedInARunningProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := sealtest.Line(), sealtest.Line()
		k, path := sealtest.Open(t, "# of 2026", first)
		old, hash := k.Seal([]byte("a"), nil), k.Hash(7)
		next := func(lines ...string) {
			sealtest.Write(t, path, lines...)
			time.Sleep(2 * time.Second)
		}
		next(first, second)
		if k.Hash(7) != hash {
			t.Error("a key that is not the first hides hashes")
		}
		next(second, first)
		if got, err := k.Open(old, nil); err != nil || string(got) != "a" {
			t.Errorf("what the old key sealed: %q, %v", got, err)
		}
		if k.Hash(7) == hash {
			t.Error("the hash is the one of the old key")
		}
		now := k.Seal([]byte("b"), nil)
		next("nonsense")
		if err := k.Check(); err == nil || strings.Contains(err.Error(), "nonsense") || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("Check = %v", err)
		}
		if got, err := k.Open(now, nil); err != nil || string(got) != "b" {
			t.Errorf("with a file that cannot be used: %q, %v", got, err)
		}
		next(second)
		if err := k.Check(); err != nil {
			t.Error(err)
		}
		var unknown *seal.UnknownKeyError
		if _, err := k.Open(old, nil); !errors.As(err, &unknown) {
			t.Errorf("what a removed key sealed: %v", err)
		}
		if _, err := k.Open(now, nil); err != nil {
			t.Error(err)
		}
	})
}

func TestAFileThatIsNoneIsRefusedByItsLine(t *testing.T) {
	t.Parallel()
	one := sealtest.Line()
	for what, lines := range map[string][]string{
		"has no key":                       {"# nothing", ""},
		"line 2: want 32 bytes":            {one, "c2hvcnQ="},
		"line 3: the key is there already": {one, "", one},
	} {
		path := filepath.Join(t.TempDir(), "keys")
		sealtest.Write(t, path, lines...)
		if _, err := seal.Open(path); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%q: %v, want %q", lines, err, what)
		}
	}
	if _, err := seal.Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
