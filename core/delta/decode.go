package delta

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// decoder reads header values and keeps the first fault.
type decoder struct {
	h   map[string][]string
	err error
}

func (d *decoder) fail(name, what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s %q %s", ErrHeader, name, d.raw(name), what)
	}
}

func (d *decoder) raw(name string) string {
	if vs := d.h[name]; len(vs) > 0 {
		return vs[0]
	}
	return ""
}

func (d *decoder) text(name string) string {
	s, err := unescapeText(d.raw(name))
	if err != nil {
		d.fail(name, "holds an invalid escape")
	}
	return s
}

func (d *decoder) uint(name string, base int) uint64 {
	s := d.raw(name)
	if s == "" {
		return 0
	}
	v, err := strconv.ParseUint(s, base, 64)
	if err != nil {
		d.fail(name, "is not a number")
	}
	return v
}

func (d *decoder) rv(name string) RV {
	s := d.raw(name)
	if s == "" {
		return ""
	}
	v, err := ParseRV(s)
	if err != nil {
		d.fail(name, "is not a resource version")
	}
	return v
}

func (d *decoder) time(name string) time.Time {
	v := d.uint(name, 10)
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(v)).UTC()
}

func (d *decoder) typ() Type {
	s := d.raw(HeaderType)
	for t := Added; int(t) < len(typeNames); t++ {
		if typeNames[t] == s {
			return t
		}
	}
	d.fail(HeaderType, "is not a delta type")
	return 0
}

func (d *decoder) reason(t Type) DeleteReason {
	r := DeleteReason(d.raw(HeaderReason))
	known := r == Observed || r == Inferred || r == FilteredOut
	if known != (t == Deleted) {
		d.fail(HeaderReason, "does not fit the type")
	}
	return r
}

func (d *decoder) owners() []Owner {
	vs := d.h[HeaderOwner]
	if len(vs) == 0 {
		return nil
	}
	owners := make([]Owner, 0, len(vs))
	for _, v := range vs {
		parts := strings.Split(v, ",")
		if len(parts) != 3 && (len(parts) != 4 || parts[3] != "c") {
			d.fail(HeaderOwner, "is not kind,name,uid")
			return nil
		}
		for i := range 3 {
			s, err := unescapeText(parts[i])
			if err != nil {
				d.fail(HeaderOwner, "holds an invalid escape")
			}
			parts[i] = s
		}
		owners = append(owners, Owner{Kind: parts[0], Name: parts[1], UID: parts[2], Controller: len(parts) == 4})
	}
	return owners
}

func (d *decoder) pairs(name string) map[string][]string {
	vs := d.h[name]
	if len(vs) == 0 {
		return nil
	}
	m := make(map[string][]string, len(vs))
	for _, v := range vs {
		key, value, ok := strings.Cut(v, "=")
		key, err1 := unescapeText(key)
		value, err2 := unescapeText(value)
		if !ok || err1 != nil || err2 != nil {
			d.fail(name, "is not name=value")
			return nil
		}
		m[key] = append(m[key], value)
	}
	return m
}
