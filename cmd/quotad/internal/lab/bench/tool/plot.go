package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/bench"
)

// colours are distinguishable without red-green vision (Okabe and Ito).
var colours = []color.Color{
	color.RGBA{0, 114, 178, 255},
	color.RGBA{86, 180, 233, 255},
	color.RGBA{213, 94, 0, 255},
	color.RGBA{230, 159, 0, 255},
	color.RGBA{0, 158, 115, 255},
	color.RGBA{204, 121, 167, 255},
}

func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.BackgroundColor = color.White
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(3)
	return p
}

// save writes a plot as SVG. Its margin leaves room for viewers whose font is wider than the one used for the layout.
func save(p *plot.Plot, width, height vg.Length, path string) error {
	const room = vg.Length(12)
	image := vgsvg.New(width, height)
	page := draw.New(image)
	page.SetColor(p.BackgroundColor)
	page.Fill(page.Path())
	p.Draw(draw.Crop(page, room, -room, room, -room))
	var text bytes.Buffer
	if _, err := image.WriteTo(&text); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o644) //nolint:gosec // a picture for everybody
}

// spread is medians with the extremes of the rounds.
type spread struct {
	plotter.XYs
	plotter.XErrors
}

// drawRates draws the rates of all works with a request per decision: one line of dots for each work, one colour for each
// system. It omits takes from leased batches: they are so many that the other dots would coincide.
func drawRates(r *bench.Results, path string) (drawn bool, err error) {
	works := slices.DeleteFunc(r.Works(), func(work string) bool { return work == bench.Leased256 || work == bench.Agents64 })
	if len(works) == 0 {
		return false, nil
	}
	slices.Reverse(works) // the first is on top
	p := newPlot("Durable decisions per second")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.X.Label.Text = "decisions/s (logarithmic)"
	p.NominalY(works...)
	for i, system := range systemNames(r) {
		var points spread
		for y, work := range works {
			if s, found := r.Summarize(system, work, 0); found {
				offset := 0.08 * (float64(len(r.Systems)-1)/2 - float64(i))
				points.XYs = append(points.XYs, plotter.XY{X: s.PerSecond, Y: float64(y) + offset})
				points.XErrors = append(points.XErrors, struct{ Low, High float64 }{s.PerSecond - s.Least, s.Most - s.PerSecond})
			}
		}
		if len(points.XYs) == 0 {
			continue
		}
		dots, err := plotter.NewScatter(points.XYs)
		if err != nil {
			return false, err
		}
		dots.Color, dots.Shape, dots.Radius = colours[i%len(colours)], draw.CircleGlyph{}, vg.Points(3)
		lines, err := plotter.NewXErrorBars(points)
		if err != nil {
			return false, err
		}
		lines.Color = colours[i%len(colours)]
		p.Add(dots, lines)
		drawn = true
		p.Legend.Add(system, dots)
	}
	if !drawn {
		return false, nil // a logarithmic scale without values has no range
	}
	p.Legend.Left, p.Legend.Top = true, false // that corner is empty: no system is that slow with many callers
	p.Legend.XOffs = vg.Points(24)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = p.X.Min/1.5, p.X.Max*1.5, -0.5, float64(len(works))-0.5
	return true, save(p, vg.Points(720), vg.Points(90+45*float64(len(works))), path)
}

// drawLatencies draws latencies by percentile, for calls that arrive at the same rate for every system.
func drawLatencies(r *bench.Results, path string) (drawn bool, err error) {
	const rate = 500
	p := newPlot(fmt.Sprintf("Latency at %d decisions/s, %s", rate, bench.Spread64))
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Label.Text = "ms (logarithmic)"
	p.X.Label.Text = "percentile"
	var ticks []plot.Tick
	for _, percent := range []float64{0, 50, 90, 99, 99.9, 99.99} {
		ticks = append(ticks, plot.Tick{Value: nines(percent), Label: fmt.Sprintf("%g", percent)})
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	for i, system := range systemNames(r) {
		s, found := r.Summarize(system, bench.Spread64, rate)
		if !found {
			continue
		}
		line, err := percentiles(s)
		if err != nil {
			return false, err
		}
		line.Color, line.Width = colours[i%len(colours)], vg.Points(1.5)
		p.Add(line)
		drawn = true
		p.Legend.Add(system, line)
	}
	p.Legend.Left = true
	if !drawn {
		return false, nil // a logarithmic scale without values has no range
	}
	return true, save(p, vg.Points(720), vg.Points(360), path)
}

// nines is the position of a percentile: each further nine takes the same width.
func nines(percent float64) float64 { return -math.Log10(1 - percent/100) }

// percentiles is the line of the latencies of all rounds together.
func percentiles(s bench.Summary) (*plotter.Line, error) {
	all := make([]bench.Latency, len(s.Runs))
	calls := int64(0)
	for i, run := range s.Runs {
		all[i] = run.Latency
		calls += run.Decisions / int64(run.Batch)
	}
	h, err := bench.Merge(all)
	if err != nil {
		return nil, err
	}
	var points plotter.XYs
	for percent := 1.0; percent < 100; percent += (100 - percent) / 20 {
		if (100-percent)/100*float64(calls) < 1 {
			break // fewer than one call lies above this percentile
		}
		points = append(points, plotter.XY{X: nines(percent), Y: max(float64(h.ValueAtQuantile(percent)), 1) / 1000})
	}
	return plotter.NewLine(points)
}
