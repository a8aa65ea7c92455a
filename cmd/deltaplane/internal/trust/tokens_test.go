package trust

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// deciding are the parts that have a file of tokens.
var deciding = []string{"reflector", "indexer", "queue"}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// user is whom a part takes the bearer of a token for, nobody when it refuses.
func user(t *testing.T, dir, part, token string) string {
	t.Helper()
	known, err := rpc.NewTokens(rpc.AuthConfig{TokenFile: filepath.Join(dir, part, "tokens")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	who, err := known.Presented(strings.TrimSpace(token), "/deltaplane.index.v1.IndexService/List")
	if err != nil {
		return ""
	}
	return who.User
}

func TestTokensThatTheOperatorAddedStay(t *testing.T) {
	t.Parallel()
	const alice = "0123456789abcdef-alice"
	dir := t.TempDir()
	newMaker(dir, time.Now()).states(t)
	for _, part := range deciding {
		added := "# our own\n\n" + alice + " alice groups=web\n" + read(t, dir, part+"/tokens") + "0123456789abcdef-bob  bob" // without an end of its line
		if err := os.WriteFile(filepath.Join(dir, part, "tokens"), []byte(added), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := read(t, dir, "admin/token")
	newMaker(dir, time.Now()).states(t)
	for path, state := range newMaker(dir, time.Now()).states(t) {
		if state != stateKept {
			t.Errorf("a run that changes nothing: %s is %s", path, state)
		}
	}
	if err := os.Remove(filepath.Join(dir, "admin/token")); err != nil {
		t.Fatal(err)
	}
	states := newMaker(dir, time.Now()).states(t)
	after := read(t, dir, "admin/token")
	for _, part := range deciding {
		if states[part+"/tokens"] != stateRenewed {
			t.Errorf("%s: with another token of the operator the file is %s", part, states[part+"/tokens"])
		}
		for token, want := range map[string]string{alice: "alice", "0123456789abcdef-bob": "bob", before: "", after: operator} {
			if got := user(t, dir, part, token); got != want {
				t.Errorf("%s takes %s for %q, want %q", part, token, got, want)
			}
		}
		if got := read(t, dir, part+"/tokens"); !strings.HasPrefix(got, "# our own\n\n"+alice) {
			t.Errorf("%s: comments and order are lost: %q", part, got)
		}
	}
}

func TestTheOperatorsTokenIsInNoFolderOfAPart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	newMaker(dir, time.Now()).states(t)
	token := strings.TrimSpace(read(t, dir, "admin/token"))
	// As certs init wrote the file before it knew hashes.
	if err := os.WriteFile(filepath.Join(dir, "queue/tokens"), []byte(token+" deltaplane:admin groups=deltaplane:operators\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path := range newMaker(dir, time.Now()).states(t) {
		if path != "admin/token" && strings.Contains(read(t, dir, path), token) {
			t.Errorf("%s has the operator's token", path)
		}
	}
	for _, part := range deciding {
		if got := user(t, dir, part, token); got != operator {
			t.Errorf("%s takes the operator's token for %q", part, got)
		}
	}
}

func TestATokenOfTheOperatorThatNoPartWouldTakeIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	newMaker(dir, time.Now()).states(t)
	before := read(t, dir, "queue/tokens")
	if err := os.WriteFile(filepath.Join(dir, "admin/token"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := newMaker(dir, time.Now()).run()
	if err == nil || !strings.Contains(err.Error(), "admin/token: rpc: token is shorter") || strings.Contains(err.Error(), "secret") {
		t.Errorf("a short token: %v, want an error with the file and no token", err)
	}
	if after := read(t, dir, "queue/tokens"); after != before {
		t.Errorf("the file of the queue becomes %q", after)
	}
}

func TestTheOperatorsLineReplacesAllOfItsOwn(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"":                        "NEW\n",
		"\n":                      "\nNEW\n",
		"a alice":                 "a alice\nNEW\n",
		"old deltaplane:admin\n":  "NEW\n",
		"\told\tdeltaplane:admin": "NEW\n",
		"1 deltaplane:admin /x\na alice\r\n2 deltaplane:admin\n":     "NEW\na alice\r\n",
		"# 1 deltaplane:admin\nbroken\na deltaplane:administrator\n": "# 1 deltaplane:admin\nbroken\na deltaplane:administrator\nNEW\n",
	} {
		got := string(withOperator([]byte(file), []byte("NEW")))
		if got != want {
			t.Errorf("%q becomes %q, want %q", file, got, want)
		}
	}
}
