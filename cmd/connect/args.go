package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/integrations"
)

// maxArgFile bounds the content of arg=@file: no request can hold more.
const maxArgFile = 64 << 10

const argsHint = `write arg=value, arg=@file for a file's content, arg:=JSON for other JSON; a list repeats arg=, a map arg=key=value`

// parseArgs reads the words after an operation's name. What the values must be is the
// manifest's to say; here only their form is read. No message repeats a value.
func parseArgs(op *integrations.Op, words []string) (integrations.Args, error) {
	args := make(integrations.Args)
	for i, word := range words {
		name, text, ok := strings.Cut(word, "=")
		if !ok {
			return nil, usagef(argsHint, "word %d after the operation is not arg=value", i+1)
		}
		if name, asJSON := strings.CutSuffix(name, ":"); asJSON {
			if _, twice := args[name]; twice {
				return nil, usagef("", "%s is given twice", name)
			}
			v, err := jsonArg(name, text)
			if err != nil {
				return nil, err
			}
			args[name] = v
			continue
		}
		kind := "string"
		if a := op.Args.Get(name); a != nil {
			kind = a.Kind()
		}
		before, given := args[name]
		switch kind {
		case "list":
			items, isList := before.([]any)
			if given && !isList {
				return nil, usagef("", "%s is given twice", name)
			}
			text, err := content(name, text)
			if err != nil {
				return nil, err
			}
			args[name] = append(items, text)
		case "map":
			entries, isMap := before.(map[string]any)
			if given && !isMap {
				return nil, usagef("", "%s is given twice", name)
			}
			key, text, ok := strings.Cut(text, "=")
			if !ok {
				return nil, usagef("repeat it for each: "+name+"=key=value", "%s is a map", name)
			}
			text, err := content(name, text)
			if err != nil {
				return nil, err
			}
			if entries == nil {
				entries = make(map[string]any)
			}
			if _, twice := entries[key]; twice {
				return nil, usagef("", "a key of %s is given twice", name)
			}
			entries[key] = text
			args[name] = entries
		default:
			if given {
				return nil, usagef("only a list or a map is repeated", "%s is given twice", name)
			}
			text, err := content(name, text)
			if err != nil {
				return nil, err
			}
			args[name] = text
		}
	}
	return args, nil
}

// content returns a value as it stands, or what is in the file that @ names; @@ stands
// for one @ at the beginning.
func content(arg, text string) (string, error) {
	name, isFile := strings.CutPrefix(text, "@")
	if !isFile || strings.HasPrefix(name, "@") {
		return name, nil
	}
	data, err := readFile(name, maxArgFile)
	switch {
	case errors.Is(err, errFileTooLarge):
		return "", &integrations.RefusedError{Arg: arg, Reason: err.Error()}
	case err != nil:
		return "", usagef(fmt.Sprintf("%s=@@… stands for a text that begins with @", arg), "%s: the file %s", arg, err)
	}
	return string(data), nil
}

// jsonArg reads one JSON value: no duplicate keys, valid UTF-8, nothing after it.
func jsonArg(name, text string) (any, error) {
	if !jsontext.Value(text).IsValid() {
		return nil, usagef(name+`:=null clears, `+name+`:='["a","b"]' is a list, `+name+"=… a text", "%s:= is not followed by one JSON value", name)
	}
	return decode([]byte(text))
}

var errFileTooLarge = errors.New("the file is larger than fits")

// readFile reads a file that is at most limit bytes long. Its errors do not repeat the
// name, which could be a token that was given in its place.
func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, withoutPath(err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w: at most %d KB", errFileTooLarge, limit>>10)
	}
	return data, nil
}

func withoutPath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return fmt.Errorf("cannot be read: %w", pe.Err)
	}
	return err
}
