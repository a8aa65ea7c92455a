package console

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
)

// most is how large a picture may be.
const most = 150_000

// TestPictures writes the pictures of docs/console into the folder that DELTAPLANE_CONSOLE_PICTURES
// names: make console-screenshots.
func TestPictures(t *testing.T) {
	dir := os.Getenv("DELTAPLANE_CONSOLE_PICTURES")
	if dir == "" {
		t.Skip("DELTAPLANE_CONSOLE_PICTURES is not set: make console-screenshots sets it")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, "queue", "configure", "shop/orders", "--max-retries", "5")
	for i := range 40 {
		after := []string{"0s", "40s", "9m", "2h"}[i%4]
		command(t, "queue", "add", "shop/orders", fmt.Sprintf("default/order-%04d", 1180+i*7), "--after", after)
	}
	w := open(t, shared.up.console)
	shot := func(name, address, shown string, width, height int64, scheme string) {
		t.Helper()
		w.screen(width, height, scheme)
		if address != "" {
			w.load(address)
		}
		w.wait(name+" shows what it is for", shown)
		whole, err := chromedp.Run(w.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		small := shrink(t, whole)
		if len(small) > most {
			t.Errorf("%s has %d bytes, more than %d", name, len(small), most)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), small, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const job = `{"metadata":{"name":"batch-%d"},"spec":{"parallelism":8,"completions":24,"template":{"metadata":{"annotations":{"deltaplane.io/run-seconds":"3"}},
"spec":{"restartPolicy":"Never","containers":[{"name":"main","image":"busybox"}]}}}}`
	w.load("flow")
	for i := range 3 {
		create(t, "/apis/batch/v1/namespaces/default/jobs", fmt.Sprintf(job, i))
	}
	w.wait("there is something to see", `performance.now() > 22_000`)
	create(t, "/apis/batch/v1/namespaces/default/jobs", fmt.Sprintf(job, 3))
	shot("flow", "", `performance.now() > 22_000 && row("dev/pods.v1") && !text(".stage").includes("0/s published")`, 1200, 640, "light")
	shot("collection", page("collections", "dev/pods.v1")+"?selector=job-name", `all(".vbody a").length > 15`, 1200, 560, "light")
	shot("object", page("collections", "dev/jobs.v1.batch", "default/batch-0"), `text(".yaml").includes("kind: Job")`, 1200, 640, "dark")
	shot("queue", page("queues", "shop/orders"), `all(".vbody a").length > 10`, 1200, 640, "light")
	shot("key", page("queues", "dev/job", "default/batch-0"), `text(".timeline").includes("now")`, 1200, 640, "dark")
	shot("nodes", "nodes?node=node-2", `text(".details").includes("Taints")`, 1200, 440, "light")
	w.load("traces")
	w.wait("the page says whether traces are kept", `one("[role=grid]") || text(".note").includes("no store of traces")`)
	if eval[bool](w, `Boolean(document.querySelector("[role=grid]"))`) {
		w.click("a trace with many spans", `all(".vbody [role=row]").sort((a, b) => Number(b.querySelector("[aria-colindex='4']").innerText) - Number(a.querySelector("[aria-colindex='4']").innerText))[0]?.querySelector("a")`)
		shot("trace", "", `all(".waterfall .bar").length > 0`, 1200, 520, "dark")
	}
	shot("narrow", page("queues", "shop/orders"), `all(".vbody a").length > 5`, 360, 640, "light")
}

// shrink makes a picture of the 256 colours that are most of one and differ: edges of letters have
// many more.
func shrink(t *testing.T, whole []byte) []byte {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	bounds := full.Bounds()
	count := map[color.RGBA]int{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[color.RGBAModel.Convert(full.At(x, y)).(color.RGBA)]++
		}
	}
	most := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return count[b] - count[a] })
	var colours color.Palette
	for _, c := range most {
		if len(colours) < 256 && !slices.ContainsFunc(colours, func(o color.Color) bool { return near(o.(color.RGBA), c) }) {
			colours = append(colours, c)
		}
	}
	few := image.NewPaletted(bounds, colours)
	draw.Draw(few, bounds, full, bounds.Min, draw.Src)
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, few); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func near(a, b color.RGBA) bool {
	apart := func(x, y uint8) int { return max(int(x), int(y)) - min(int(x), int(y)) }
	return apart(a.R, b.R)+apart(a.G, b.G)+apart(a.B, b.B) < 14
}
