package delta

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// slot is a header's place in a decoder.
type slot int

const (
	slotVersion slot = iota
	slotKind
	slotType
	slotKey
	slotUID
	slotRV
	slotEpoch
	slotTerm
	slotWatermark
	slotHash
	slotChecksum
	slotEncoding
	slotSealed
	slotGen
	slotReason
	slotOverflow
	slotScope
	slotAll
	slotStart
	slotLive
	slotDigest
	slotWriter
	slotBuild
	slotSource
	slotNeeds
	slotObserved
	slotPublished
	slotTrace
	// Those that may be repeated.
	slotOwner
	slotHint
	slotLabel
	slotNamed
	slotDropped
	slots

	repeated = slotOwner
)

var slotNames = [slots]string{
	HeaderVersion, HeaderKind, HeaderType, HeaderKey, HeaderUID, HeaderRV, HeaderEpoch, HeaderTerm, HeaderWatermark, HeaderHash, HeaderChecksum,
	HeaderEncoding, HeaderSealed, HeaderGen, HeaderReason, HeaderOverflow, HeaderScope, HeaderAll, HeaderStart, HeaderLive, HeaderDigest, HeaderWriter, HeaderBuild, HeaderSource, HeaderNeeds, HeaderObserved, HeaderPublished, HeaderTrace, HeaderOwner, HeaderHint, HeaderLabel,
	HeaderNames, HeaderDropped,
}

// decoder reads header values and keeps the first fault.
type decoder struct {
	first [slots]string              // value of each header
	all   [slots - repeated][]string // values of those that may be repeated
	err   error
}

// fields takes the headers from a map.
func (d *decoder) fields(h map[string][]string) {
	for at, name := range slotNames {
		if vs := h[name]; len(vs) > 0 {
			d.first[at] = vs[0]
			if slot(at) >= repeated {
				d.all[slot(at)-repeated] = vs
			}
		}
	}
}

func (d *decoder) fail(at slot, what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s %q %s", ErrHeader, slotNames[at], d.first[at], what)
	}
}

func (d *decoder) text(at slot) string {
	s, err := unescapeText(d.first[at])
	if err != nil {
		d.fail(at, "holds an invalid escape")
	}
	return s
}

func (d *decoder) uint(at slot, base int) uint64 {
	s := d.first[at]
	if s == "" {
		return 0
	}
	v, err := strconv.ParseUint(s, base, 64)
	if err != nil {
		d.fail(at, "is not a number")
	}
	return v
}

func (d *decoder) rv(at slot) RV {
	s := d.first[at]
	if s == "" {
		return ""
	}
	v, err := ParseRV(s)
	if err != nil {
		d.fail(at, "is not a resource version")
	}
	return v
}

func (d *decoder) time(at slot) time.Time {
	v := d.uint(at, 10)
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(v)).UTC()
}

func (d *decoder) typ() Type {
	s := d.first[slotType]
	for t := Added; int(t) < len(typeNames); t++ {
		if typeNames[t] == s {
			return t
		}
	}
	if d.err == nil && s != "" {
		d.err = &UnknownError{Part: PartType, Value: strings.Clone(s)}
	}
	d.fail(slotType, "is missing")
	return 0
}

func (d *decoder) reason(t Type) DeleteReason {
	r := DeleteReason(d.first[slotReason])
	if nextForm != "" && r == nextObserved {
		r = Observed
	}
	if (r != "") != (t == Deleted) {
		d.fail(slotReason, "does not fit the type")
	}
	return r
}

// encoding refuses one that no reader of this build could take for what it is.
func (d *decoder) encoding() string {
	switch s := d.text(slotEncoding); s {
	case "", EncodingJSON, EncodingUnreadable, EncodingSealed:
		return s
	default:
		if d.err == nil {
			d.err = &UnknownError{Part: PartEncoding, Value: strings.Clone(s)}
		}
		return ""
	}
}

// version looks whether this build may read the record at all.
func (d *decoder) version() {
	v := d.uint(slotVersion, 10)
	switch {
	case d.err != nil:
	case v == 0:
		d.fail(slotVersion, "is not a version")
	default:
		d.err = Needs(v)
	}
}

// scope leaves out one of a later version.
func (d *decoder) scope() Scope {
	switch Scope(d.first[slotScope]) {
	case Namespaced:
		return Namespaced // not the header's text, which is part of the message
	case ClusterScoped:
		return ClusterScoped
	}
	return ""
}

// dropped keeps no more paths than a spec may have.
func (d *decoder) dropped() []string {
	vs := d.all[slotDropped-repeated]
	if len(vs) == 0 {
		return nil
	}
	paths := make([]string, 0, min(len(vs), maxDroppedPaths))
	for _, v := range vs[:min(len(vs), maxDroppedPaths)] {
		path, err := unescapeText(v)
		if err != nil {
			d.fail(slotDropped, err.Error())
		}
		if path != nothingDropped {
			paths = append(paths, path)
		}
	}
	return paths
}

func (d *decoder) owners() []Owner {
	vs := d.all[slotOwner-repeated]
	if len(vs) == 0 {
		return nil
	}
	owners := make([]Owner, 0, len(vs))
	for _, v := range vs {
		parts := strings.Split(v, ",")
		if len(parts) != 3 && (len(parts) != 4 || parts[3] != "c") {
			d.fail(slotOwner, "is not kind,name,uid")
			return nil
		}
		for i := range 3 {
			s, err := unescapeText(parts[i])
			if err != nil {
				d.fail(slotOwner, "holds an invalid escape")
			}
			parts[i] = s
		}
		owners = append(owners, Owner{Kind: parts[0], Name: parts[1], UID: parts[2], Controller: len(parts) == 4})
	}
	return owners
}

func (d *decoder) pairs(at slot) map[string][]string {
	vs := d.all[at-repeated]
	if len(vs) == 0 {
		return nil
	}
	m := make(map[string][]string, len(vs))
	for _, v := range vs {
		key, value, ok := strings.Cut(v, "=")
		key, err1 := unescapeText(key)
		value, err2 := unescapeText(value)
		if !ok || err1 != nil || err2 != nil {
			d.fail(at, "is not name=value")
			return nil
		}
		m[key] = append(m[key], value)
	}
	return m
}
