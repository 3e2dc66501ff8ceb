package signals

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of what is read.
const (
	// maxLine is the longest line for people that is matched, in characters. Messages of limits are short; longer lines talk about limits.
	maxLine = 300
	// maxLong is the longest line, in characters, for a rule for long lines: a program that prints the body of a refusal after its own
	// words.
	maxLong = 2_000
	// maxObject is the longest line that is read as a JSON object, in bytes. Objects are matched by their fields and not by their texts, so
	// they may be longer.
	maxObject = 16 << 10
)

// Confidence says how reliable a message is.
type Confidence int

// The degrees.
const (
	// Likely is a broad phrase, which may also be somebody's talk about limits: believe it only with other evidence, such as a failed
	// program.
	Likely Confidence = 1
	// Sure is a tool's own sentence or event.
	Sure Confidence = 2
)

// Message is what a line of an agent tool's output says about a limit.
type Message struct {
	// Rule is the id of the rule that matched: a metric of it shows when a tool's words change.
	Rule string
	// Class is what the line means. OK is a warning: a limit is near, nothing was refused.
	Class Class
	// Scope says what the limit covers.
	Scope Scope
	// Confidence says how reliable the message is.
	Confidence Confidence
	// Resource names the limit in the tool's words, in small letters: session, weekly, opus. Empty: not said.
	Resource string
	// Wait is how long until a retry is worthwhile, from now: at most MaxPlanWait if Class is Exhausted, otherwise at most MaxWait.
	// Unknown: not said, or not readable.
	Wait Span
	// Clamped: Wait was longer and was cut.
	Clamped bool
	// UsedShare is how much of the limit is used, in millionths.
	UsedShare Count
}

// Texts are rules for the output of agent tools. They do not change and are safe for concurrent use.
type Texts struct{ rules []*textRule }

// textRule is one rule: a pattern for lines, or conditions on the fields of an object.
type textRule struct {
	id         string
	class      Class
	scope      Scope
	confidence Confidence
	// pattern is matched at the beginning of a line; nil: the rule is for objects. long: the line may have maxLong characters.
	pattern *regexp.Regexp
	long    bool
	// object has the values of which a field must have one, by the field's path.
	object map[string][]string
	// fields are the paths of an object's parts, by the name of the part.
	fields map[string]string
}

// The parts: names of a pattern's groups and of an object's fields.
const (
	partFor      = "for"      // a length of time
	partAt       = "at"       // a point in time, for people
	partEpoch    = "epoch"    // seconds since 1970
	partMillis   = "millis"   // milliseconds from now
	partShare    = "share"    // the used part, 0 to 1
	partResource = "resource" // the limit's name
	partText     = "text"     // a text for people, which is matched by the patterns
)

// Match reads one line of a tool's output that was printed at now, whose Location is the machine's zone. The first matching rule counts.
// Only the beginning of a line is matched, after a spinner, a bullet or "API Error:". A line that quotes or discusses a message does not
// match. A line of more than 300 characters is ignored, unless it is a JSON object, or the rule is for long lines.
func (t *Texts) Match(line string, now time.Time) (Message, bool) {
	if len(line) > maxObject {
		return Message{}, false
	}
	line = undressed(line)
	if strings.HasPrefix(line, "{") {
		return t.matchObject(line, now)
	}
	return t.matchText(line, now)
}

func (t *Texts) matchText(line string, now time.Time) (Message, bool) {
	length := utf8.RuneCountInString(line)
	if length > maxLong {
		return Message{}, false
	}
	line = withoutPrefix(line)
	for _, rule := range t.rules {
		if length > maxLine && !rule.long {
			continue
		}
		if parts, ok := rule.inText(line); ok {
			return rule.message(parts, now), true
		}
	}
	return Message{}, false
}

func (t *Texts) matchObject(line string, now time.Time) (Message, bool) {
	decoder := json.NewDecoder(strings.NewReader(line))
	decoder.UseNumber()
	var object map[string]any
	if decoder.Decode(&object) != nil {
		return Message{}, false
	}
	for _, rule := range t.rules {
		parts, ok := rule.inObject(object)
		if !ok {
			continue
		}
		if _, refers := rule.fields[partText]; refers {
			first, _, _ := strings.Cut(parts[partText], "\n")
			if m, ok := t.matchText(undressed(first), now); ok {
				return m, true
			}
			continue
		}
		return rule.message(parts, now), true
	}
	return Message{}, false
}

// inText returns the parts of a line that matches the rule.
func (r *textRule) inText(line string) (map[string]string, bool) {
	if r.pattern == nil {
		return nil, false
	}
	found := r.pattern.FindStringSubmatch(line)
	if found == nil {
		return nil, false
	}
	parts := map[string]string{}
	for i, name := range r.pattern.SubexpNames() {
		if name != "" {
			parts[name] = found[i]
		}
	}
	return parts, true
}

// inObject returns the parts of an object that matches the rule.
func (r *textRule) inObject(object map[string]any) (map[string]string, bool) {
	if r.pattern != nil {
		return nil, false
	}
	for path, values := range r.object {
		if !slices.Contains(values, fieldAt(object, path)) {
			return nil, false
		}
	}
	parts := map[string]string{}
	for part, path := range r.fields {
		parts[part] = fieldAt(object, path)
	}
	return parts, true
}

// fieldAt returns a field of an object as text, by its path of names with dots between; empty if it is absent, or has fields of its own.
func fieldAt(object map[string]any, path string) string {
	name, rest, deeper := strings.Cut(path, ".")
	switch value := object[name].(type) {
	case map[string]any:
		if deeper {
			return fieldAt(value, rest)
		}
	case string:
		if !deeper {
			return value
		}
	case json.Number:
		if !deeper {
			return value.String()
		}
	case bool:
		if !deeper && value {
			return "true"
		}
		if !deeper {
			return "false"
		}
	}
	return ""
}

// message makes the message of a line that matches the rule.
func (r *textRule) message(parts map[string]string, now time.Time) Message {
	m := Message{
		Rule: r.id, Class: r.class, Scope: r.scope, Confidence: r.confidence,
		Resource: strings.ToLower(word(parts[partResource])), UsedShare: share(parts[partShare], millionth),
	}
	if d, ok := waitIn(parts, now); ok {
		most := MaxWait
		if r.class == Exhausted {
			most = MaxPlanWait
		}
		m.Wait, m.Clamped = Span{D: min(d, most), Known: true}, d > most
	}
	return m
}

// waitIn reads the wait in the parts of a line.
func waitIn(parts map[string]string, now time.Time) (time.Duration, bool) {
	switch {
	case parts[partFor] != "":
		return spoken(parts[partFor])
	case parts[partAt] != "":
		return moment(parts[partAt], now)
	case parts[partEpoch] != "":
		r := response{now: now}
		left, ok := r.sinceEpoch(parts[partEpoch])
		return left.D, ok
	}
	return decimal(parts[partMillis], time.Millisecond)
}

// escapes matches the terminal's control sequences: colours, cursor movements, titles.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)`)

// undressed removes what a terminal does not show, and unifies apostrophes, spaces and dots.
func undressed(line string) string {
	line = strings.TrimRight(escapes.ReplaceAllString(line, ""), "\r\n")
	// The terminal overwrites text before a carriage return.
	line = line[strings.LastIndexByte(line, '\r')+1:]
	return strings.TrimSpace(alike.Replace(line))
}

var alike = strings.NewReplacer(
	"\u2019", "'", // right single quotation mark
	"\u00a0", " ", "\u202f", " ", // spaces that do not break
	"\u2219", "\u00b7", "\u2022", "\u00b7", "\u22c5", "\u00b7", // dots in the middle
)

var errorPrefix = regexp.MustCompile(`(?i)^(?:api )?error:\s*`)

// withoutPrefix removes what tools put before a message: spinners, bullets, warning signs, "API Error:".
func withoutPrefix(line string) string {
	for {
		shorter := strings.TrimLeftFunc(line, func(r rune) bool {
			// U+FE0F selects the emoji form of a sign.
			return unicode.IsSpace(r) || unicode.Is(unicode.So, r) || r == '\u00b7' || r == '\ufe0f'
		})
		if bullet, ok := cutBullet(shorter); ok {
			shorter = bullet
		}
		shorter = shorter[len(errorPrefix.FindString(shorter)):]
		if len(shorter) == len(line) {
			return line
		}
		line = shorter
	}
}

// cutBullet removes a bullet with its space. Without the space it is emphasis, or a line that a diff removes.
func cutBullet(line string) (string, bool) {
	if rest, ok := strings.CutPrefix(line, "- "); ok {
		return rest, true
	}
	return strings.CutPrefix(line, "* ")
}
