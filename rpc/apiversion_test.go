package rpc_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/quotad/quotad/rpc"
	"github.com/quotad/quotad/rpc/quotav1"
)

// schemas has a row for each version of the API since 4, oldest first: the hash of its schema. The list only grows: a row that was released
// is never edited.
var schemas = []struct {
	version int
	hash    string
}{
	{4, "e6db0496f0923a84"},
	{5, "e1ca6f7f3d8234a7"},
}

// TestAPIVersion_RisesWithTheSchema: another schema needs another version, with a row of its own.
func TestAPIVersion_RisesWithTheSchema(t *testing.T) {
	var files []protoreflect.FileDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage(quotav1.File_quota_v1_quota_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		files = append(files, file)
		return true
	})
	slices.SortFunc(files, func(a, b protoreflect.FileDescriptor) int { return cmp.Compare(a.Path(), b.Path()) })
	sum := sha256.New()
	for _, file := range files {
		encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(protodesc.ToFileDescriptorProto(file))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = sum.Write(encoded)
	}
	last := schemas[len(schemas)-1]
	if got := hex.EncodeToString(sum.Sum(nil)[:8]); got != last.hash {
		t.Errorf("the schema (%d files) has the hash %s, version %d has %s: raise rpc.APIVersion and add the row {%d, %q}",
			len(files), got, last.version, last.hash, last.version+1, got)
	}
	if last.version != rpc.APIVersion {
		t.Errorf("the last row is of version %d, the API has version %d", last.version, rpc.APIVersion)
	}
	for i, row := range schemas[1:] {
		if row.version != schemas[i].version+1 || row.hash == schemas[i].hash {
			t.Errorf("the row %+v follows %+v", row, schemas[i])
		}
	}
}
