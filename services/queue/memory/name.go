package memory

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/url"
	"strings"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/journal"
)

// namedHead is the beginning of a log: all of a snapshot but keys and back-off
// ids, and whose it is.
type namedHead struct {
	Name string `json:"name"`
	*workqueue.Snapshot
}

// longestFile bounds the file name of a queue: what is put behind it has to
// fit into the 255 bytes of a file system as well.
const longestFile = 200

// cutSign stands in no escaped name of a queue.
const cutSign = "~"

// fileName is the escaped name of a queue, or the beginning of one that is too
// long and a hash of the whole.
func fileName(name string) string {
	escaped := url.PathEscape(name)
	if len(escaped) <= longestFile {
		return escaped
	}
	sum := sha256.Sum256([]byte(name))
	id := cutSign + hex.EncodeToString(sum[:16])
	return escaped[:longestFile-len(id)] + id
}

// nameOf is the name of the queue whose log has a file name without its
// suffix, and a path. A name that was cut is read from the log.
func nameOf(file, path string) (string, error) {
	if !strings.Contains(file, cutSign) {
		return url.PathUnescape(file)
	}
	var head namedHead
	enough := errors.New("the first record is enough")
	_, err := journal.Read(path, format, func(body []byte) error {
		if body[0] == recHead && len(body) > 1 {
			_ = json.Unmarshal(body[2:], &head) // what it leaves is no name
		}
		return enough
	})
	if !errors.Is(err, enough) || fileName(head.Name) != file {
		return "", errNoSnapshot
	}
	return head.Name, nil
}
