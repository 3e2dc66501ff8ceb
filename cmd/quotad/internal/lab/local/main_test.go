package local_test

import (
	"testing"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/local/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }
