package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"strings"

	"github.com/quotad/quotad/jepsen/check"
	"github.com/quotad/quotad/jepsen/history"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"picture": picture, "outages": Outages}).Parse(pageText))

// Write writes the page of a run into its folder and returns its path.
func Write(dir history.Dir, result *check.Result) (string, error) {
	path := filepath.Join(string(dir), "index.html")
	file, err := os.Create(path)
	if err != nil {
		return "", err
	}
	if err := page.Execute(file, result); err != nil {
		_ = file.Close()
		return "", err
	}
	return path, file.Close()
}

// The picture's dimensions, in its own units.
const (
	width        = 1200.0
	plotHeight   = 140.0
	lane, gutter = 14.0, 34.0
)

// drawing is an SVG under construction.
type drawing struct {
	strings.Builder
	// left is where time begins, right of the lanes' names. second is the width of a second; y is the current position.
	left   float64
	second float64
	y      float64
}

// leastLeft leaves room for the scales, nameWidth for a letter of a lane's name.
const leastLeft, nameWidth = 60.0, 6.2

// picture draws a run over time: answers and unknown outcomes, latency, leaders, faults.
func picture(r *check.Result) template.HTML {
	seconds := float64(len(r.Series.Answered))
	d := &drawing{left: leastLeft}
	kinds := map[string]int{}
	for _, fault := range r.Faults {
		if _, ok := kinds[fault.Kind]; !ok {
			kinds[fault.Kind] = len(kinds)
			d.left = max(d.left, nameWidth*float64(len(fault.Kind))+8)
		}
	}
	d.second = (width - d.left - 10) / max(seconds, 1)
	lanes := float64(len(kinds)) * lane
	height := 2*(plotHeight+gutter) + lane + gutter + lanes + 30
	fmt.Fprintf(d, `<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="the run over time">`, width, height)
	for _, fault := range r.Faults {
		d.band(fault, r.Facts.Began, height-30)
	}
	d.y = 10
	d.bars("calls a second (unknown in red)", r.Series.Answered, r.Series.Unknown)
	d.lines("latency, ms: median and p99", r.Series.P50, r.Series.P99)
	d.leaders(r.Series.Leaders, seconds)
	d.lanes(r, kinds)
	d.axis(seconds, height-16)
	d.WriteString(`</svg>`)
	return template.HTML(d.String()) //nolint:gosec // all text in it is escaped below
}

func (d *drawing) x(second float64) float64 { return d.left + second*d.second }

func (d *drawing) label(x, y float64, text string) {
	fmt.Fprintf(d, `<text x="%.1f" y="%.1f">%s</text>`, x, y, template.HTMLEscapeString(text))
}

// band shades the time of a fault over the plots.
func (d *drawing) band(fault *history.Fault, began int64, height float64) {
	from, to := float64(fault.Began-began)/1e9, float64(fault.Ended-began)/1e9
	fmt.Fprintf(d, `<rect class="band" x="%.1f" y="0" width="%.1f" height="%.1f"/>`, d.x(from), max((to-from)*d.second, 1), height)
}

func (d *drawing) bars(title string, good, bad []int) {
	top := 1
	for i := range good {
		top = max(top, good[i]+bad[i])
	}
	scale := plotHeight / float64(top)
	for i := range good {
		g, b := float64(good[i])*scale, float64(bad[i])*scale
		fmt.Fprintf(d, `<rect class="good" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, d.x(float64(i)), d.y+plotHeight-g,
			max(d.second*0.9, 0.5), g)
		fmt.Fprintf(d, `<rect class="bad" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, d.x(float64(i)), d.y+plotHeight-g-b,
			max(d.second*0.9, 0.5), b)
	}
	d.scale(title, float64(top))
}

func (d *drawing) lines(title string, series ...[]float64) {
	top := 1.0
	for _, values := range series {
		for _, v := range values {
			top = max(top, v)
		}
	}
	for n, values := range series {
		fmt.Fprintf(d, `<polyline class="line%d" points="`, n)
		for i, v := range values {
			fmt.Fprintf(d, "%.1f,%.1f ", d.x(float64(i)+0.5), d.y+plotHeight*(1-v/top))
		}
		d.WriteString(`"/>`)
	}
	d.scale(title, top)
}

// scale draws a plot's frame and moves below it.
func (d *drawing) scale(title string, top float64) {
	fmt.Fprintf(d, `<line class="frame" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, d.left, d.y+plotHeight, width-10, d.y+plotHeight)
	d.label(4, d.y+10, fmt.Sprintf("%.0f", top))
	d.label(4, d.y+plotHeight, "0")
	d.label(d.left, d.y+plotHeight+14, title)
	d.y += plotHeight + gutter
}

func (d *drawing) leaders(all []check.Leadership, seconds float64) {
	for i, l := range all {
		end := seconds
		if i+1 < len(all) {
			end = all[i+1].Second
		}
		host, _, _ := strings.Cut(l.Node, ".") // nodes that replaced each other have one colour
		fmt.Fprintf(d, `<rect class="leader l%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>term %d: %s</title></rect>`,
			template.HTMLEscapeString(strings.Map(digit, host)), d.x(l.Second), d.y, max((end-l.Second)*d.second, 1), lane, l.Term,
			template.HTMLEscapeString(l.Node))
	}
	d.label(d.left, d.y+lane+14, "leader (point at it for its term)")
	d.y += lane + gutter
}

// digit keeps the digit of a node's name, which selects its colour.
func digit(r rune) rune {
	if r >= '0' && r <= '9' {
		return r
	}
	return -1
}

func (d *drawing) lanes(r *check.Result, kinds map[string]int) {
	for kind, n := range kinds {
		d.label(2, d.y+float64(n)*lane+10, kind)
	}
	for _, fault := range r.Faults {
		from, to := float64(fault.Began-r.Facts.Began)/1e9, float64(fault.Ended-r.Facts.Began)/1e9
		fmt.Fprintf(d, `<rect class="fault" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>`, d.x(from),
			d.y+float64(kinds[fault.Kind])*lane+2, max((to-from)*d.second, 2), lane-4,
			template.HTMLEscapeString(fmt.Sprintf("%s %v, %.1f s: %s%s", fault.Kind, fault.Targets, to-from, fault.Confirmed, fault.Failed)))
	}
	d.y += float64(len(kinds)) * lane
}

func (d *drawing) axis(seconds, y float64) {
	step := 10.0
	for seconds/step > 20 {
		step *= 2
	}
	for at := 0.0; at <= seconds; at += step {
		fmt.Fprintf(d, `<line class="frame" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, d.x(at), y-8, d.x(at), y-4)
		d.label(d.x(at)-6, y+6, fmt.Sprintf("%.0f s", at))
	}
}
