package system

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

// podList writes pods to a file as items of a list, encoded as an API server
// encodes them for client-go.
type podList struct {
	file *os.File
	out  *bufio.Writer
	item []byte
}

func newPodList(path string) (*podList, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &podList{file: file, out: bufio.NewWriterSize(file, 1<<20)}, nil
}

func (l *podList) add(p *corev1.Pod) error {
	bare := *p
	bare.TypeMeta = metav1.TypeMeta{} // the items of a list have none
	text, err := bare.Marshal()
	if err != nil {
		return err
	}
	l.item = protowire.AppendBytes(protowire.AppendTag(l.item[:0], 2, protowire.BytesType), text)
	_, err = l.out.Write(l.item)
	return err
}

func (l *podList) close(rv string) error {
	meta, err := (&metav1.ListMeta{ResourceVersion: rv}).Marshal()
	if err != nil {
		return err
	}
	// A field may stand anywhere in a message, so the list's own comes last.
	_, err = l.out.Write(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), meta))
	return errors.Join(err, l.out.Flush(), l.file.Close())
}

// protobufMagic begins every protobuf document of Kubernetes.
const protobufMagic = "k8s\x00"

// APIServer is the servant that answers one list of pods from a file and holds
// watches open; for client-go it is an API server whose encoding costs nothing.
func APIServer(_ context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var path string
	if err := json.Unmarshal(raw, &path); err != nil {
		return nil, err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed by stop
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for prefix, streams := range map[string]bool{"": false, StreamingPrefix: true} {
		mux.HandleFunc(prefix+"/api/v1/pods", func(w http.ResponseWriter, r *http.Request) {
			if err := servePods(w, r, path, streams); err != nil {
				panic(http.ErrAbortHandler) // the client sees a cut answer
			}
		})
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(lis) }() // an API server that fails fails the client
	return &harness.Servant{Info: "http://" + lis.Addr().String(), Stop: srv.Close}, nil
}

// StreamingPrefix begins the paths of an API server that streams a list as
// initial events, as those since 1.34 do by default.
const StreamingPrefix = "/streaming"

func servePods(w http.ResponseWriter, r *http.Request, path string, streams bool) error {
	query := r.URL.Query()
	initial := query.Get("sendInitialEvents") != ""
	if initial && !streams {
		// An API server without the feature says this; client-go lists then.
		http.Error(w, "sendInitialEvents is forbidden", http.StatusUnprocessableEntity)
		return nil
	}
	if query.Get("watch") == "" {
		return serveList(w, path)
	}
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
	w.WriteHeader(http.StatusOK)
	if initial {
		if err := serveInitialEvents(w, path); err != nil {
			return err
		}
	}
	if err := http.NewResponseController(w).Flush(); err != nil {
		return err
	}
	<-r.Context().Done()
	return nil
}

func serveList(w http.ResponseWriter, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	head := appendEnvelope(nil, "PodList", int(info.Size()))
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
	w.Header().Set("Content-Length", strconv.FormatInt(int64(len(head))+info.Size(), 10))
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err = io.Copy(w, file)
	return err
}

// appendEnvelope appends what stands before the size bytes of an object: the
// magic, and the beginning of a runtime.Unknown with the type.
func appendEnvelope(dst []byte, kind string, size int) []byte {
	var meta []byte
	meta = protowire.AppendString(protowire.AppendTag(meta, 1, protowire.BytesType), "v1")
	meta = protowire.AppendString(protowire.AppendTag(meta, 2, protowire.BytesType), kind)
	dst = protowire.AppendBytes(protowire.AppendTag(append(dst, protobufMagic...), 1, protowire.BytesType), meta)
	return protowire.AppendVarint(protowire.AppendTag(dst, 2, protowire.BytesType), uint64(size))
}

// serveInitialEvents sends the items of the list one by one, then the bookmark
// that ends them.
func serveInitialEvents(w io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	in, out := bufio.NewReaderSize(file, 1<<20), bufio.NewWriterSize(w, 1<<18)
	var body, frame []byte
	for {
		tag, err := binary.ReadUvarint(in)
		if err != nil {
			return err
		}
		size, err := binary.ReadUvarint(in)
		if err != nil {
			return err
		}
		body = slices.Grow(body[:0], int(size))[:size]
		if _, err := io.ReadFull(in, body); err != nil {
			return err
		}
		kind := "ADDED"
		if number, _ := protowire.DecodeTag(tag); number == 1 {
			var meta metav1.ListMeta
			if err := meta.Unmarshal(body); err != nil {
				return err
			}
			kind = "BOOKMARK"
			end := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: meta.ResourceVersion, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			}}
			if body, err = end.Marshal(); err != nil {
				return err
			}
		}
		frame = appendEvent(frame[:0], kind, body)
		if _, err := out.Write(frame); err != nil {
			return err
		}
		if kind == "BOOKMARK" {
			return out.Flush()
		}
	}
}

// appendEvent appends a WatchEvent with its length before it.
func appendEvent(dst []byte, kind string, pod []byte) []byte {
	object := append(appendEnvelope(nil, "Pod", len(pod)), pod...)
	raw := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), object)
	event := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), kind)
	event = protowire.AppendBytes(protowire.AppendTag(event, 2, protowire.BytesType), raw)
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(event))), event...)
}
