package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// End is where reading a file ended.
type End struct {
	At      int64 // behind the last whole record
	Size    int64 // of the file
	Damaged bool  // not torn: a whole record lies behind At, or none before
}

// Err is [ErrDamaged] with the place for a damaged file, nil for others.
func (e End) Err() error {
	if e.Damaged {
		return fmt.Errorf("byte %d of %d: %w", e.At, e.Size, ErrDamaged)
	}
	return nil
}

// Read calls apply with the body of every record, the oldest first, up to the
// first that is not whole. A body is the callee's own. Errors: [ErrFormat],
// what apply returns, with the place of the record, and those of the system.
func Read(path string, f Format, apply func(body []byte) error) (End, error) {
	file, err := os.Open(path)
	if err != nil {
		return End{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return End{}, err
	}
	end := End{Size: info.Size()}
	if err := f.begins(file); err != nil {
		return end, fmt.Errorf("%s: %w", path, err)
	}
	in := &io.LimitedReader{R: bufio.NewReaderSize(file, 1<<20), N: end.Size}
	for {
		body, err := f.read(in)
		if errors.Is(err, errNotWhole) {
			break
		}
		if err == nil {
			err = apply(body)
		}
		if err != nil {
			return end, fmt.Errorf("%s: record at byte %d: %w", path, end.At, err)
		}
		end.At = end.Size - in.N
	}
	switch end.At {
	case end.Size:
	case 0:
		end.Damaged = true // the first record was whole when the file got its name
	default:
		end.Damaged, err = f.follows(file, end.At+1, end.Size)
	}
	return end, err
}

// begins says with ErrFormat what a file begins with in place of a record.
func (f Format) begins(file *os.File) error {
	var first [formatLen]byte
	n, err := io.ReadFull(file, first[:])
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
	case err != nil:
		return err
	}
	if string(first[:n]) != string(f) {
		return fmt.Errorf("it begins with %q and not with %q: %w", first[:n], string(f), ErrFormat)
	}
	_, err = file.Seek(0, io.SeekStart)
	return err
}

var errNotWhole = errors.New("no whole record")

// read reads a record, or gives errNotWhole.
func (f Format) read(in *io.LimitedReader) ([]byte, error) {
	var head [headLen]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, ended(err)
	}
	n := f.length(head[:])
	if n == 0 || n > in.N {
		return nil, errNotWhole
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(in, body); err != nil {
		return nil, ended(err)
	}
	if !fits(head[:], body) {
		return nil, errNotWhole
	}
	return body, nil
}

func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errNotWhole
	}
	return err
}

// follows says whether a whole record begins at a place or behind it.
func (f Format) follows(file *os.File, from, size int64) (bool, error) {
	buf := make([]byte, 1<<20)
	for from+headLen <= size {
		n, err := file.ReadAt(buf, from)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		for at := 0; ; at++ {
			i := bytes.Index(buf[at:n], []byte(f))
			if i < 0 {
				break
			}
			at += i
			rest := size - from - int64(at)
			_, err := f.read(&io.LimitedReader{R: io.NewSectionReader(file, size-rest, rest), N: rest})
			if err == nil || !errors.Is(err, errNotWhole) {
				return err == nil, err
			}
		}
		if n < len(buf) {
			break
		}
		from += int64(n - formatLen + 1)
	}
	return false, nil
}
