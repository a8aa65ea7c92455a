package stream

import (
	"bytes"
	"fmt"
	"time"
)

// operation kinds of the NATS protocol, as a server sends them.
type opKind int

const (
	opOther   opKind = iota // a line alone
	opMessage               // a line and a payload
	opHeaders               // a line, headers and a payload
)

var operations = []struct {
	name []byte
	kind opKind
}{
	{[]byte("HMSG "), opHeaders},
	{[]byte("MSG "), opMessage},
	{[]byte("PING"), opOther},
	{[]byte("PONG"), opOther},
	{[]byte("INFO "), opOther},
	{[]byte("+OK"), opOther},
	{[]byte("-ERR"), opOther},
}

// protocol tells which operation a line is; false when it is none. Of a line that is not whole it tells whether it may become one.
func protocol(line []byte, whole bool) (opKind, bool) {
	for _, op := range operations {
		if bytes.HasPrefix(line, op.name) || !whole && bytes.HasPrefix(op.name, line) {
			return op.kind, true
		}
	}
	return 0, false
}

// arguments are those of a message: subject sid [reply] [size of headers] size.
type arguments struct {
	subject, reply []byte
	headers, size  int
}

func parseArguments(line []byte, headers bool) (arguments, bool) {
	var fields [6][]byte
	n := 0
	for len(line) > 0 {
		word, rest := line, []byte(nil)
		if i := bytes.IndexByte(line, ' '); i >= 0 {
			word, rest = line[:i], line[i+1:]
		}
		if line = rest; len(word) == 0 {
			continue
		}
		if n == len(fields) {
			return arguments{}, false
		}
		fields[n] = word
		n++
	}
	sizes := 1
	if headers {
		sizes = 2
	}
	reply := n - 3 - sizes // beside the operation, the subject and the subscription
	if reply != 0 && reply != 1 {
		return arguments{}, false
	}
	a := arguments{subject: fields[1]}
	if reply == 1 {
		a.reply = fields[3]
	}
	size, ok := decimal(fields[n-1])
	if headers && ok {
		var h uint64
		h, ok = decimal(fields[n-2])
		if ok = ok && h <= size; ok {
			a.headers = int(h)
		}
	}
	if !ok || size > 1<<30 {
		return arguments{}, false
	}
	a.size = int(size)
	return a, true
}

// decimal reads a number of up to 19 digits.
func decimal[T string | []byte](s T) (n uint64, ok bool) {
	if len(s) == 0 || len(s) > 19 {
		return 0, false
	}
	for i := range len(s) {
		c := s[i] - '0'
		if c > 9 {
			return 0, false
		}
		n = n*10 + uint64(c)
	}
	return n, true
}

// place is where a message stands: in the log, in its consumer's deliveries, and when the log took it, by the log's clock.
type place struct {
	sequence, delivery uint64
	at                 time.Time
}

const (
	ackPrefix      = "$JS.ACK."
	headerPreamble = "NATS/1.0"
)

// acked reads a message's reply subject: $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<deliveries>.<sequence>.<delivery>.<ns>.<pending>[.<token>].
func acked[T string | []byte](reply T) (consumer T, at place, ok bool) {
	if len(reply) < len(ackPrefix) || string(reply[:len(ackPrefix)]) != ackPrefix {
		return consumer, place{}, false
	}
	var dots [10]int // behind each token
	n := 0
	for i := len(ackPrefix); i < len(reply) && n < len(dots); i++ {
		if reply[i] == '.' {
			dots[n] = i
			n++
		}
	}
	first := 0
	if n > 6 {
		first = 2
	}
	if n < first+6 {
		return consumer, place{}, false
	}
	token := func(i int) T { return reply[dots[first+i-1]+1 : dots[first+i]] }
	sequence, ok1 := decimal(token(3))
	delivery, ok2 := decimal(token(4))
	ns, ok3 := decimal(token(5))
	if !ok1 || !ok2 || !ok3 || sequence == 0 {
		return consumer, place{}, false
	}
	return token(1), place{sequence: sequence, delivery: delivery, at: time.Unix(0, int64(ns))}, true
}

// placeOf is the place that a reply subject tells.
func placeOf(reply string) (place, error) {
	_, at, ok := acked(reply)
	if !ok {
		return place{}, fmt.Errorf("reply subject %q says no place in a log", reply)
	}
	return at, nil
}
