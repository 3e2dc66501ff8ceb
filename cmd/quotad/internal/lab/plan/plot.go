package plan

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/fsm/logpb"
)

// Sizes of a plot, in its own units.
const (
	plotWidth               = 860.0
	panelHeight             = 170.0
	zoneHeight              = 10.0
	marginLeft, marginRight = 70.0, 20.0
	marginTop, panelGap     = 78.0, 74.0
	mostPanels              = 3
)

// style defines the colours; those of the dark scheme are brighter. The plot draws its own background, so that the viewer's
// does not matter.
const style = `<style>
.paper{fill:#ffffff}.ink{fill:#1f2328}.soft{fill:#59636e}.axis{stroke:#59636e;stroke-width:1}.grid{stroke:#d1d9e0;stroke-width:.6}
.limit{stroke:#1f2328;stroke-width:1.4;stroke-dasharray:6 4;fill:none}
.alone{stroke:#d55e00;stroke-width:1.3;fill:none}.quotad{stroke:#0072b2;stroke-width:1.8;fill:none}
.critical{stroke:#0072b2;fill:none;stroke-width:1.8}.standard{stroke:#009e73;fill:none;stroke-width:1.8}` +
	`.background{stroke:#aa4499;fill:none;stroke-width:1.8}
.dash{stroke-dasharray:3 3;stroke-width:1.2}
.green{fill:#2da44e}.amber{fill:#e3a008}.red{fill:#cf222e}
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:12px}` +
	`.title{font-size:15px;font-weight:600}.small{font-size:11px}
@media (prefers-color-scheme:dark){.paper{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9198a1}.axis{stroke:#9198a1}.grid{stroke:#30363d}
.limit{stroke:#e6edf3}.alone{stroke:#ff8c42}.quotad{stroke:#58b4ff}.critical{stroke:#58b4ff}.standard{stroke:#3fcf9b}` +
	`.background{stroke:#e58ad8}}
</style>
`

// Plot draws two runs of one seed: the amount that each limit's period saw, with the limit and the zone below it, and the
// waits of calls of each class. It draws at most three limits, the closest to being reached.
func Plot(w io.Writer, f *fleet.Fleet, alone, governed *sim.Result) error {
	quotas := nearest(governed, mostPanels)
	height := marginTop + float64(len(quotas)+1)*(panelHeight+panelGap)
	d := &drawing{}
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img">`+"\n",
		plotWidth, height, plotWidth, height)
	d.add("<title>%s</title>\n", html.EscapeString(title(f)))
	d.WriteString(style)
	d.add(`<rect class="paper" width="%.0f" height="%.0f"/>`+"\n", plotWidth, height)
	d.text(marginLeft, 24, "title ink", "start", title(f))
	d.legend(marginLeft, 44, []mark{
		{"limit", "limit"},
		{"alone", "alone (" + refusals(alone) + ")"},
		{"quotad", "through quotad (" + refusals(governed) + ")"},
	})
	top := marginTop
	for _, i := range quotas {
		d.quota(top, f.For, &alone.Quotas[i], &governed.Quotas[i])
		top += panelHeight + panelGap
	}
	d.waits(top, f, alone, governed)
	d.WriteString("</svg>\n")
	_, err := io.WriteString(w, d.String())
	return err
}

// refusals describes the refusals of a side.
func refusals(r *sim.Result) string {
	if r.Outage == 0 {
		return fmt.Sprintf("%d refused", r.Refused)
	}
	return fmt.Sprintf("%d refused, and %d by an outage", r.Refused, r.Outage)
}

func title(f *fleet.Fleet) string {
	if f.Title == "" {
		return "a fleet of agents"
	}
	return f.Title
}

// nearest returns the quotas nearest to their limits, in the file's order.
func nearest(r *sim.Result, most int) []int {
	order := make([]int, len(r.Quotas))
	for i := range order {
		order[i] = i
	}
	near := func(i int) float64 { return float64(r.Quotas[i].Peak) / math.Max(float64(r.Quotas[i].Limit), 1) }
	slices.SortStableFunc(order, func(a, b int) int {
		switch x, y := near(a), near(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	order = order[:min(most, len(order))]
	slices.Sort(order)
	return order
}

// drawing is an SVG under construction.
type drawing struct{ strings.Builder }

func (d *drawing) add(format string, values ...any) { fmt.Fprintf(d, format, values...) }

func (d *drawing) text(x, y float64, class, anchor, words string) {
	d.add(`<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", class, x, y, anchor, html.EscapeString(words))
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	d.add(`<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

// mark is a line of the legend: its class and its meaning.
type mark struct{ class, words string }

func (d *drawing) legend(x, y float64, marks []mark) {
	for _, m := range marks {
		d.line(m.class, x, y-4, x+24, y-4)
		d.text(x+30, y, "ink small", "start", m.words)
		x += 48 + 6.3*float64(len(m.words))
	}
}

// frame draws a panel's axes and its texts.
func (d *drawing) frame(top float64, heading, below string) (left, right, bottom float64) {
	left, right, bottom = marginLeft, plotWidth-marginRight, top+panelHeight
	d.text(left, top-8, "ink", "start", heading)
	d.line("axis", left, bottom, right, bottom)
	d.line("axis", left, top, left, bottom)
	d.text((left+right)/2, bottom+44, "soft small", "middle", below)
	return left, right, bottom
}

// quota draws the amounts that a limit's period saw on both sides.
func (d *drawing) quota(top float64, length time.Duration, alone, governed *sim.QuotaResult) {
	what := "in any " + strictyaml.FormatDuration(alone.Period)
	switch alone.Kind {
	case "calendar window", "anchored window":
		what = "since the window began"
	case "slots":
		what = "at once"
	}
	heading := fmt.Sprintf("%s: amount sent %s, refused or not; limit %d, peak alone %d, through quotad %d",
		alone.Quota, what, alone.Limit, alone.Peak, governed.Peak)
	left, right, bottom := d.frame(top, heading, "time since the start")
	// Values far above the limit would leave no room for the rest: they are cut off at the top.
	most := max(alone.Limit, slices.Max(governed.Peaks), min(slices.Max(alone.Peaks), 2*alone.Limit))
	scale := niceCeil(float64(most))
	y := func(v float64) float64 { return bottom - math.Min(v/scale, 1)*panelHeight }
	for part := range 5 {
		v := scale * float64(part) / 4
		d.line("grid", left, y(v), right, y(v))
		d.text(left-6, y(v)+4, "soft small", "end", shortNumber(v))
	}
	step := niceStep(length)
	for at := time.Duration(0); at <= length; at += step {
		d.text(left+(right-left)*float64(at)/float64(length), bottom+16+zoneHeight, "soft small", "middle", shortDuration(at))
	}
	d.zones(left, right, bottom+2, governed.Zones)
	d.curve("alone", left, right, alone.Peaks, y)
	d.curve("quotad", left, right, governed.Peaks, y)
	d.line("limit", left, y(float64(alone.Limit)), right, y(float64(alone.Limit)))
}

// curve draws a series over the whole width.
func (d *drawing) curve(class string, left, right float64, values []int64, y func(float64) float64) {
	d.add(`<polyline class="%s" points="`, class)
	for i, v := range values {
		d.add("%.1f,%.1f ", left+(right-left)*(float64(i)+0.5)/float64(len(values)), y(float64(v)))
	}
	d.add(`"/>` + "\n")
}

// zones draws a strip with the zone over time; nothing if there are no zones.
func (d *drawing) zones(left, right, top float64, zones []logpb.Zone) {
	colours := map[logpb.Zone]string{logpb.Zone_ZONE_GREEN: "green", logpb.Zone_ZONE_AMBER: "amber", logpb.Zone_ZONE_RED: "red"}
	width := (right - left) / float64(len(zones))
	for from := 0; from < len(zones); {
		to := from + 1
		for to < len(zones) && zones[to] == zones[from] {
			to++
		}
		if colour, ok := colours[zones[from]]; ok {
			d.add(`<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>zone %s</title></rect>`+"\n",
				colour, left+width*float64(from), top, width*float64(to-from), zoneHeight-4, colour)
		}
		from = to
	}
}

// waits draws, for each class, the fraction of its calls that waited no longer than a time.
func (d *drawing) waits(top float64, f *fleet.Fleet, alone, governed *sim.Result) {
	heading, binding := "part of the calls that waited no longer than", ""
	if f.Expect != nil && f.Expect.Binding != "" {
		binding = f.Expect.Binding
		heading = "part of the calls on " + binding + " that waited no longer than"
	}
	kinds := f.Draws(binding)
	aloneClasses, classes := alone.ClassesOf(kinds), governed.ClassesOf(kinds)
	left, right, bottom := d.frame(top, heading, "wait, from the wish to the call (logarithmic); dotted: alone")
	least, most := 10*time.Millisecond, time.Minute
	for i := range classes {
		most = max(most, classes[i].Longest, aloneClasses[i].Longest)
	}
	span := math.Log(float64(most) / float64(least))
	x := func(wait int64) float64 {
		return left + (right-left)*math.Max(math.Log(math.Max(float64(wait), 1)/float64(least)), 0)/span
	}
	for _, tick := range []time.Duration{
		10 * time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 10 * time.Hour,
		100 * time.Hour,
	} {
		if tick <= most {
			d.line("grid", x(int64(tick)), top, x(int64(tick)), bottom)
			d.text(x(int64(tick)), bottom+16, "soft small", "middle", shortDuration(tick))
		}
	}
	y := func(part float64) float64 { return bottom - part*panelHeight }
	for _, part := range []float64{0, 0.25, 0.5, 0.75, 1} {
		d.line("grid", left, y(part), right, y(part))
		d.text(left-6, y(part)+4, "soft small", "end", fmt.Sprintf("%.0f %%", part*100))
	}
	var marks []mark
	for i := range classes {
		if class := classes[i].Class; classes[i].Calls > 0 {
			marks = append(marks, mark{class, class})
			d.quantiles(class+" dash", aloneClasses[i].Waits, x, y)
			d.quantiles(class, classes[i].Waits, x, y)
		}
	}
	d.legend(right-330, top-8, marks)
}

// quantiles draws the distribution of sorted waits.
func (d *drawing) quantiles(class string, waits []int64, x func(int64) float64, y func(float64) float64) {
	if len(waits) == 0 {
		return
	}
	d.add(`<polyline class="%s" points="`, class)
	const points = 200
	for i := range points + 1 {
		part := float64(i) / points
		at := min(int(part*float64(len(waits)-1)+0.5), len(waits)-1)
		d.add("%.1f,%.1f ", x(waits[at]), y(part))
	}
	d.add(`"/>` + "\n")
}

// niceCeil rounds up to a number that four grid lines divide well.
func niceCeil(v float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(math.Max(v, 1))))
	for _, m := range []float64{1, 2, 4, 6, 8, 10} {
		if m*step >= v {
			return math.Max(m*step, 4)
		}
	}
	return 10 * step
}

// niceStep divides a duration into at most eight steps of a familiar length.
func niceStep(length time.Duration) time.Duration {
	for _, step := range []time.Duration{
		100 * time.Millisecond, time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute,
		10 * time.Minute, 15 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour,
		24 * time.Hour,
		7 * 24 * time.Hour, 30 * 24 * time.Hour,
	} {
		if length <= 8*step {
			return step
		}
	}
	return length / 4
}

func shortNumber(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%gM", math.Round(v/1e5)/10)
	case v >= 1e4:
		return fmt.Sprintf("%gk", math.Round(v/100)/10)
	}
	return fmt.Sprintf("%g", math.Round(v*100)/100)
}

// shortDuration formats a duration with at most two units.
func shortDuration(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d >= 48*time.Hour:
		d = d.Round(time.Hour)
	case d >= time.Hour:
		d = d.Round(time.Minute)
	case d >= time.Minute:
		d = d.Round(time.Second)
	default:
		d = d.Round(time.Millisecond)
	}
	return strictyaml.FormatDuration(d)
}
