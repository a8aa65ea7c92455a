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

var hashing = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Name is the name of a child: `<owner name>-<hash of the UID>-<ordinal>`, the
// owner's name cut so that the whole fits [MaxName]. Owners of the same name and
// different UIDs have different children.
func Name(owner, uid string, ordinal int64) string {
	tail := "-" + hash(uid) + "-" + strconv.FormatInt(ordinal, 10)
	if room := MaxName - len(tail); len(owner) > room {
		owner = owner[:room]
	}
	return strings.TrimRight(owner, "-.") + tail
}

// Ordinal is the ordinal in a name given by [Name] for the same owner, and
// whether there is one.
func Ordinal(owner, uid, name string) (int64, bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(name[i+1:], 10, 64)
	if err != nil || n < 0 || n > MaxOrdinal || Name(owner, uid, n) != name {
		return 0, false
	}
	return n, true
}

func hash(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return hashing.EncodeToString(sum[:5])
}
