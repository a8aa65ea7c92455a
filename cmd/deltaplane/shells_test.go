package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// asProgram has the program of these tests be the one that they test.
const asProgram = "AS_DELTAPLANE"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// stub is a program that completes as ours does, and otherwise says what it was called with.
const stub = `#!/bin/sh
if [ "$1" = __complete ]; then
	` + asProgram + `=1
	export ` + asProgram + `
	exec %q "$@"
fi
echo "RAN:$*:END"
`

// zshDriver types each of its arguments into an interactive zsh, presses the tab key and Enter, and
// prints what was run. A service that did not answer within the second of a press is asked again.
const zshDriver = `
zmodload zsh/zpty
zpty shell zsh -f -i
enter() {
	local chunk
	zpty -w shell "$1"
	seen=
	while zpty -r shell chunk; do
		seen+=$chunk
		[[ $seen == *$2* ]] && return
	done
	print -ru2 -- "the shell ended after: $seen"
	exit 1
}
enter "autoload -U compinit; compinit -u -d $HOME/compdump; source <(deltaplane-script zsh); print LOA''DED" LOADED
for line; do
	for try in {1..30}; do
		enter "$line"$'\t' :END
		ran=${${seen##*RAN:}%%:END*}
		[[ "deltaplane $ran" == "$line" ]] || break
	done
	print -r -- "deltaplane $ran"
done
`

// fishDriver asks a fish what it offers for each of its arguments.
const fishDriver = `
deltaplane-script fish | source
for line in $argv
	for try in (seq 30)
		set offered (complete -C $line | string split -f1 \t)
		test (count $offered) -gt 0; and break
	end
	echo (string replace -r '[^ ]*$' '' -- $line)"$offered"
end
`

func TestZshAndFishCompleteWhatIsTyped(t *testing.T) {
	t.Parallel()
	var s shelf
	addr := servedAt(t, func(srv *grpc.Server) { indexv1.RegisterIndexServiceServer(srv, &s) })
	lines := []string{"deltaplane sta", "deltaplane get po", "deltaplane get pods shop/w", "deltaplane get po -n sh", "deltaplane get pods --index node=", "deltaplane status -o j"}
	want := []string{"deltaplane status", "deltaplane get pods", "deltaplane get pods shop/web-2", "deltaplane get po -n shop", "deltaplane get pods --index node=node-1", "deltaplane status -o json"}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for shell, call := range map[string][]string{"zsh": {"-f", "-c", zshDriver, "zsh"}, "fish": {"--no-config", "-c", fishDriver}} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			program, err := exec.LookPath(shell)
			if err != nil {
				t.Skipf("%s is not installed (Debian: apt-get install %[1]s)", shell)
			}
			script, errs, code := command(t.Context(), "", "completion", shell)
			if code != 0 {
				t.Fatalf("completion %s: %s", shell, errs)
			}
			dir := t.TempDir()
			for name, text := range map[string]string{
				"deltaplane": fmt.Sprintf(stub, self), "deltaplane-script": "#!/bin/sh\ncat <<'END'\n" + script + "END\n",
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil { //nolint:gosec // it is to be run
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, append(call, lines...)...) //nolint:gosec // a shell
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "TERM=xterm", "DELTAPLANE_INDEX_URL="+addr)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if got := strings.Split(strings.TrimSpace(string(out)), "\n"); err != nil || !slices.Equal(got, want) {
				t.Errorf("it makes %q of %q: %v, %s", got, lines, err, stderr.String())
			}
		})
	}
}
