// Command subjects checks the subjects of the commits since a given one: each is "area: verb and object", such as "fsm: skip waiters of
// exhausted quotas", of at most 72 characters.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: subjects SINCE")
		os.Exit(2)
	}
	problems, err := checkSince(os.Args[1])
	for _, problem := range problems {
		fmt.Println(problem)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "subjects:", err)
	}
	if err != nil || len(problems) > 0 {
		os.Exit(1)
	}
}

// checkSince returns a line for each commit after since with an invalid subject.
func checkSince(since string) ([]string, error) {
	if _, err := git("merge-base", "--is-ancestor", since, "HEAD"); err != nil {
		return nil, fmt.Errorf("%q is no ancestor of this commit; is the whole history here? %w", since, err)
	}
	log, err := git("log", "--no-merges", "--format=%h %s", since+"..HEAD")
	if err != nil {
		return nil, err
	}
	var problems []string
	for line := range strings.Lines(log) {
		commit, subject, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if reason := check(subject); reason != "" {
			problems = append(problems, fmt.Sprintf("%s %q: %s", commit, subject, reason))
		}
	}
	return problems, nil
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output() //nolint:noctx // git reads what is here, and ends
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, exit.Stderr)
	}
	return string(out), err
}

// longest is the most characters of a subject: lists of commits cut off the rest.
const longest = 72

var (
	// area is a folder or a topic, or several of them.
	area = regexp.MustCompile(`^[a-z][a-z0-9./_-]*(?:, [a-z][a-z0-9./_-]*)*$`)
	// inflected are forms of verbs other than the imperative, for the verbs that begin many subjects.
	inflected = regexp.MustCompile(`^(?:add|allow|build|bound|change|check|cut|document|drop|fix|hold|keep|let|make|measure|mend|move|name|` +
		`remove|rename|replace|say|show|split|take|tell|test|use|write)(?:s|es|ed|d|ing)$`)
)

// check says what is wrong with a subject; "": nothing.
func check(subject string) string {
	where, what, found := strings.Cut(subject, ": ")
	verb, _, _ := strings.Cut(what, " ")
	first, _ := utf8.DecodeRuneInString(what)
	switch {
	case !found || !area.MatchString(where):
		return `it does not begin with an area, as in "fsm: skip waiters of exhausted quotas"`
	case utf8.RuneCountInString(subject) > longest:
		return fmt.Sprintf("it has %d characters, %d are the most", utf8.RuneCountInString(subject), longest)
	case !unicode.IsLower(first):
		return "no verb in lower case follows the area"
	case verb == what:
		return "the verb has no object"
	case inflected.MatchString(verb):
		return fmt.Sprintf("%q is no imperative", verb)
	case strings.HasSuffix(subject, "."):
		return "it ends with a full stop"
	}
	return ""
}
