package client

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/quotad/quotad/rpc/quotav1"
)

// TestReasons_HaveTheNamesOfTheAPI: ReasonStaleFence is REASON_STALE_FENCE, so that nobody has to learn a second name.
func TestReasons_HaveTheNamesOfTheAPI(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "reasons.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
			return true
		}
		value, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			t.Fatalf("%s has no number", spec.Names[0].Name)
		}
		number, err := strconv.ParseInt(value.Value, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		found++
		name := quotav1.Reason(number).String()
		if want := strings.ReplaceAll(name, "_", ""); !strings.EqualFold(spec.Names[0].Name, want) {
			t.Errorf("%s is number %d, which is %s in the API", spec.Names[0].Name, number, name)
		}
		return true
	})
	if found < 50 {
		t.Errorf("only %d reasons are looked at", found)
	}
}
