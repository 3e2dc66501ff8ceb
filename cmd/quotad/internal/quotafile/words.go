package quotafile

import "github.com/quotad/quotad/rpc/quotav1"

// The file's words for the API's enum values.
var (
	chargedWords = map[string]quotav1.Charged{
		"start": quotav1.Charged_CHARGED_START, "end": quotav1.Charged_CHARGED_END, "during": quotav1.Charged_CHARGED_DURING,
	}
	settleWords = map[string]quotav1.SettleMode{
		"actual": quotav1.SettleMode_SETTLE_MODE_ACTUAL, "max": quotav1.SettleMode_SETTLE_MODE_MAX,
	}
	zonesWords = map[string]quotav1.Zones{
		"smooth": quotav1.Zones_ZONES_SMOOTH, "strict": quotav1.Zones_ZONES_STRICT,
	}
	anchorWords = map[string]quotav1.Anchor{
		"calendar": quotav1.Anchor_ANCHOR_CALENDAR, "provider": quotav1.Anchor_ANCHOR_PROVIDER,
	}
	classWords = map[string]quotav1.Class{
		"critical": quotav1.Class_CLASS_CRITICAL, "standard": quotav1.Class_CLASS_STANDARD,
		"background": quotav1.Class_CLASS_BACKGROUND,
	}
)

// wordOf returns the word for a value, empty for a value without one (the default, which the file omits).
func wordOf[V comparable](words map[string]V, value V) string {
	for word, v := range words { // the order does not matter: each value has one word
		if v == value {
			return word
		}
	}
	return ""
}

// ParseClass returns the class with a name, and whether there is one.
func ParseClass(word string) (quotav1.Class, bool) {
	class, ok := classWords[word]
	return class, ok
}

// ClassWord returns the name of a class, empty for the unspecified one.
func ClassWord(class quotav1.Class) string { return wordOf(classWords, class) }
