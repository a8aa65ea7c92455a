package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/deltaplane/deltaplane/internal/seal"
	"github.com/deltaplane/deltaplane/internal/seal/sealtest"
	"github.com/deltaplane/deltaplane/services/indexer/checkpoint"
)

// kept is a folder with one file, which is encrypted with the keys.
func kept(t *testing.T, keys *seal.Keys) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	d, err := checkpoint.Open(dir, keys)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Save(context.Background(), header, population(t, 3000, 2000), 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.checkpoint"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	return dir, files[0]
}

func load(t *testing.T, dir string, keys *seal.Keys) (*checkpoint.Image, error) {
	t.Helper()
	d, err := checkpoint.Open(dir, keys)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	image, _, err := d.Load(header.Collection, checkpoint.Options{Open: open})
	return image, err
}

func TestAnEncryptedFileIsReadWithItsKeyAlone(t *testing.T) {
	t.Parallel()
	line := sealtest.Line()
	keys, _ := sealtest.Open(t, line)
	rotated, _ := sealtest.Open(t, sealtest.Line(), line)
	others, _ := sealtest.Open(t, sealtest.Line())
	dir, file := kept(t, keys)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	plainDir, plain := kept(t, nil)
	plainData, err := os.ReadFile(plain)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{[]byte("ns-1/pod-"), []byte("spec.nodeName")} {
		if !bytes.Contains(plainData, part) {
			t.Errorf("a file that is not encrypted has no %q", part)
		}
		if bytes.Contains(data, part) {
			t.Errorf("an encrypted file has %q", part)
		}
	}
	want, err := load(t, plainDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]*seal.Keys{"its key": keys, "a newer key before it": rotated} {
		got, err := load(t, dir, k)
		if err != nil || len(got.Objects) != len(want.Objects) || len(got.Objects) == 0 || len(got.Tombstones) != len(want.Tombstones) {
			t.Fatalf("with %s: %v", name, err)
		}
		for i, o := range got.Objects {
			if text(t, o) != text(t, want.Objects[i]) {
				t.Errorf("with %s: %s, want %s", name, text(t, o), text(t, want.Objects[i]))
			}
		}
	}
	for name, k := range map[string]*seal.Keys{"another key": others, "no key": nil} {
		if _, err := load(t, dir, k); !errors.Is(err, checkpoint.ErrEncrypted) {
			t.Errorf("with %s: %v", name, err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("who lacks the key has removed the file: %v", err)
	}
}

func TestAFileThatIsNotEncryptedIsRemovedWhereFilesMustBe(t *testing.T) {
	t.Parallel()
	keys, _ := sealtest.Open(t, sealtest.Line())
	dir, file := kept(t, nil)
	if _, err := load(t, dir, keys); !errors.Is(err, checkpoint.ErrPlain) {
		t.Errorf("it is read: %v", err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestBlocksOfOneEncryptedFileCannotStandInAnother(t *testing.T) {
	t.Parallel()
	keys, _ := sealtest.Open(t, sealtest.Line())
	s := population(t, 100, 100)
	var a, b bytes.Buffer
	other := header
	other.Horizon++
	_, errA := checkpoint.Write(&a, header, s, keys)
	_, errB := checkpoint.Write(&b, other, s, keys)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	if a.Len() != b.Len() {
		t.Fatalf("files of %d and %d bytes, want headers of one length", a.Len(), b.Len())
	}
	// The header's block is the first; its length is in its frame.
	head := 10
	end := head + 5 + int(a.Bytes()[head+1]) + int(a.Bytes()[head+2])<<8 + 4
	mixed := append(bytes.Clone(a.Bytes()[:end]), b.Bytes()[end:]...)
	if _, err := checkpoint.Read(bytes.NewReader(mixed), int64(len(mixed)), checkpoint.Options{Open: open, Keys: keys}); !errors.Is(err, checkpoint.ErrDamaged) {
		t.Errorf("a file of two is %v", err)
	}
}
