package certs_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/internal/certs"
)

func TestTheConfigurationOfAConnectionHasTheAuthoritiesOfTheMoment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(dir, "ca.pem")
		write := func(name string) {
			_, root, err := certs.NewAuthority(name, time.Now(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, root.Cert, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("first")
		next, err := certs.ClientNow(certs.Config{CAFile: file}, "redis")
		if err != nil {
			t.Fatal(err)
		}
		was := next()
		if !next().RootCAs.Equal(was.RootCAs) || was.ServerName != "redis" {
			t.Errorf("%+v", was)
		}
		write("second")
		time.Sleep(certs.Recheck)
		if next().RootCAs.Equal(was.RootCAs) {
			t.Error("the authorities are those of the start")
		}
		if _, err := certs.ClientNow(certs.Config{CAFile: filepath.Join(dir, "none")}, ""); err == nil {
			t.Error("a file that is not there is taken")
		}
	})
}
