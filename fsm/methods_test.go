package fsm_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// TestMachine_HasFewMethods: a part that grows becomes a package of its own, before nobody can read the core as a whole.
func TestMachine_HasFewMethods(t *testing.T) {
	const most = 150
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	methods := 0
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, declared := range parsed.Decls {
			if function, ok := declared.(*ast.FuncDecl); ok && receiverOf(function) == "Machine" {
				methods++
			}
		}
	}
	if methods == 0 || methods >= most {
		t.Errorf("Machine has %d methods; there must be fewer than %d", methods, most)
	}
}

// receiverOf returns the type of a method's receiver; empty: it is no method.
func receiverOf(function *ast.FuncDecl) string {
	if function.Recv == nil {
		return ""
	}
	of := function.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}
