package config

import "testing"

func TestSelects_CallWithoutAClassIsStandard(t *testing.T) {
	for _, want := range []struct {
		selector Selector
		class    Class
		holder   string
		selects  bool
	}{
		{Selector{}, ClassNone, "x", true},
		{Selector{}, Background, "x", true},
		{Selector{Class: Standard}, ClassNone, "x", true},
		{Selector{Class: Standard}, Standard, "x", true},
		{Selector{Class: Standard}, Critical, "x", false},
		{Selector{Class: Standard}, Background, "x", false},
		{Selector{Class: Critical}, ClassNone, "x", false},
		{Selector{Class: Background}, ClassNone, "x", false},
		{Selector{Class: Background}, Background, "x", true},
		{Selector{Holder: "red-*"}, ClassNone, "red-1", true},
		{Selector{Holder: "red-*"}, Standard, "blue-1", false},
		{Selector{Class: Standard, Holder: "red-*"}, ClassNone, "red-1", true},
		{Selector{Class: Standard, Holder: "red-*"}, ClassNone, "blue-1", false},
	} {
		if got := want.selector.Selects(want.class, want.holder); got != want.selects {
			t.Errorf("%+v of class %q, holder %s: %v", want.selector, want.class, want.holder, got)
		}
	}
}
