package delta

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrHeader is wrapped by every error about headers that cannot be read as a record.
var ErrHeader = errors.New("delta: malformed record header")

// Header names. Numbers are decimal, times are Unix microseconds, hash, checksum and digest are
// hexadecimal; free text is escaped as in [EscapeToken] where it is split, so that every value is
// printable ASCII.
const (
	HeaderVersion   = "Dp-Version" // the least version that a reader must know
	HeaderKind      = "Dp-Kind"
	HeaderType      = "Dp-Type"
	HeaderKey       = "Dp-Key"
	HeaderUID       = "Dp-Uid"
	HeaderRV        = "Dp-Rv"
	HeaderEpoch     = "Dp-Epoch"
	HeaderTerm      = "Dp-Term"
	HeaderWatermark = "Dp-W"
	HeaderHash      = "Dp-Hash"
	HeaderChecksum  = "Dp-Crc"
	HeaderEncoding  = "Dp-Enc"
	HeaderSealed    = "Dp-Sealed" // the key that the payload is encrypted with
	HeaderGen       = "Dp-Gen"
	HeaderReason    = "Dp-Reason"
	HeaderOwner     = "Dp-Owner" // repeated: kind,name,uid[,c]
	HeaderHint      = "Dp-Hint"  // repeated: name=value
	HeaderLabel     = "Dp-Label" // repeated: name=value
	HeaderOverflow  = "Dp-Overflow"
	HeaderScope     = "Dp-Scope"
	HeaderNames     = "Dp-Names"   // repeated: one name
	HeaderDropped   = "Dp-Dropped" // repeated: one path
	HeaderAll       = "Dp-All"
	HeaderStart     = "Dp-Start"
	HeaderLive      = "Dp-Live"
	HeaderDigest    = "Dp-Digest"
	HeaderWriter    = "Dp-Writer"
	HeaderBuild     = "Dp-Build"
	HeaderSource    = "Dp-Source"
	HeaderNeeds     = "Dp-Needs"
	HeaderObserved  = "Dp-Obs"
	HeaderPublished = "Dp-Pub"
	HeaderTrace     = "traceparent"
)

// Header encodes everything of r but the payload, of which it adds the checksum unless there is
// one, and the collection, which the subject holds.
func (r *Record) Header() map[string][]string {
	// Room for what a writer adds, and one array for all values.
	f := fields{header: make(map[string][]string, 24), values: make([]string, 0, 20)}
	f.set(HeaderVersion, written(r.Kind))
	f.set(HeaderKind, r.Kind.String())
	f.set(HeaderEpoch, strconv.FormatUint(r.Epoch, 10))
	f.set(HeaderTerm, strconv.FormatUint(r.Term, 10))
	f.set(HeaderRV, r.RV)
	f.set(HeaderWatermark, r.Watermark)
	if r.Kind == KindDelta {
		f.set(HeaderType, r.Type.String())
		f.set(HeaderKey, escapeText(string(r.Key)))
		f.set(HeaderUID, escapeText(r.UID))
		f.set(HeaderEncoding, escapeText(r.Encoding))
		f.set(HeaderSealed, escapeText(r.Sealed))
		f.set(HeaderReason, string(r.DeleteReason))
		if r.Hash != 0 {
			f.set(HeaderHash, strconv.FormatUint(r.Hash, 16))
		}
		if sum := cmp.Or(r.Checksum, Checksum(r.Payload)); sum != 0 {
			f.set(HeaderChecksum, strconv.FormatUint(uint64(sum), 16))
		}
		if r.Generation != 0 {
			f.set(HeaderGen, strconv.FormatInt(r.Generation, 10))
		}
		f.marks(r)
	}
	f.set(HeaderScope, string(r.Scope))
	f.names(r)
	f.dropped(r)
	if r.All {
		f.set(HeaderAll, "1")
	}
	if r.Start != 0 {
		f.set(HeaderStart, strconv.FormatUint(r.Start, 10))
	}
	if r.Counted {
		f.set(HeaderLive, strconv.Itoa(r.Live))
	}
	if r.Digested {
		f.set(HeaderDigest, strconv.FormatUint(uint64(r.Digest), 16))
	}
	f.set(HeaderWriter, escapeText(r.Writer))
	f.set(HeaderBuild, escapeText(r.Build))
	f.set(HeaderSource, escapeText(r.Source))
	if r.Needs != 0 {
		f.set(HeaderNeeds, strconv.FormatUint(r.Needs, 10))
	}
	f.set(HeaderObserved, formatTime(r.ObservedAt))
	f.set(HeaderPublished, formatTime(r.PublishedAt))
	f.set(HeaderTrace, escapeText(r.Trace))
	f.add(r)
	return f.header
}

// fields is a header under way.
type fields struct {
	header map[string][]string
	values []string
}

func (f *fields) set(name, value string) {
	if value != "" {
		f.values = append(f.values, value)
		f.end(name, len(f.values)-1)
	}
}

// end makes the values from begin on those of one header.
func (f *fields) end(name string, begin int) {
	if begin < len(f.values) {
		f.header[name] = slices.Clip(f.values[begin:])
	}
}

func (f *fields) marks(r *Record) {
	begin := len(f.values)
	for i := range r.Owners {
		o := &r.Owners[i]
		v := escapeText(o.Kind) + "," + escapeText(o.Name) + "," + escapeText(o.UID)
		if o.Controller {
			v += ",c"
		}
		f.values = append(f.values, v)
	}
	f.end(HeaderOwner, begin)
	f.pairs(HeaderHint, r.Hints)
	f.pairs(HeaderLabel, r.Labels)
	if r.Overflow {
		f.set(HeaderOverflow, "1")
	}
}

func (f *fields) names(r *Record) {
	if len(r.Names) == 0 {
		return
	}
	begin := len(f.values)
	f.values = append(f.values, OtherNames(r.Collection.Resource, r.Names...)...)
	f.end(HeaderNames, begin)
}

func (f *fields) dropped(r *Record) {
	if r.Dropped == nil {
		return
	}
	begin := len(f.values)
	for _, path := range r.Dropped {
		f.values = append(f.values, escapeText(path))
	}
	if len(r.Dropped) == 0 {
		f.values = append(f.values, nothingDropped)
	}
	f.end(HeaderDropped, begin)
}

func (f *fields) pairs(header string, m map[string][]string) {
	if len(m) == 0 {
		return
	}
	begin := len(f.values)
	for _, name := range sortedKeys(m) {
		for _, v := range m[name] {
			f.values = append(f.values, escapeText(name)+"="+escapeText(v))
		}
	}
	f.end(header, begin)
}

// escapeText keeps a value printable and free of the separators used in headers.
func escapeText(s string) string {
	if strings.IndexFunc(s, textEscape) < 0 {
		return s
	}
	b := make([]byte, 0, len(s)+6)
	for i := range len(s) {
		if c := s[i]; c >= 0x80 || textEscape(rune(c)) {
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func textEscape(r rune) bool {
	return r <= ' ' || r >= 0x7f || r == '%' || r == ',' || r == '='
}

func unescapeText(s string) (string, error) {
	if strings.IndexByte(s, '%') < 0 {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("%w: %q ends inside an escape", ErrHeader, s)
		}
		hi, lo := strings.IndexByte(upperHex, s[i+1]), strings.IndexByte(upperHex, s[i+2])
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("%w: %q holds an invalid escape", ErrHeader, s)
		}
		b = append(b, byte(hi<<4|lo))
		i += 2
	}
	return string(b), nil
}

func formatTime(t time.Time) string {
	if t.IsZero() || t.UnixMicro() <= 0 {
		return ""
	}
	return strconv.FormatInt(t.UnixMicro(), 10)
}

func parseKind(s string) (Kind, error) {
	for k := KindDelta; int(k) < len(kindNames); k++ {
		if kindNames[k] == s {
			return k, nil
		}
	}
	if nextForm != "" && s == "progress" {
		return KindProgress, nil
	}
	return 0, &UnknownError{Part: PartKind, Value: s}
}
