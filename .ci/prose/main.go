// Command prose checks English text: Markdown files below the working directory, comments and string literals (help, errors, log lines,
// settings) of Go code, YAML files, JSON schemas, comments of .proto files, and the help of the Makefile. It enforces the rules of
// docs/style.md that a program can check: the phrases of that page's table, the words of its table of identifiers in the names that Go code
// declares and, in Markdown, the length of lines.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// stylePage has the table of phrases, between tableHead and tableTail.
	stylePage = "docs/style.md"
	tableHead = "<!-- phrases -->"
	tableTail = "<!-- end of phrases -->"
	// namesHead and namesTail enclose the page's table of words that no declared identifier has as a part.
	namesHead = "<!-- identifiers -->"
	namesTail = "<!-- end of identifiers -->"
	// widest is the most characters of a Markdown line. Tables, code and links may be longer: they cannot be broken.
	widest = 120
)

func main() {
	problems, err := check(os.DirFS("."))
	for _, problem := range problems {
		fmt.Println(problem)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
	}
	if err != nil || len(problems) > 0 {
		os.Exit(1)
	}
}

// phrase is a forbidden phrase and its replacement.
type phrase struct {
	text    string
	instead string
	pattern *regexp.Regexp
}

// check returns a line for each violation of a rule.
func check(root fs.FS) ([]string, error) {
	style, err := fs.ReadFile(root, stylePage)
	if err != nil {
		return nil, err
	}
	phrases, err := readTable(string(style), tableHead, tableTail)
	if err != nil {
		return nil, err
	}
	words, err := readTable(string(style), namesHead, namesTail)
	if err != nil {
		return nil, err
	}
	forbidden := map[string]string{}
	for _, w := range words {
		forbidden[w.text] = w.instead
	}
	unchecked, err := readUnchecked(root)
	if err != nil {
		return nil, err
	}
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(unchecked)) {
		if _, err := fs.Stat(root, name); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %s is not there: remove the line", uncheckedList, name))
		}
	}
	err = fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (unchecked[name] || isHidden(name) || name == "bin" || entry.Name() == "testdata"):
			return fs.SkipDir
		case entry.IsDir(), unchecked[name]:
			return nil
		}
		var find func(string, []byte, []phrase) ([]string, error)
		switch {
		case path.Ext(name) == ".md":
			find = inMarkdown
		case path.Ext(name) == ".go":
			find = func(name string, text []byte, phrases []phrase) ([]string, error) {
				return inGo(name, text, phrases, forbidden)
			}
		default:
			of, ok := texts[kind(name)]
			if !ok {
				return nil
			}
			find = of.find
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		found, err := find(name, text, phrases)
		problems = append(problems, found...)
		return err
	})
	return problems, err
}

// isHidden says whether a folder is for tools, such as .git.
func isHidden(folder string) bool { return folder != "." && strings.HasPrefix(path.Base(folder), ".") }

// cell is a phrase in a table's cell.
var cell = regexp.MustCompile("`([^`]+)`")

// readTable reads a table of the style page: what is forbidden in the first column, the replacement in the second.
func readTable(page, head, tail string) ([]phrase, error) {
	_, rest, found := strings.Cut(page, head)
	table, _, closed := strings.Cut(rest, tail)
	if !found || !closed {
		return nil, fmt.Errorf("%s has no table between %s and %s", stylePage, head, tail)
	}
	var phrases []phrase
	for line := range strings.Lines(table) {
		columns := strings.Split(strings.TrimSpace(line), "|")
		if len(columns) != 4 {
			continue
		}
		for _, match := range cell.FindAllStringSubmatch(columns[1], -1) {
			words := strings.Fields(match[1])
			for i, word := range words {
				words[i] = regexp.QuoteMeta(word)
			}
			phrases = append(phrases, phrase{
				text: match[1], instead: strings.TrimSpace(columns[2]), pattern: regexp.MustCompile(`(?i)\b` + strings.Join(words, `\s+`) + `\b`),
			})
		}
	}
	if len(phrases) == 0 {
		return nil, fmt.Errorf("the table between %s and %s is empty", head, tail)
	}
	return phrases, nil
}

// uncheckedList names files and folders that are not checked, one per line, each with its reason in a comment before it.
const uncheckedList = ".ci/prose/unchecked"

func readUnchecked(root fs.FS) (map[string]bool, error) {
	text, err := fs.ReadFile(root, uncheckedList)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			names[line] = true
		}
	}
	return names, err
}

// code matches quotations: a phrase inside one is not the page's own.
var code = regexp.MustCompile("`[^`]*`|<!--.*?-->")

const (
	// Comments with these beginnings enclose a page's generated parts: the generator's texts are checked instead of the page.
	generatedHead = "<!-- begin of"
	generatedTail = "<!-- end of"
)

// inMarkdown checks a page outside of its code and generated parts. Lines are joined, so that a phrase is found across a line break.
func inMarkdown(name string, text []byte, phrases []phrase) ([]string, error) {
	var problems []string
	var prose strings.Builder // the page with one line for each of its own; code is left out
	fence := ""
	for i, line := range strings.Split(string(text), "\n") {
		trimmed := strings.TrimSpace(line)
		opens := strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~")
		switch {
		case fence == "" && strings.HasPrefix(trimmed, generatedHead):
			fence = generatedTail
		case fence != "" && strings.HasPrefix(trimmed, fence):
			fence = ""
		case fence != "":
		case opens:
			fence = trimmed[:3]
		default:
			prose.WriteString(code.ReplaceAllString(line, ""))
			if length := utf8.RuneCountInString(line); length > widest && mayBreak(line) {
				problems = append(problems, fmt.Sprintf("%s:%d: %d characters; the most is %d", name, i+1, length, widest))
			}
		}
		prose.WriteByte('\n')
	}
	return append(problems, find(name, prose.String(), 1, phrases)...), nil
}

// mayBreak says whether a line can be shortened: it is no row of a table, no heading, and has a blank before the limit.
func mayBreak(line string) bool {
	trimmed := strings.TrimSpace(line)
	if strings.HasPrefix(trimmed, "|") || strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, "<!--") {
		return false
	}
	return strings.Contains(trimmed[:min(len(trimmed), widest)], " ")
}

// inGo checks the comments and declared names of a file and, except in tests, its string literals. Generated files are left out.
func inGo(name string, text []byte, phrases []phrase, forbidden map[string]string) ([]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments)
	if err != nil || ast.IsGenerated(file) {
		return nil, err
	}
	var problems []string
	for _, group := range file.Comments {
		first := files.Position(group.Pos()).Line
		problems = append(problems, find(name, proseOf(group, files), first, phrases)...)
	}
	ast.Inspect(file, func(node ast.Node) bool {
		for _, ident := range declared(node) {
			for _, part := range namePart.FindAllString(ident.Name, -1) {
				if instead, found := forbidden[strings.ToLower(part)]; found {
					at := files.Position(ident.Pos()).Line
					problems = append(problems, fmt.Sprintf("%s:%d: the name %s: write %s", name, at, ident.Name, instead))
				}
			}
		}
		literal, ok := node.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		// A single word is a name: a key, a column, a part of a path.
		if value, err := strconv.Unquote(literal.Value); err == nil && strings.ContainsAny(value, " \n") {
			problems = append(problems, find(name, value, files.Position(literal.Pos()).Line, phrases)...)
		}
		return true
	})
	return problems, nil
}

// namePart matches a word of a name in mixed case: max and Waiters of maxWaiters.
var namePart = regexp.MustCompile(`[A-Z]?[a-z0-9]+|[A-Z]+`)

// declared returns the names that a node declares. A name that is only used belongs to its declaration, perhaps another module's.
func declared(node ast.Node) (names []*ast.Ident) {
	switch node := node.(type) {
	case *ast.FuncDecl:
		return []*ast.Ident{node.Name}
	case *ast.TypeSpec:
		return []*ast.Ident{node.Name}
	case *ast.ValueSpec:
		return node.Names
	case *ast.Field:
		return node.Names
	case *ast.RangeStmt:
		if node.Tok == token.DEFINE {
			names = appendIdents(names, node.Key, node.Value)
		}
	case *ast.AssignStmt:
		if node.Tok == token.DEFINE {
			names = appendIdents(names, node.Lhs...)
		}
	}
	return names
}

// appendIdents appends those of some expressions that are names.
func appendIdents(names []*ast.Ident, of ...ast.Expr) []*ast.Ident {
	for _, expression := range of {
		if ident, ok := expression.(*ast.Ident); ok {
			names = append(names, ident)
		}
	}
	return names
}

// proseOf returns the text of a group of comments, each line of it on a line of its own. Directives and quotations are left out.
func proseOf(group *ast.CommentGroup, files *token.FileSet) string {
	var prose strings.Builder
	line := files.Position(group.Pos()).Line
	for _, comment := range group.List {
		for ; line < files.Position(comment.Pos()).Line; line++ {
			prose.WriteByte('\n')
		}
		text := comment.Text[len("//"):] // or the opening of a comment of several lines
		if !directive.MatchString(comment.Text) {
			prose.WriteString(code.ReplaceAllString(text, ""))
		}
		line += strings.Count(text, "\n")
	}
	return prose.String()
}

// directive matches comments for tools, such as //go:embed and //nolint:lll.
var directive = regexp.MustCompile(`^//[a-z]+:`)

// lines says which part of a line is prose: the first group of the pattern.
type lines struct{ prose *regexp.Regexp }

// texts are the patterns of files that are read line by line, by kind.
var texts = map[string]lines{
	".yaml":        {regexp.MustCompile(`(?:#|: )(.*\S .*)$`)}, // a single word is a name
	".schema.json": {regexp.MustCompile(`"description": ("(?:[^"\\]|\\.)*")`)},
	".proto":       {regexp.MustCompile(`//(.*)$`)},
	"Makefile":     {regexp.MustCompile(`^[a-z-]+:.*## (.*)$`)},
}

// kind returns the kind of a file: its name, or the part from the first dot on, since JSON other than a schema is data.
func kind(name string) string {
	base := path.Base(name)
	if at := strings.IndexByte(base, '.'); at >= 0 {
		return base[at:]
	}
	return base
}

// find checks the prose of a file's lines. Lines are joined, so that a phrase is found across a line break.
func (l lines) find(name string, text []byte, phrases []phrase) ([]string, error) {
	var prose strings.Builder
	for line := range strings.Lines(string(text)) {
		if match := l.prose.FindStringSubmatch(strings.TrimRight(line, "\r\n")); match != nil {
			prose.WriteString(code.ReplaceAllString(match[1], ""))
		}
		prose.WriteByte('\n')
	}
	return find(name, prose.String(), 1, phrases), nil
}

// find returns a line for each phrase in a text; first is the text's line in its file.
func find(name, text string, first int, phrases []phrase) []string {
	var problems []string
	for _, p := range phrases {
		for _, at := range p.pattern.FindAllStringIndex(text, -1) {
			line := first + strings.Count(text[:at[0]], "\n")
			problems = append(problems, fmt.Sprintf("%s:%d: %q: write %s", name, line, text[at[0]:at[1]], p.instead))
		}
	}
	return problems
}
