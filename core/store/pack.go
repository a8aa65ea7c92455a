package store

import "strconv"

const (
	uidLen    = 36
	hexDigits = "0123456789abcdef"
)

// packUID packs a UID of the usual form: 36 bytes in lower case, not all
// zeros. "" is packed as zeros.
func packUID(s string) (uid [16]byte, ok bool) {
	if s == "" {
		return uid, true
	}
	if len(s) != uidLen || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return uid, false
	}
	at := 0
	for i := range uid {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			at++ // the dash
		}
		hi, lo := unhex(s[at]), unhex(s[at+1])
		if hi|lo > 15 {
			return [16]byte{}, false
		}
		uid[i] = hi<<4 | lo
		at += 2
	}
	return uid, uid != [16]byte{}
}

func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

// uidAt is where the digits of each byte of a UID stand.
var uidAt = [16]uint8{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34}

func appendUID(dst []byte, uid *[16]byte) []byte {
	at := len(dst)
	dst = append(dst, "00000000-0000-0000-0000-000000000000"...)
	text := (*[uidLen]byte)(dst[at:])
	for i, b := range uid {
		text[uidAt[i]], text[uidAt[i]+1] = hexDigits[b>>4], hexDigits[b&15]
	}
	return dst
}

// packRV packs a resource version that a number gives back as it is. "" is
// packed as zero.
func packRV(s string) (rv uint64, ok bool) {
	if s == "" {
		return 0, true
	}
	if s[0] < '1' || s[0] > '9' {
		return 0, false
	}
	rv, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, false
	}
	return rv, true
}
