package plan

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
	"github.com/quotad/quotad/cmd/quotad/internal/strictyaml"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Runs are two runs of one seed, and their failed expectations.
type Runs struct {
	Seed     uint64      `json:"seed"`
	Alone    *sim.Result `json:"alone"`
	Governed *sim.Result `json:"quotad"`
	Wrong    []string    `json:"wrong,omitempty"`
}

// Report is the output of `quotad plan`.
type Report struct {
	Title string `json:"title"`
	Paper *Paper `json:"paper"`
	Runs  []Runs `json:"runs"`
	// Fits are the changes that would make the fleet fit; empty: it fits.
	Fits []Fit `json:"fits,omitempty"`
}

// Write prints a report for people. Of several seeds it shows the first, and then the worst of all.
func (r *Report) Write(w io.Writer) error {
	fmt.Fprintf(w, "%s\n\nOn paper\n", r.Title)
	if err := r.writePaper(w); err != nil {
		return err
	}
	for _, problem := range r.Paper.names() {
		fmt.Fprintf(w, "! %s\n", problem)
	}
	if len(r.Runs) == 0 {
		r.writeFits(w)
		return nil
	}
	first := r.Runs[0]
	fmt.Fprintf(w, "\nIn virtual time: %s, seed %d\n", shortDuration(max(first.Alone.Length, first.Governed.Length)), first.Seed)
	if err := writeSides(w, first.Alone, first.Governed); err != nil {
		return err
	}
	if len(r.Runs) > 1 {
		worst := worstOf(r.Runs)
		fmt.Fprintf(w, "\nWorst of %d seeds\n", len(r.Runs))
		if err := writeSides(w, worst.Alone, worst.Governed); err != nil {
			return err
		}
	}
	for _, run := range r.Runs {
		for _, wrong := range run.Wrong {
			fmt.Fprintf(w, "! seed %d: %s\n", run.Seed, wrong)
		}
	}
	r.writeFits(w)
	return nil
}

// writeFits prints the changes that would make the fleet fit.
func (r *Report) writeFits(w io.Writer) {
	if len(r.Fits) > 0 {
		fmt.Fprintln(w, "\nTo make it fit")
	}
	for _, fit := range r.Fits {
		fmt.Fprintf(w, "- %s\n", fit)
	}
}

func (r *Report) writePaper(w io.Writer) error {
	table := output.Table{Header: []string{
		"QUOTA", "RULE", "USABLE", "MEAN", "PEAK", "VERDICT", "CLASS", "SHARE", "WANTS", "GETS", "WORST WAIT",
	}}
	for i := range r.Paper.Quotas {
		q := &r.Paper.Quotas[i]
		verdict := string(q.Verdict)
		if q.Binds {
			verdict += ", binds"
		}
		first := []string{q.Quota, q.Rule, output.Int(q.Usable), amountText(q.Mean), output.Int(q.Peak), verdict}
		for j := range q.Classes {
			c := &q.Classes[j]
			if c.Mean == 0 {
				continue
			}
			table.Add(append(first, c.Class, shareText(c.Share), amountText(c.Mean), amountText(c.Gets), worstText(c))...)
			first = []string{"", "", "", "", "", ""}
		}
	}
	return table.Write(w)
}

func worstText(c *PaperClass) string {
	if c.WorstWait >= 0 {
		return shortDuration(c.WorstWait)
	}
	if c.Ages {
		return "ages"
	}
	return "no bound"
}

func shareText(part float64) string {
	if part == 0 {
		return output.Dash
	}
	return fmt.Sprintf("%.0f %%", part*100)
}

func amountText(v float64) string { return shortNumber(v) }

// writeSides prints two runs side by side.
func writeSides(w io.Writer, alone, governed *sim.Result) error {
	table := output.Table{Header: []string{"", "ALONE", "THROUGH QUOTAD"}}
	add := func(name string, value func(*sim.Result) string) { table.Add(name, value(alone), value(governed)) }
	add("refused by the provider", func(r *sim.Result) string { return output.Int(r.Refused) })
	if alone.Outage+governed.Outage > 0 {
		add("refused by an outage", func(r *sim.Result) string { return output.Int(r.Outage) })
	}
	add("retries", func(r *sim.Result) string { return percent(r.Retries, r.Attempts) })
	add("calls served", func(r *sim.Result) string { return output.Int(r.Served) })
	add("calls given up", func(r *sim.Result) string { return output.Int(r.GivenUp) })
	addGivenUp(add, alone, governed)
	add("tasks missed", func(r *sim.Result) string { return output.Int(r.Missed) })
	if alone.Finish > 0 || governed.Finish > 0 {
		add("finished after", func(r *sim.Result) string { return finishedText(r.Finish) })
	}
	addWork(add, alone, governed)
	for i := range governed.Quotas {
		add("peak of "+governed.Quotas[i].Quota, func(r *sim.Result) string {
			return fmt.Sprintf("%d of %d", r.Quotas[i].Peak, r.Quotas[i].Limit)
		})
		if governed.Quotas[i].Measured+alone.Quotas[i].Measured > 0 {
			add("  of the ideal, in demand", func(r *sim.Result) string { return useText(&r.Quotas[i]) })
		}
	}
	for i := range governed.Classes {
		if governed.Classes[i].Calls == 0 {
			continue
		}
		add(governed.Classes[i].Class+": wait p50 / p99", func(r *sim.Result) string {
			return waitText(r.Classes[i].P50) + " / " + waitText(r.Classes[i].P99)
		})
		add("  longest, fairness", func(r *sim.Result) string {
			return fmt.Sprintf("%s, %.2f", waitText(r.Classes[i].Longest), r.Classes[i].Fairness)
		})
	}
	return table.Write(w)
}

// addGivenUp splits cancelled calls by class, if there are several classes.
func addGivenUp(add func(string, func(*sim.Result) string), alone, governed *sim.Result) {
	called := 0
	for i := range governed.Classes {
		if governed.Classes[i].Calls > 0 {
			called++
		}
	}
	if called < 2 || alone.GivenUp+governed.GivenUp == 0 {
		return
	}
	for i := range governed.Classes {
		if governed.Classes[i].Calls > 0 {
			add("  of them "+governed.Classes[i].Class, func(r *sim.Result) string { return output.Int(r.Classes[i].GivenUp) })
		}
	}
}

// addWork adds the results of tasks with retry budgets, and of workflows.
func addWork(add func(string, func(*sim.Result) string), alone, governed *sim.Result) {
	if len(alone.Tasks)+len(governed.Tasks) > 0 {
		add("tasks done, shelved, open", func(r *sim.Result) string {
			return fmt.Sprintf("%d, %d, %d", tasksIn(r, sim.PhaseDone), tasksIn(r, sim.PhaseShelved), tasksIn(r, sim.PhaseOpen))
		})
		add("  attempts, of one at most", func(r *sim.Result) string { return fmt.Sprintf("%d, %d", allAttempts(r), mostAttempts(r)) })
	}
	for i := range governed.Quotas {
		if quota := governed.Quotas[i].Quota; alone.Burnt(quota)+governed.Burnt(quota) > 0 {
			add("  burnt of "+quota, func(r *sim.Result) string { return output.Int(r.Burnt(quota)) })
		}
	}
	for i := range governed.Workflows {
		w := &governed.Workflows[i]
		add("workflow "+w.Workflow, func(r *sim.Result) string {
			if r != governed {
				return output.Dash
			}
			return fmt.Sprintf("%d kept back, %d times one at a time, for %s", w.KeptBack, w.Sequential, waitText(w.InSequence))
		})
	}
}

func percent(part, whole int64) string {
	if whole == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%.1f %%)", part, 100*float64(part)/float64(whole))
}

func useText(q *sim.QuotaResult) string {
	if q.Measured == 0 {
		return output.Dash
	}
	return fmt.Sprintf("%.1f %%", 100*q.Utilisation)
}

func finishedText(d time.Duration) string {
	if d == 0 {
		return "not all"
	}
	return waitText(d)
}

// waitText formats a wait.
func waitText(d time.Duration) string {
	switch {
	case d >= 100*time.Second:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	if d == 0 {
		return "0"
	}
	return strictyaml.FormatDuration(d)
}

// worstOf returns the worst value of all seeds for each figure.
func worstOf(all []Runs) Runs {
	worst := Runs{
		Alone:    worstSide(all, func(r *Runs) *sim.Result { return r.Alone }),
		Governed: worstSide(all, func(r *Runs) *sim.Result { return r.Governed }),
	}
	return worst
}

func worstSide(all []Runs, side func(*Runs) *sim.Result) *sim.Result {
	w := *side(&all[0])
	w.Quotas = append([]sim.QuotaResult(nil), w.Quotas...)
	w.Classes = append([]sim.ClassResult(nil), w.Classes...)
	// Tasks and workflows are not figures: no seed has the worst of them (taskTable and workflowTable show theirs).
	w.Tasks, w.Workflows = nil, nil
	unfinished := w.Finish == 0
	for i := range all[1:] {
		r := side(&all[i+1])
		unfinished = unfinished || r.Finish == 0
		if float64(r.Retries)*float64(w.Attempts) > float64(w.Retries)*float64(r.Attempts) {
			w.Retries, w.Attempts = r.Retries, r.Attempts
		}
		w.Refused, w.Outage = max(w.Refused, r.Refused), max(w.Outage, r.Outage)
		w.Served, w.GivenUp, w.Missed = min(w.Served, r.Served), max(w.GivenUp, r.GivenUp), max(w.Missed, r.Missed)
		w.Finish, w.Reclaimed = max(w.Finish, r.Finish), max(w.Reclaimed, r.Reclaimed)
		w.StaleFences, w.Late = min(w.StaleFences, r.StaleFences), max(w.Late, r.Late)
		for j := range w.Quotas {
			mine, other := &w.Quotas[j], &r.Quotas[j]
			mine.Peak, mine.Refused = max(mine.Peak, other.Peak), max(mine.Refused, other.Refused)
			if mine.Measured == 0 || other.Measured > 0 && other.Utilisation < mine.Utilisation {
				mine.Utilisation, mine.Measured = other.Utilisation, other.Measured
			}
		}
		for j := range w.Classes {
			mine, other := &w.Classes[j], &r.Classes[j]
			mine.GivenUp = max(mine.GivenUp, other.GivenUp)
			mine.P50, mine.P99, mine.Longest = max(mine.P50, other.P50), max(mine.P99, other.P99), max(mine.Longest, other.Longest)
			mine.Fairness = min(mine.Fairness, other.Fairness)
		}
	}
	if unfinished {
		w.Finish = 0
	}
	return &w
}

func join(words []string) string { return strings.Join(words, ", ") }

// ruleText describes a quota's rule in a few words.
func ruleText(q *quotav1.Quota) string {
	switch rule := q.Rule.(type) {
	case *quotav1.Quota_Window:
		every := rule.Window.Every
		if length, err := strictyaml.ParseDuration(every); err == nil {
			every = strictyaml.FormatDuration(length)
		}
		return fmt.Sprintf("%d per %s", rule.Window.Limit, every)
	case *quotav1.Quota_Rate:
		text := fmt.Sprintf("%d in any %s", rule.Rate.Limit, strictyaml.FormatDuration(rule.Rate.Per.AsDuration()))
		if rule.Rate.Burst > 0 {
			text += fmt.Sprintf(", burst %d", rule.Rate.Burst)
		}
		return text
	case *quotav1.Quota_Slots:
		return fmt.Sprintf("%d at once", rule.Slots.Limit)
	}
	return ""
}
