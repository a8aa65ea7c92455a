package delta

import (
	"cmp"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// entry is what a shadow holds of one key, in 80 bytes. Numbers and UUIDs are the rule; what is
// neither is kept as text beside it.
type entry struct {
	rv      uint64
	hash    uint64
	epoch   uint64
	deleted int64 // Unix nanoseconds; 0 while it lives
	more    *more
	uid     [16]byte
	marks   [4]ref // those it has now, when more holds none
	round   uint32 // the last list that held it
	count   uint8  // of marks
	form    form
}

// form says how an entry's resource version and UID are written.
type form uint8

const (
	numberRV form = 1 << iota
	textRV
	uuid
	textUID
	// doubtful: what is held did not reach the log.
	doubtful
	// absent: nor did any record of the key before it, as far as it lives.
	absent
)

// more is what few entries have.
type more struct {
	rv, uid  string
	overflow int64 // when marks were dropped
	// marks are all of the entry's, when they are too many for it or some are of the past.
	marks []held
}

func (e *entry) dead() bool { return e.deleted != 0 }

// extra returns e.more, which it makes when there is none.
func (e *entry) extra() *more {
	if e.more == nil {
		e.more = &more{}
	}
	return e.more
}

func (e *entry) overflowed(now time.Time) { e.extra().overflow = instant(now) }

// instant is now as a number that is not 0.
func instant(now time.Time) int64 { return cmp.Or(now.UnixNano(), 1) }

// compare orders (epoch, rv) against what is held: +1 when it is newer.
func (e *entry) compare(epoch uint64, rv RV) int {
	if c := cmp.Compare(epoch, e.epoch); c != 0 {
		return c
	}
	n, isNumber := number(rv)
	switch {
	case isNumber && e.form&numberRV != 0:
		return cmp.Compare(n, e.rv)
	case e.form&textRV != 0:
		return Compare(rv, e.more.rv)
	case rv == "" || e.form&numberRV == 0:
		return cmp.Compare(min(len(rv), 1), int(e.form&numberRV)) // none is before every other
	}
	return 1 // longer than every number
}

func (e *entry) set(epoch uint64, rv RV, uid string, hash uint64) {
	e.epoch, e.hash, e.form, e.rv = epoch, hash, 0, 0
	if e.more != nil {
		e.more.rv, e.more.uid = "", ""
	}
	if n, ok := number(rv); ok {
		e.rv, e.form = n, numberRV
	} else if rv != "" {
		e.extra().rv, e.form = strings.Clone(rv), textRV
	}
	if e.form |= uuid; !parseUUID(&e.uid, uid) {
		e.form &^= uuid
		if uid != "" {
			e.extra().uid = strings.Clone(uid)
			e.form |= textUID
		}
	}
}

// rvText is the version held; empty when none is.
func (e *entry) rvText() RV {
	switch {
	case e.form&numberRV != 0:
		return strconv.FormatUint(e.rv, 10)
	case e.form&textRV != 0:
		return e.more.rv
	}
	return ""
}

// part is what the entry adds to the digest of what lives.
func (e *entry) part(key Key) Digest {
	switch {
	case e.dead():
		return 0
	case e.form&numberRV != 0:
		return DigestOfNumber(string(key), e.rv)
	}
	return DigestOf(string(key), e.rvText())
}

// birth is what a record that says the key lives adds to the number of those that do.
func (e *entry) birth() int8 {
	if e.dead() || e.form&absent != 0 {
		return 1
	}
	return 0
}

// holds reports whether the log holds a content of that hash.
func (e *entry) holds(hash uint64) bool { return e.hash == hash && e.form&doubtful == 0 }

func (e *entry) uidText() string {
	switch {
	case e.form&uuid != 0:
		return formatUUID(&e.uid)
	case e.form&textUID != 0:
		return e.more.uid
	}
	return ""
}

// number reads a resource version that fits 64 bits for certain.
func number(rv RV) (uint64, bool) {
	if rv = trimZeros(rv[:max(len(rv)-1, 0)]) + rv[max(len(rv)-1, 0):]; rv == "" || len(rv) > 19 {
		return 0, false
	}
	n := uint64(0)
	for i := range len(rv) {
		c := rv[i] - '0'
		if c > 9 {
			return 0, false
		}
		n = n*10 + uint64(c)
	}
	return n, true
}

// parseUUID reads the one form that [formatUUID] writes.
func parseUUID(out *[16]byte, s string) bool {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return false
	}
	at := 0
	for i := 0; i < len(s); i += 2 {
		if s[i] == '-' {
			i++
		}
		hi, lo := nibble(s[i]), nibble(s[i+1])
		if hi > 15 || lo > 15 {
			return false
		}
		out[at] = hi<<4 | lo
		at++
	}
	return true
}

func nibble(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

func formatUUID(u *[16]byte) string {
	var b [36]byte
	at := 0
	for i, part := range [...][]byte{u[:4], u[4:6], u[6:8], u[8:10], u[10:]} {
		if i > 0 {
			b[at] = '-'
			at++
		}
		at += hex.Encode(b[at:], part)
	}
	return string(b[:])
}
