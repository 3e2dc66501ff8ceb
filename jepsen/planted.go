package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quotad/quotad/jepsen/check"
	"github.com/quotad/quotad/jepsen/planted"
	"github.com/quotad/quotad/jepsen/report"
)

func plantedCommand() *cobra.Command {
	var root, folder string
	var tries int
	var simulated, tested bool
	cmd := &cobra.Command{
		Use: "planted [NAME...]", Short: "Build quotad with known defects and check that the named checkers or tests catch each",
		RunE: func(cmd *cobra.Command, names []string) error {
			all, err := planted.All()
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(defect planted.Defect) bool {
				return simulated && defect.Seeds == 0 || tested && defect.Tests == ""
			})
			for _, name := range names {
				if !slices.ContainsFunc(all, func(defect planted.Defect) bool { return defect.Name == name }) {
					return fmt.Errorf("no planted defect of this kind has the name %q; jepsen/planted/defects has them", name)
				}
			}
			missed := 0
			for _, defect := range all {
				if len(names) > 0 && !slices.Contains(names, defect.Name) {
					continue
				}
				var caught bool
				switch {
				case defect.Tests != "":
					caught, err = catchByTests(cmd.Context(), cmd.OutOrStdout(), defect, root, folder)
				case simulated || defect.Mix == "":
					caught, err = catchSimulated(cmd.Context(), cmd.OutOrStdout(), defect, root, folder)
				default:
					caught, err = catch(cmd.Context(), cmd.OutOrStdout(), defect, root, folder, tries)
				}
				if err != nil {
					return err
				}
				if !caught {
					missed++
				}
			}
			if missed > 0 {
				return fmt.Errorf("%w: %d planted defects were not caught", errFailed, missed)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", ".", "folder of the module")
	cmd.Flags().StringVar(&folder, "dir", "bin/planted", "folder for builds and runs")
	cmd.Flags().IntVar(&tries, "tries", 3, "largest number of runs for a defect")
	cmd.Flags().BoolVar(&simulated, "sim", false, "run only defects that the simulation shows, in the simulation")
	cmd.Flags().BoolVar(&tested, "tests", false, "run only defects that quick tests show, with these tests")
	cmd.MarkFlagsMutuallyExclusive("sim", "tests")
	return cmd
}

// catchByTests runs the quick tests that must catch a defect. Each must fail: a test that passes does not test what its name says.
func catchByTests(ctx context.Context, out io.Writer, defect planted.Defect, root, folder string) (bool, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return false, err
	}
	if folder, err = filepath.Abs(filepath.Join(folder, defect.Name)); err != nil {
		return false, err
	}
	began := time.Now()
	failed, err := defect.RunTests(ctx, root, folder)
	if err != nil {
		return false, err
	}
	for _, test := range defect.Caught {
		if !slices.Contains(failed, test) {
			_, _ = fmt.Fprintf(out, "%-28s not caught by %s\n", defect.Name, test)
			return false, nil
		}
	}
	_, _ = fmt.Fprintf(out, "%-28s caught by %s (%.0f s)\n", defect.Name, strings.Join(failed, ", "), time.Since(began).Seconds())
	return true, nil
}

// catch builds a defect and runs it until a checker that must catch it fails, at most tries times.
func catch(ctx context.Context, out io.Writer, defect planted.Defect, root, folder string, tries int) (bool, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return false, err
	}
	if folder, err = filepath.Abs(filepath.Join(folder, defect.Name)); err != nil {
		return false, err
	}
	quotad, suite, err := defect.Build(ctx, root, folder)
	if err != nil {
		return false, err
	}
	began := time.Now()
	for try := 1; try <= tries; try++ {
		summary := filepath.Join(folder, fmt.Sprintf("summary-%d.jsonl", try))
		_ = os.Remove(summary) // of an earlier run
		args := []string{
			"run", "--binary", quotad, "--mix", defect.Mix, "--time", defect.Length.String(), "--seed", fmt.Sprint(try),
			"--dir", filepath.Join(folder, "runs"), "--summary", summary, "--defect", defect.Name,
		}
		run := exec.CommandContext(ctx, suite, append(args, defect.Flags...)...)
		output, runErr := run.CombinedOutput()
		failed, err := failedChecks(summary)
		if err != nil {
			return false, fmt.Errorf("%s: %w (%w)\n%s", defect.Name, err, runErr, output)
		}
		if defect.Catches(failed) {
			_, _ = fmt.Fprintf(out, "%-28s caught by %s (run %d, %.0f s; must be one of %s)\n", defect.Name, strings.Join(failed, ", "), try,
				time.Since(began).Seconds(), strings.Join(defect.Caught, ", "))
			return true, nil
		}
		_, _ = fmt.Fprintf(out, "%-28s not caught by run %d (%v)\n", defect.Name, try, failed)
	}
	return false, nil
}

// failedBy matches the simulation's line for a failed seed.
var failedBy = regexp.MustCompile(`seed (\d+) failed by ([a-z, -]+):`)

// catchSimulated builds the simulation with a defect and runs seeds until one fails.
func catchSimulated(ctx context.Context, out io.Writer, defect planted.Defect, root, folder string) (bool, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return false, err
	}
	if folder, err = filepath.Abs(filepath.Join(folder, defect.Name)); err != nil {
		return false, err
	}
	test, err := defect.BuildSimulation(ctx, root, folder)
	if err != nil {
		return false, err
	}
	began := time.Now()
	run := exec.CommandContext(ctx, test, "-test.run", "TestSeeds", "-test.failfast", "-test.timeout", "1h")
	run.Env = append(os.Environ(), fmt.Sprintf("QUOTAD_SIM_SEEDS=%d", defect.Seeds), "QUOTAD_SEED=1")
	output, runErr := run.CombinedOutput()
	found := failedBy.FindSubmatch(output)
	if found == nil && runErr != nil {
		return false, fmt.Errorf("%s: %w\n%s", defect.Name, runErr, output)
	}
	if found == nil {
		_, _ = fmt.Fprintf(out, "%-28s not caught by %d seeds\n", defect.Name, defect.Seeds)
		return false, nil
	}
	failed := strings.Split(string(found[2]), ", ")
	word := "caught"
	if !defect.Catches(failed) {
		word = "not caught, but failed"
	}
	_, _ = fmt.Fprintf(out, "%-28s %s by %s (seed %s, %.0f s; must be one of %s)\n", defect.Name, word, found[2], found[1],
		time.Since(began).Seconds(), strings.Join(defect.Caught, ", "))
	return defect.Catches(failed), nil
}

// failedChecks reads the failed checkers from a run's line in the summary.
func failedChecks(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	data, err := bufio.NewReader(file).ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	var line report.Line
	if err := json.Unmarshal(data, &line); err != nil {
		return nil, err
	}
	var failed []string
	for checker, outcome := range line.Checks {
		if outcome == check.Fail {
			failed = append(failed, checker)
		}
	}
	slices.Sort(failed)
	return failed, nil
}
