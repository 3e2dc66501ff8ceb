// Package output prints answers for people (tables) and for programs (JSON). Names come from the network, so it escapes
// terminal control sequences before it prints them.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Table is a header with rows.
type Table struct {
	// Header names the columns; empty: no header is printed.
	Header []string
	// Rows are cells by column; a row may be shorter than the header.
	Rows [][]string
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Write prints the table with two spaces between columns.
func (t *Table) Write(w io.Writer) error {
	rows := t.Rows
	if len(t.Header) > 0 {
		rows = append([][]string{t.Header}, rows...)
	}
	var widths []int
	clean := make([][]string, len(rows))
	for i, row := range rows {
		clean[i] = make([]string, len(row))
		for j, cell := range row {
			clean[i][j] = Visible(cell)
			if j == len(widths) {
				widths = append(widths, 0)
			}
			widths[j] = max(widths[j], utf8.RuneCountInString(clean[i][j]))
		}
	}
	var out strings.Builder
	for _, row := range clean {
		var line strings.Builder
		for j, cell := range row {
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell)+2))
		}
		out.WriteString(strings.TrimRight(line.String(), " "))
		out.WriteByte('\n')
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// Visible returns text with everything that is not printable (escape sequences, line breaks, direction marks, invalid
// UTF-8) as escapes.
func Visible(text string) string {
	clean := func(r rune) bool { return r != utf8.RuneError && (unicode.IsPrint(r) || r == ' ') }
	if strings.IndexFunc(text, func(r rune) bool { return !clean(r) }) < 0 {
		return text
	}
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

// JSON prints a message as the API's JSON, indented, with zero values, so that a script finds every field.
func JSON(w io.Writer, message proto.Message) error {
	compact, err := Raw(message)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, compact, "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err = w.Write(out.Bytes())
	return err
}

// Raw returns a message as the API's JSON on one line, with zero values.
func Raw(message proto.Message) (json.RawMessage, error) {
	varied, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(message)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Compact(&out, varied); err != nil { // removes the spaces that protojson varies from build to build
		return nil, err
	}
	return out.Bytes(), nil
}

// Line prints any value as JSON on one line.
func Line(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// Value prints any value as indented JSON.
func Value(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// Dash is the cell of a table for "none" and "unknown".
const Dash = "-"

// Int formats a number.
func Int[N ~int | ~int32 | ~int64 | ~uint32 | ~uint64](n N) string { return fmt.Sprint(n) }

// Duration formats a duration with as many digits as people read; Dash if it is absent.
func Duration(d *durationpb.Duration) string {
	if d == nil {
		return Dash
	}
	length := d.AsDuration()
	switch {
	case length >= 100*time.Second:
		return length.Round(time.Second).String()
	case length >= time.Second:
		return length.Round(100 * time.Millisecond).String()
	default:
		return length.Round(time.Millisecond).String()
	}
}

// Or returns text, or Dash if it is empty.
func Or(text string) string {
	if text == "" {
		return Dash
	}
	return text
}
