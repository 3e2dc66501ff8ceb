package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "driver" {
		if err := serveDriver(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "conformance driver:", err)
			os.Exit(1)
		}
		return
	}
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// command tests the client whose driver the arguments name.
func command(args []string) error {
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	list := flags.Bool("list", false, "list the cases, their rules and where the documentation has them")
	only := flags.String("case", "", "run one case only")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: conformance [-list] [-case NAME] [DRIVER ARGUMENT...]")
		fmt.Fprintln(flags.Output(), "\nTests a client of quotad by its driver; without one, the Go client.")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen := cases()
	if *only != "" {
		chosen = slices.DeleteFunc(chosen, func(c testCase) bool { return c.name != *only })
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no case is named %q; -list lists them", *only)
	}
	if *list {
		for _, c := range chosen {
			fmt.Fprintf(os.Stdout, "%s\n  %s\n  %s\n", c.name, c.rule, c.source)
		}
		return nil
	}
	program := flags.Args()
	if len(program) == 0 {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		program = []string{self, "driver"}
	}
	return runAll(chosen, program)
}

// runAll runs cases and prints the result of each.
func runAll(chosen []testCase, program []string) error {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	k, err := newKit(dir)
	if err != nil {
		return err
	}
	defer k.close()
	failed := 0
	for _, c := range chosen {
		if err := k.run(c, program); err != nil {
			failed++
			fmt.Fprintf(os.Stdout, "FAIL  %s\n      rule:   %s\n      source: %s\n      %v\n", c.name, c.rule, c.source, err)
			continue
		}
		fmt.Fprintf(os.Stdout, "ok    %s\n", c.name)
	}
	if failed > 0 {
		return fmt.Errorf("failed: %d of %d cases", failed, len(chosen))
	}
	return nil
}
