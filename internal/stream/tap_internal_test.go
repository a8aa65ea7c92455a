package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// script is a connection that is sent some bytes, in pieces of any size.
type script struct {
	net.Conn
	rest   []byte
	random *rand.Rand
	most   int
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.rest[:min(len(s.rest), 1+s.random.IntN(s.most))])
	s.rest = s.rest[n:]
	return n, nil
}

// tapped reads a script through a tap as the library would. look is called now and then.
func tapped(t testing.TB, taps *taps, random *rand.Rand, sent []byte, look func()) []byte {
	t.Helper()
	conn, err := taps.wrap(&script{rest: sent, random: random, most: 1 + random.IntN(100_000)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	p := make([]byte, 1+random.IntN(32<<10))
	for {
		n, err := conn.Read(p)
		got = append(got, p[:n]...)
		look()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestATapTakesWhatIsForReadersAndNothingElse(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = "\r\nHMSG x 1 1 1\x00"[rand.IntN(15)]
	}
	for seed := range uint64(25) {
		random := rand.New(rand.NewPCG(seed, 1))
		taps, mine := newTaps(), newSink()
		taps.set(mine, "dp_read_1", "_INBOX.mine")
		type record struct{ subject, header, data string }
		var want, got []record
		var sent, others []byte
		statuses, sequence := 0, 0
		body := func(n int) string {
			at := random.IntN(len(noise) - n)
			return string(noise[at : at+n])
		}
		other := func(text string) { sent, others = append(sent, text...), append(others, text...) }
		other("INFO {\"server_id\":\"x\"}\r\n")
		for range 300 {
			headers, data := "NATS/1.0\r\nDp-Kind: delta\r\n\r\n", body(random.IntN(1<<random.IntN(17)))
			if random.IntN(100) == 0 {
				data = body(600_000) // more than a chunk
			}
			sizes := fmt.Sprintf("%d %d", len(headers), len(headers)+len(data))
			sequence++
			reply := fmt.Sprintf("$JS.ACK.s.dp_read_1.1.%d.%d.1795323233651000000.5", sequence, sequence)
			switch random.IntN(9) {
			case 0:
				other([]string{"PING\r\n", "PONG\r\n", "+OK\r\n", "-ERR 'x'\r\n"}[random.IntN(4)])
			case 1:
				other(fmt.Sprintf("MSG _INBOX.other 3 %d\r\n%s\r\n", len(data), data))
			case 2:
				other(fmt.Sprintf("HMSG d.a 3 %s %s\r\n%s%s\r\n", strings.Replace(reply, "dp_read_1", "dp_read_2", 1), sizes, headers, data))
			case 3:
				status := "NATS/1.0 409 Batch Completed\r\n\r\n"
				sent = fmt.Appendf(sent, "HMSG _INBOX.mine 4 %d %d\r\n%s\r\n", len(status), len(status), status)
				statuses++
			case 4:
				sent = fmt.Appendf(sent, "MSG d.a 4 %s %d\r\n%s\r\n", reply, len(data), data)
				want = append(want, record{"d.a", "", data})
			default:
				sent = fmt.Appendf(sent, "HMSG d.%d 4 %s %s\r\n%s%s\r\n", sequence, reply, sizes, headers, data)
				want = append(want, record{"d." + strconv.Itoa(sequence), headers, data})
			}
		}
		var held []message
		var done []message
		release := func(m message) {
			got = append(got, record{m.subject, m.header, string(m.data)})
			m.chunk.release()
		}
		passed := tapped(t, taps, random, sent, func() {
			done = mine.take(done)
			for _, m := range done {
				if m.status {
					if statuses--; m.fields.Get("Status") != "409" || m.fields.Get("Description") != "Batch Completed" {
						t.Errorf("seed %d: status %v", seed, m.fields)
					}
					continue
				}
				if size := len(m.subject) + len(m.header) + len(m.data); m.size <= size {
					t.Errorf("seed %d: %d bytes counted, there are %d and the reply", seed, m.size, size)
				}
				held = append(held, m)
			}
			for len(held) > 0 && random.IntN(3) > 0 { // whoever reads is slower at times
				release(held[0])
				held = held[1:]
			}
		})
		for _, m := range held {
			release(m)
		}
		if !bytes.Equal(passed, others) {
			t.Fatalf("seed %d: the library got %d bytes, want the %d that are its", seed, len(passed), len(others))
		}
		if !slices.Equal(got, want) || statuses != 0 {
			t.Fatalf("seed %d: the reader got %d records and lacks %d statuses, want the %d sent to it", seed, len(got), statuses, len(want))
		}
	}
}

func TestATapLeavesOtherProtocolsAlone(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{
		"tls after the introduction": "INFO {}\r\n\x16\x03\x03\x00\x7a\x02\nHMSG _INBOX.mine 1 2 2\r\nab\r\n",
		"tls first":                  "\x16\x03\x03\x00\x7a\x02\nMSG _INBOX.mine 1 2\r\nab\r\n",
		"websocket":                  "HTTP/1.1 101 Switching Protocols\r\n\r\nMSG _INBOX.mine 1 2\r\nab\r\n",
		"no sizes":                   "HMSG _INBOX.mine 1\r\nMSG _INBOX.mine 1 2\r\nab\r\n",
		"sizes that do not fit":      "HMSG _INBOX.mine 1 3 2\r\nab\r\n",
		"a size without an end":      "MSG _INBOX.mine 1 99999999999999999999\r\nab\r\n",
		"a line without an end":      "INFO " + strings.Repeat("x", 3*longestLine),
	} {
		taps := newTaps()
		taps.set(newSink(), "_INBOX.mine")
		if got := tapped(t, taps, rand.New(rand.NewPCG(1, 2)), []byte(sent), func() {}); string(got) != sent {
			t.Errorf("%s: the library got %q, want all of %q", name, got, sent)
		}
	}
}

// A tap must not wait for more of what it cannot be: with TLS the server says nothing until the library has answered.
func TestATapDoesNotWaitForTheEndOfForeignLines(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	conn, err := newTaps().wrap(ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, sent := range []string{"INFO {}\r\n", "\x16\x03\x03", "more"} {
		go func() { _, _ = theirs.Write([]byte(sent)) }()
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != sent {
			t.Fatalf("got %q, %v; want %q", got, err, sent)
		}
	}
}

func TestWhatReadersGetDoesNotPassThroughTheLibrary(t *testing.T) {
	t.Parallel()
	const records = 200
	server := embeddedtest.NATS(t)
	for name, cfg := range map[string]Config{"socket": {URL: server.URL()}, "in process": {Options: []nats.Option{server.InProcess()}}} {
		c, err := Connect(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		col := delta.Collection{Cluster: "dev", Version: "v1", Resource: strings.ReplaceAll(name, " ", "")}
		w, err := c.Writer(t.Context(), col, WriterConfig{Term: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for i := range records {
			r := delta.Record{Kind: delta.KindDelta, Key: delta.Key("k" + strconv.Itoa(i)), Type: delta.Added, RV: strconv.Itoa(i + 1), Payload: []byte("{}")}
			if err := w.Append(t.Context(), []delta.Record{r}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		before, read := c.nc.Stats().InMsgs, 0
		ctx, cancel := context.WithCancel(t.Context())
		err = c.Read(ctx, col, ReadConfig{}, func(_ context.Context, b delta.Batch) error {
			if read += len(b.Records); b.Replayed {
				cancel()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.nc.Stats().InMsgs - before; read < records || got > records/2 {
			t.Errorf("%s: %d records were read, and %d messages passed through the library", name, read, got)
		}
	}
}

func TestATapForgetsReadersThatHaveGone(t *testing.T) {
	t.Parallel()
	taps, mine := newTaps(), newSink()
	taps.set(mine, "dp_read_1")
	taps.set(nil, "dp_read_1")
	sent := "MSG d.a 4 $JS.ACK.s.dp_read_1.1.1.1.1.0 2\r\nab\r\n"
	if got := tapped(t, taps, rand.New(rand.NewPCG(1, 2)), []byte(sent), func() {}); string(got) != sent || len(mine.take(nil)) > 0 {
		t.Errorf("the library got %q, want all", got)
	}
}

// FuzzTap: without readers a tap changes nothing, with one it adds nothing, and it never panics.
func FuzzTap(f *testing.F) {
	f.Add([]byte("INFO {}\r\nHMSG a 1 $JS.ACK.s.dp_read_1.1.7.8.9.0 2 4\r\nabcd\r\nPING\r\nMSG a 1 1\r\nx\r\n"), uint64(1))
	f.Add([]byte("HMSG a 1 $JS.ACK.d.a.s.dp_read_1.1.7.8.9.0.t 2 4\r\nabcd\r\n-ERR\r\n"), uint64(2))
	f.Fuzz(func(t *testing.T, sent []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 3))
		if got := tapped(t, newTaps(), random, sent, func() {}); !bytes.HasPrefix(sent, got) {
			t.Errorf("the library got %q of %q", got, sent)
		}
		taps, mine := newTaps(), newSink()
		taps.set(mine, "dp_read_1", "a")
		n := len(tapped(t, taps, random, sent, func() {}))
		for _, m := range mine.take(nil) {
			n += len(m.header) + len(m.data)
		}
		if n > len(sent) {
			t.Errorf("%d bytes came of %q", n, sent)
		}
	})
}

// A slow reader's small messages must not each hold on to a whole piece of what was received: others' messages are between them.
func TestASlowReaderHoldsNotMuchMoreThanItsMessages(t *testing.T) {
	t.Parallel()
	const messages, between = 60, 300 << 10
	taps, slow, quick := newTaps(), newSink(), newSink()
	taps.set(slow, "dp_read_slow")
	taps.set(quick, "dp_read_quick")
	var sent []byte
	other := bytes.Repeat([]byte{'x'}, between)
	for i := range messages {
		data := fmt.Sprintf("%06d", i)
		sent = fmt.Appendf(sent, "MSG d.a 4 $JS.ACK.s.dp_read_slow.1.%d.%d.1.0 %d\r\n%s\r\n", i+1, i+1, len(data), data)
		sent = fmt.Appendf(sent, "MSG d.b 5 $JS.ACK.s.dp_read_quick.1.%d.%d.1.0 %d\r\n%s\r\n", i+1, i+1, between, other)
	}
	tapped(t, taps, rand.New(rand.NewPCG(1, 2)), sent, func() {
		for _, m := range quick.take(nil) {
			m.chunk.release()
		}
	})
	held, bytesHeld := map[*chunk]bool{}, 0
	for i, m := range slow.take(nil) {
		if string(m.data) != fmt.Sprintf("%06d", i) || m.at.sequence != uint64(i+1) {
			t.Fatalf("message %d is %q at %d", i, m.data, m.at.sequence)
		}
		if !held[m.chunk] {
			held[m.chunk] = true
			bytesHeld += len(m.chunk.buf)
		}
	}
	if bytesHeld > 4<<20 {
		t.Errorf("%d small messages hold %d MiB", messages, bytesHeld>>20)
	}
}

// What came for a reader that has gone is not held, whether it came before or is about to.
func TestAReaderThatHasGoneHoldsNothing(t *testing.T) {
	t.Parallel()
	s := newSink()
	c := newChunk(largeChunk)
	c.users.Add(2)
	s.put([]message{{chunk: c}, {status: true}})
	s.close()
	s.put([]message{{chunk: c}})
	if users := c.users.Load(); users != 1 || len(s.take(nil)) > 0 {
		t.Errorf("%d users, want the tap alone", users)
	}
}

type wire struct {
	net.Conn
	r io.Reader
}

func (w wire) Read(p []byte) (int, error) { return w.r.Read(p) }

func TestATapTakesTheSameWhereverReadsEnd(t *testing.T) {
	t.Parallel()
	const headers, status = "NATS/1.0\r\nA: b\r\n\r\n", "NATS/1.0 409 Batch Completed\r\n\r\n"
	ping, info, foreign := "PING\r\n", "INFO {}\r\n", "MSG _INBOX.other 3 6\r\nHMSG \r\r\n"
	record := fmt.Sprintf("HMSG d.a 4 $JS.ACK.s.dp_read_1.1.7.7.9.0 %d %d\r\n%sMSG \r\n\r\n", len(headers), len(headers)+6, headers)
	said := fmt.Sprintf("HMSG _INBOX.mine  4 %d %d\r\n%s\r\n", len(status), len(status), status)
	sent := info + record + ping + said + foreign + record + record + "PONG\r\n"
	want := info + ping + foreign + "PONG\r\n"
	cuts := map[string]io.Reader{"one byte at a time": iotest.OneByteReader(strings.NewReader(sent))}
	for i := range len(sent) + 1 {
		end := min(i+7, len(sent))
		cuts[fmt.Sprintf("cut at %d and %d", i, end)] = iotest.DataErrReader(
			io.MultiReader(strings.NewReader(sent[:i]), strings.NewReader(sent[i:end]), strings.NewReader(sent[end:])))
	}
	for name, r := range cuts {
		taps, mine := newTaps(), newSink()
		taps.set(mine, "dp_read_1", "_INBOX.mine")
		conn, err := taps.wrap(wire{r: r}, nil)
		if err != nil {
			t.Fatal(err)
		}
		passed, err := io.ReadAll(conn)
		if err != nil || string(passed) != want {
			t.Errorf("%s: the library got %q, %v; want %q", name, passed, err, want)
		}
		var got []string
		for _, m := range mine.take(nil) {
			got = append(got, fmt.Sprint(m.status, m.at.sequence, m.header, string(m.data), m.fields.Get("Status")))
		}
		one := fmt.Sprint(false, uint64(7), headers, "MSG \r\n", "")
		if !slices.Equal(got, []string{one, fmt.Sprint(true, uint64(0), "", "", "409"), one, one}) {
			t.Errorf("%s: the reader got %q", name, got)
		}
	}
}
