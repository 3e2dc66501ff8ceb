package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// People write "5m" for a duration and "background" for CLASS_BACKGROUND; protobuf's JSON has neither. JSON that protobuf cannot read is
// rewritten in its form, and read again.

// spellingError says which field of a message cannot be read, and how to write it.
type spellingError struct{ field, message, hint string }

// Error implements error.
func (e *spellingError) Error() string { return e.field + ": " + e.message }

// spell returns a message's JSON with durations and names in the form of protobuf's JSON. The error is a *spellingError if one of them
// cannot be read. Values of a wrong type stay as they are, for protobuf to reject.
func spell(data []byte, of protoreflect.MessageDescriptor) ([]byte, error) {
	var s speller
	if err := s.message(data, of, ""); err != nil {
		return nil, err
	}
	return s.out.Bytes(), nil
}

type speller struct{ out bytes.Buffer }

// message writes a message. It keeps the order of keys, and also repeated keys, which protobuf rejects.
func (s *speller) message(data []byte, of protoreflect.MessageDescriptor, path string) error {
	from := json.NewDecoder(bytes.NewReader(data))
	if token, _ := from.Token(); token != json.Delim('{') { // also if it cannot be read
		_, _ = s.out.Write(data)
		return nil
	}
	_ = s.out.WriteByte('{')
	for first := true; from.More(); first = false {
		token, err := from.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string) // every key is a string
		var value json.RawMessage
		if err := from.Decode(&value); err != nil {
			return err
		}
		if !first {
			_ = s.out.WriteByte(',')
		}
		key, err := json.Marshal(name)
		if err != nil {
			return err
		}
		_, _ = s.out.Write(key)
		_ = s.out.WriteByte(':')
		if err := s.field(value, fieldOf(of, name), path); err != nil {
			return err
		}
	}
	_ = s.out.WriteByte('}')
	return ended(from)
}

// ended reads the end of an object or a list. Nothing may follow it.
func ended(from *json.Decoder) error {
	if _, err := from.Token(); err != nil {
		return err
	}
	if _, err := from.Token(); !errors.Is(err, io.EOF) {
		return errMoreJSON
	}
	return nil
}

var errMoreJSON = errors.New("more data follows the message")

// fieldOf finds a field by either of its names; nil if there is none.
func fieldOf(of protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if field := of.Fields().ByJSONName(name); field != nil {
		return field
	}
	return of.Fields().ByName(protoreflect.Name(name))
}

func (s *speller) field(value []byte, field protoreflect.FieldDescriptor, path string) error {
	if field == nil || field.IsMap() || string(value) == "null" {
		_, _ = s.out.Write(value)
		return nil
	}
	path = strings.TrimPrefix(path+"."+string(field.Name()), ".")
	if !field.IsList() {
		return s.value(value, field, path)
	}
	from := json.NewDecoder(bytes.NewReader(value))
	if token, _ := from.Token(); token != json.Delim('[') {
		_, _ = s.out.Write(value)
		return nil
	}
	_ = s.out.WriteByte('[')
	for i := 0; from.More(); i++ {
		var element json.RawMessage
		if err := from.Decode(&element); err != nil {
			return err
		}
		if i > 0 {
			_ = s.out.WriteByte(',')
		}
		if err := s.value(element, field, fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	_ = s.out.WriteByte(']')
	return ended(from)
}

// value writes one value of a field.
func (s *speller) value(value []byte, field protoreflect.FieldDescriptor, path string) error {
	var err error
	switch message := field.Message(); {
	case message != nil && message.FullName() == "google.protobuf.Duration":
		value, err = spelledDuration(value, path)
	case message != nil:
		return s.message(value, message, path)
	case field.Enum() != nil:
		value, err = spelledName(value, field.Enum(), path)
	}
	if err != nil {
		return err
	}
	_, _ = s.out.Write(value)
	return nil
}

// plainDuration matches a duration in the form of protobuf's JSON.
var plainDuration = regexp.MustCompile(`^"[-+]?[0-9.]+s"$`)

// spelledDuration converts a duration from Go's form.
func spelledDuration(value []byte, path string) ([]byte, error) {
	if plainDuration.Match(value) {
		return value, nil
	}
	var text string
	err := json.Unmarshal(value, &text)
	var d time.Duration
	if err == nil {
		d, err = time.ParseDuration(text)
	}
	if err != nil {
		return nil, &spellingError{
			path, shortened(value) + " is not a duration",
			`write it with a unit and in quotes, such as "30s", "0.5s", "5m" or "1h30m"`,
		}
	}
	return protojson.Marshal(durationpb.New(d))
}

// spelledName converts the name of an enumeration's value without its prefix, in any case.
func spelledName(value []byte, of protoreflect.EnumDescriptor, path string) ([]byte, error) {
	var text string
	if !bytes.HasPrefix(value, []byte{'"'}) {
		return value, nil // a number
	}
	if err := json.Unmarshal(value, &text); err != nil {
		return nil, err
	}
	if of.Values().ByName(protoreflect.Name(text)) != nil {
		return value, nil
	}
	prefix := strings.TrimSuffix(string(of.Values().ByNumber(0).Name()), "UNSPECIFIED")
	name := protoreflect.Name(prefix + strings.ToUpper(strings.ReplaceAll(text, "-", "_")))
	if of.Values().ByName(name) != nil {
		return json.Marshal(name)
	}
	var known []string
	for i := range min(of.Values().Len(), maxNamed) {
		if word := of.Values().Get(i); word.Number() != 0 {
			known = append(known, strings.ToLower(strings.TrimPrefix(string(word.Name()), prefix)))
		}
	}
	return nil, &spellingError{path, shortened(value) + " is unknown", "use one of " + strings.Join(known, ", ")}
}

// maxNamed bounds the names that an error lists, maxShown the bytes of a value that it repeats.
const (
	maxNamed = 20
	maxShown = 40
)

// shortened returns the beginning of a value, for an error.
func shortened(value []byte) string { return beginning(string(value), maxShown) }

// beginning returns up to most bytes of a text, and marks where more were cut off.
func beginning(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}
