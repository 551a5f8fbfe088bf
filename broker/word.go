package broker

import "strings"

// A word is from least to most letters, digits, _ and -. It and isHost are code and no
// patterns: those compiled, a function would hold 300 KB more before its first event.
type word struct{ least, most int }

// MatchString says whether s is such a word.
func (w word) MatchString(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-':
		default:
			return false
		}
	}
	return w.least <= len(s) && len(s) <= w.most
}

// isHost says whether s is a host of at least two labels, as the DNS has them, in lower case.
func isHost(s string) bool {
	if !strings.Contains(s, ".") {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return false
		}
	}
	return true
}
