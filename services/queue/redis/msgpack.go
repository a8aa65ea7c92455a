package redis

import (
	"encoding/binary"
	"math"
)

// packer writes what cmsgpack reads.
type packer []byte

func (p *packer) array(n int) {
	switch {
	case n < 16:
		*p = append(*p, 0x90|byte(n))
	case n < 1<<16:
		*p = binary.BigEndian.AppendUint16(append(*p, 0xdc), uint16(n))
	default:
		*p = binary.BigEndian.AppendUint32(append(*p, 0xdd), uint32(n))
	}
}

func (p *packer) flag(b bool) {
	if b {
		*p = append(*p, 0xc3)
	} else {
		*p = append(*p, 0xc2)
	}
}

func (p *packer) num(n int64) {
	switch {
	case n >= 0 && n < 128:
		*p = append(*p, byte(n))
	case n >= 0 && n < 1<<16:
		*p = binary.BigEndian.AppendUint16(append(*p, 0xcd), uint16(n))
	default:
		*p = binary.BigEndian.AppendUint64(append(*p, 0xd3), uint64(n))
	}
}

func (p *packer) float(f float64) {
	*p = binary.BigEndian.AppendUint64(append(*p, 0xcb), math.Float64bits(f))
}

func (p *packer) head(n int) {
	switch {
	case n < 32:
		*p = append(*p, 0xa0|byte(n))
	case n < 1<<8:
		*p = append(*p, 0xd9, byte(n))
	case n < 1<<16:
		*p = binary.BigEndian.AppendUint16(append(*p, 0xda), uint16(n))
	default:
		*p = binary.BigEndian.AppendUint32(append(*p, 0xdb), uint32(n))
	}
}

func (p *packer) str(s string) {
	p.head(len(s))
	*p = append(*p, s...)
}

// id writes a number as its eight bytes, since not every one is a float.
func (p *packer) id(n uint64) {
	p.head(8)
	*p = binary.BigEndian.AppendUint64(*p, n)
}
