package delta

import (
	"errors"
	"fmt"
	"math"
)

// DecodeRecord reads a record from its subject, headers and body; the body becomes the payload of a
// delta without being copied. Sequence stays 0. Errors wrap [ErrSubject] or [ErrHeader] and name
// the header; that of a record of a later build wraps an [UnknownError].
func DecodeRecord(subject string, h map[string][]string, body []byte) (Record, error) {
	c, kind, key, err := ParseSubject(subject)
	var d decoder
	d.fields(h)
	return d.record(subject, c, kind, key, body, err)
}

// record makes a record of headers; fault is what is wrong with its subject.
func (d *decoder) record(subject string, c Collection, kind Kind, key Key, body []byte, fault error) (Record, error) {
	_, unknown := errors.AsType[*UnknownError](fault)
	if fault != nil && !unknown {
		return Record{}, fault
	}
	if d.version(); d.err != nil { // the other headers may mean something else then
		return Record{}, fmt.Errorf("%w (subject %q)", d.err, subject)
	}
	if unknown {
		return Record{}, fault
	}
	r := Record{Kind: kind, Collection: c, Key: key}
	if k, err := parseKind(d.text(slotKind)); err != nil || k != kind {
		d.fail(slotKind, "does not match the subject")
	}
	r.Epoch, r.Term = d.uint(slotEpoch, 10), d.uint(slotTerm, 10)
	r.RV, r.Watermark = d.rv(slotRV), d.rv(slotWatermark)
	if kind == KindDelta {
		if d.text(slotKey) != string(key) {
			d.fail(slotKey, "does not match the subject")
		}
		r.Type = d.typ()
		r.UID, r.Encoding, r.Sealed = d.text(slotUID), d.encoding(), d.text(slotSealed)
		r.DeleteReason = d.reason(r.Type)
		r.Hash = d.uint(slotHash, 16)
		if sum := d.uint(slotChecksum, 16); sum <= math.MaxUint32 {
			r.Checksum = uint32(sum)
		} else {
			d.fail(slotChecksum, "has more than 32 bits")
		}
		r.Generation = int64(d.uint(slotGen, 10))
		r.Owners = d.owners()
		r.Hints, r.Labels = d.pairs(slotHint), d.pairs(slotLabel)
		r.Overflow = d.first[slotOverflow] != ""
		if len(body) > 0 {
			r.Payload = body
		}
		if r.RV == "" {
			d.fail(slotRV, "is missing")
		}
	}
	r.Scope, r.Names = d.scope(), OtherNames(c.Resource, d.all[slotNamed-repeated]...)
	r.Dropped, r.All = d.dropped(), d.first[slotAll] != ""
	r.Start, r.Writer = d.uint(slotStart, 10), d.text(slotWriter)
	r.Build, r.Source, r.Needs = d.text(slotBuild), d.text(slotSource), d.uint(slotNeeds, 10)
	if r.Counted = d.first[slotLive] != ""; r.Counted {
		r.Live = int(d.uint(slotLive, 10))
	}
	if r.Digested = d.first[slotDigest] != ""; r.Digested {
		r.Digest = Digest(d.uint(slotDigest, 16))
	}
	r.ObservedAt, r.PublishedAt = d.time(slotObserved), d.time(slotPublished)
	r.Trace = d.text(slotTrace)
	if d.err != nil {
		return Record{}, fmt.Errorf("%w (subject %q)", d.err, subject)
	}
	return r, nil
}
