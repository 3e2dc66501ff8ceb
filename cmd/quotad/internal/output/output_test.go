package output

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/rpc/quotav1"
)

func TestTable(t *testing.T) {
	table := Table{Header: []string{"QUOTA", "HELD"}}
	table.Add("github/core", "7")
	table.Add("ä", "12", "more")
	var out strings.Builder
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	want := "QUOTA        HELD\ngithub/core  7\nä            12    more\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestVisible_PassesNoControlCharacters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "text"))
		for _, r := range Visible(text) {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q let %q through", text, r)
			}
		}
	})
	if got := Visible("a\x1b[31mred\nb\u202e"); got != `a\x1b[31mred\nb\u202e` {
		t.Errorf("got %s", got)
	}
	if got := Visible("größe 5 €"); got != "größe 5 €" {
		t.Errorf("got %s", got)
	}
}

func TestJSON_IsStableAndWhole(t *testing.T) {
	message := &quotav1.QuotaStatus{Usable: 5000, Definition: &quotav1.Quota{Name: "a"}}
	var first strings.Builder
	if err := JSON(&first, message); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`  "usable": "5000"`, `"held": "0"`, `"name": "a"`} {
		if !strings.Contains(first.String(), part) {
			t.Errorf("%s is missing in %s", part, first.String())
		}
	}
}

func TestDuration(t *testing.T) {
	for _, c := range []struct {
		length time.Duration
		want   string
	}{{0, "0s"}, {1234567, "1ms"}, {1234 * time.Millisecond, "1.2s"}, {125500 * time.Millisecond, "2m6s"}} {
		if got := Duration(durationpb.New(c.length)); got != c.want {
			t.Errorf("%v: %s, want %s", c.length, got, c.want)
		}
	}
	if Duration(nil) != Dash || Or("") != Dash {
		t.Error("absent values have no dash")
	}
}
