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

// schemaOf maps each version of the API to the hash of its schema.
var schemaOf = map[int]string{
	5: "e1ca6f7f3d8234a7",
}

// TestAPIVersion_RisesWithTheSchema: a changed schema needs a decision. If a call changes its meaning, or refuses what it accepted, the
// version rises and gets the new hash. If something is only added, the version keeps its number and gets the new hash.
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
	if got := hex.EncodeToString(sum.Sum(nil)[:8]); got != schemaOf[rpc.APIVersion] {
		t.Errorf("the schema of API version %d (%d files) has the hash %s, not %s", rpc.APIVersion, len(files), got, schemaOf[rpc.APIVersion])
	}
}
