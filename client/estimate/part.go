package estimate

import (
	"bytes"
	"strings"

	"github.com/quotad/quotad/rpc/signals"
)

// value is the current string: its counts, and its beginning.
type value struct {
	open         bool
	ascii, other int64
	head         [maxName]byte
	headSize     int
}

func (v *value) add(piece []byte) {
	v.open = true
	v.headSize += copy(v.head[v.headSize:], piece)
	other := int64(0)
	for _, c := range piece {
		other += int64(c >> 7)
	}
	v.other += other
	v.ascii += int64(len(piece)) - other
}

// text returns its beginning.
func (v *value) text() string { return strings.ToValidUTF8(string(v.head[:v.headSize]), "") }

// frame is an open value: perhaps a part of a message, such as an image.
type frame struct {
	array bool
	// opaque: nothing inside is a part.
	opaque bool
	// name is the frame's key; elements of an array have the array's key. key is the last key inside.
	name, key string
	// kind is the kind of part, according to its keys.
	kind kind
	// blob is the content until its kind is known.
	blob blob
}

// kind is the medium of a part.
type kind uint8

const (
	unknownKind kind = 0
	image       kind = 1
	audio       kind = 2
	document    kind = 3
	plain       kind = 4
)

// blob is the non-text content of a part.
type blob struct {
	form form
	// ascii and other are its bytes as sent, usually base64.
	ascii, other int64
	kind         kind
}

// form is how a part carries its content.
type form uint8

const (
	noBlob form = 0
	inline form = 1
	byURL  form = 2
	byID   form = 3
)

// blobKeys are the keys whose strings may be media.
var blobKeys = map[string]form{
	"data": inline, "bytes": inline, "file_data": inline, "b64_json": inline,
	"url": byURL, "image_url": byURL, "file_url": byURL, "video_url": byURL, "fileUri": byURL, "file_uri": byURL, "uri": byURL,
	"file_id": byID, "fileId": byID,
}

// mediaKeys are the keys whose strings name a media type or a file format.
var mediaKeys = map[string]bool{"media_type": true, "mimeType": true, "mime_type": true, "format": true}

// kindNames maps a part's type, or its key, to a kind.
var kindNames = map[string]kind{
	"image": image, "image_url": image, "input_image": image,
	"input_audio": audio, "audio": audio, "video": audio, "video_url": audio,
	"document": document, "file": document, "input_file": document,
}

// opaque are the keys of JSON that belongs to a tool.
var opaque = map[string]bool{"input": true, "args": true, "arguments": true, "json": true, "response": true}

// known interns the meaningful keys, so that other keys take no memory.
var known = func() map[string]string {
	names := map[string]string{
		"type": "type", "cache_control": "cache_control", "cachePoint": "cachePoint", "prompt": "prompt", "id": "id",
		"model": "model",
	}
	for name := range blobKeys {
		names[name] = name
	}
	for name := range mediaKeys {
		names[name] = name
	}
	for name := range kindNames {
		names[name] = name
	}
	for name := range opaque {
		names[name] = name
	}
	return names
}()

func internKey(name []byte) string { return known[string(name)] }

// partText handles a string below a section of prose.
func (h *handler) partText(v *value) {
	f := h.frame()
	if f == nil || f.array || f.opaque {
		h.countText(v)
		return
	}
	switch {
	case f.key == "type":
		f.kind = max(f.kind, kindNames[v.text()])
		if v.text() == "text" {
			f.kind = plain
		}
	case mediaKeys[f.key]:
		f.kind = max(f.kind, mediaKind(v.text()))
	}
	form := blobKeys[f.key]
	if form == noBlob || f.blob.form != noBlob {
		h.countText(v)
		return
	}
	b := blob{form: form, ascii: v.ascii, other: v.other}
	if media, found := bytes.CutPrefix(v.head[:v.headSize], []byte("data:")); found {
		media, _, _ = bytes.Cut(media, []byte(";"))
		b.form, b.kind = inline, mediaKind(string(media))
	}
	if b.kind == unknownKind {
		b.kind = kindNames[f.key]
	}
	f.blob = b
}

// mediaKind returns the kind of a media type or a file format.
func mediaKind(media string) kind {
	major, minor, _ := strings.Cut(strings.ToLower(media), "/")
	switch {
	case major == "image" || minor == "" && imageFormats[major]:
		return image
	case major == "audio" || major == "video" || minor == "" && audioFormats[major]:
		return audio
	case major == "text":
		return plain
	case minor != "" || documentFormats[major]:
		return document
	}
	return unknownKind
}

var (
	imageFormats = map[string]bool{"png": true, "jpeg": true, "jpg": true, "gif": true, "webp": true}
	audioFormats = map[string]bool{
		"wav": true, "mp3": true, "mp4": true, "mkv": true, "mov": true, "webm": true, "flv": true, "mpeg": true,
		"mpg": true, "wmv": true, "flac": true, "opus": true, "pcm16": true,
	}
	documentFormats = map[string]bool{"pdf": true, "docx": true, "doc": true, "xlsx": true, "xls": true}
)

// endPart counts a part's content, or leaves that to the enclosing value: keys of either may identify an image's data.
func (h *handler) endPart(f *frame) {
	if f.blob.form == noBlob {
		return
	}
	what := f.blob.kind
	if f.kind != unknownKind {
		what = f.kind
	}
	if what == unknownKind {
		what = kindNames[f.name]
	}
	var outer *frame
	if h.depth >= 2 {
		outer = &h.frames[h.depth-2]
	}
	switch {
	case what != unknownKind:
		h.countBlob(f.blob, what)
	case outer != nil && !outer.array && !outer.opaque && outer.blob.form == noBlob && h.depth > 2:
		outer.blob = f.blob
	case f.blob.form == byID:
		h.request.Content.Files++
	default:
		h.countBlob(f.blob, plain)
		return
	}
}

// countBlob counts the content of a part.
func (h *handler) countBlob(b blob, what kind) {
	c := &h.request.Content
	decoded := b.ascii / 4 * 3
	switch {
	case what == image:
		c.Images++
	case what == plain && h.request.Dialect.Name() == signals.Gemini.Name() && b.form == inline:
		c.ASCII += decoded
	case what == plain:
		c.ASCII += b.ascii
		c.Other += b.other
	case b.form != inline:
		c.Files++
	case what == audio:
		c.Audio += decoded
	default:
		c.Documents += max((decoded+pdfPart-1)/pdfPart, 1) * fileTokens
	}
}

// countText counts a string that reaches the model unchanged.
func (h *handler) countText(v *value) {
	h.request.Content.ASCII += v.ascii
	h.request.Content.Other += v.other
}
