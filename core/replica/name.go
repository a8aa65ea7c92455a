package replica

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"
)

// MaxName is the longest name [Name] gives: a pod's host name is its name, and
// host names end at 63 bytes.
const MaxName = 63

// MaxOrdinal bounds ordinals; no owner gets there in a thousand years.
const MaxOrdinal = 1 << 53

// NoIndex is the index of children that have none.
const NoIndex = -1

// Child is what tells a child from the others of its owner.
type Child struct {
	Ordinal int64
	// Index is the piece of work it stands for, or [NoIndex].
	Index int
}

var hashing = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Name is the name of a child: `<owner name>-<hash of the UID>-<ordinal>`, of one with
// an index `<owner name>-<index>-<hash of the UID>-<ordinal>`; the owner's name is cut so
// that the whole fits [MaxName]. Owners of the same name and different UIDs have
// different children.
func Name(owner, uid string, c Child) string {
	tail := "-" + hash(uid) + "-" + strconv.FormatInt(c.Ordinal, 10)
	if c.Index != NoIndex {
		tail = "-" + strconv.Itoa(c.Index) + tail
	}
	if room := MaxName - len(tail); len(owner) > room {
		owner = owner[:room]
	}
	return strings.TrimRight(owner, "-.") + tail
}

// Parse is the child in a name given by [Name] for the same owner, whose children all
// have an index or all have none, and whether there is one.
func Parse(owner, uid, name string, indexed bool) (Child, bool) {
	rest, last := cutLast(name)
	n, err := strconv.ParseInt(last, 10, 64)
	if err != nil || n < 0 || n > MaxOrdinal {
		return Child{}, false
	}
	c := Child{Ordinal: n, Index: NoIndex}
	if indexed {
		rest, _ = cutLast(rest) // without the hash
		_, last = cutLast(rest)
		if c.Index, err = strconv.Atoi(last); err != nil || c.Index < 0 {
			return Child{}, false
		}
	}
	return c, Name(owner, uid, c) == name
}

func cutLast(name string) (before, last string) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return "", ""
	}
	return name[:i], name[i+1:]
}

func hash(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return hashing.EncodeToString(sum[:5])
}
