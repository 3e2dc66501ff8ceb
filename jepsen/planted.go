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
	cmd := &cobra.Command{
		Use: "planted [NAME...]", Short: "Build quotad with known defects and see that each is caught by the checker that must",
		RunE: func(cmd *cobra.Command, names []string) error {
			all, err := planted.All()
			if err != nil {
				return err
			}
			missed := 0
			for _, defect := range all {
				if len(names) > 0 && !slices.Contains(names, defect.Name) {
					continue
				}
				caught, err := catch(cmd.Context(), cmd.OutOrStdout(), defect, root, folder, tries)
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
	cmd.Flags().StringVar(&root, "root", ".", "the module's folder")
	cmd.Flags().StringVar(&folder, "dir", "bin/planted", "where the builds and runs go")
	cmd.Flags().IntVar(&tries, "tries", 3, "how many runs a defect may take")
	return cmd
}

// catch builds a defect and runs it until a checker that must catch it does, at most so many times.
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

// failedChecks reads which checkers failed from a run's line in the summary.
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
