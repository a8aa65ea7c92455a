// Package sealtest makes files of encryption keys for tests.
package sealtest

import (
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/internal/seal"
)

// Line is a new key as a line of a file.
func Line() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // it never fails
	return base64.StdEncoding.EncodeToString(b[:])
}

// Write replaces a file of keys.
func Write(t testing.TB, path string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(path+".next", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}

// Open makes a file of keys and opens it.
func Open(t testing.TB, lines ...string) (keys *seal.Keys, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "keys")
	Write(t, path, lines...)
	keys, err := seal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return keys, path
}
