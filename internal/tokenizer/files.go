package tokenizer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	// MaxFileBytes is the size of the largest tokenizer.json that is read.
	MaxFileBytes = 512 << 20
	// The same for the other JSON files, for one chat template, and the number of those in
	// additional_chat_templates or in one file.
	maxConfigBytes   = 16 << 20
	maxTemplateBytes = 4 << 20
	maxTemplates     = 64
	// The same for parts of tokenizer.json, whose values take up to thirty times their text:
	// added_tokens, and each component but the model. Gemma 3 has 1.2 MB of the former.
	maxAddedBytes     = 16 << 20
	maxComponentBytes = 1 << 20
)

// loaded are the files that Load looks at, beside those in additional_chat_templates.
var loaded = []string{
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
	"chat_template.jinja", "chat_template.json",
}

// Stamp is a text that changes when a file changes that Load reads from dir: their sizes,
// times and modes.
func Stamp(dir string) string {
	extra, _ := additional(dir) // what is wrong with them is Load's error
	var b strings.Builder
	for _, name := range slices.Concat(loaded, extra) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", name, errors.Unwrap(err))
			continue
		}
		fmt.Fprintf(&b, "%s: %d %d %v\n", name, info.Size(), info.ModTime().UnixNano(), info.Mode())
	}
	return b.String()
}

// additional lists the files of additional_chat_templates, relative to dir.
func additional(dir string) (names []string, err error) {
	paths, err := filepath.Glob(filepath.Join(escapeGlob(dir), "additional_chat_templates", "*.jinja"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	for _, path := range paths {
		names = append(names, filepath.Join("additional_chat_templates", filepath.Base(path)))
	}
	if len(names) > maxTemplates {
		return names[:maxTemplates], fmt.Errorf("additional_chat_templates: %d templates are more than the limit of %d", len(names), maxTemplates)
	}
	return names, nil
}

// escapeGlob quotes what filepath.Glob would take for a pattern.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// readFile reads a regular file of at most limit bytes, or what a link to one names; a file
// that does not exist is nil. Pipes and devices are refused: they may have no end, or never
// begin.
func readFile(dir, name string, limit int64) ([]byte, error) {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = checkFile(name, info, limit)
	}
	if err != nil {
		return nil, err
	}
	// Another file may be there by now: a pipe must not hold the opening up.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err == nil {
		err = checkFile(name, info, limit)
	}
	if err != nil {
		return nil, err
	}
	return readAll(name, f, info.Size(), limit)
}

func checkFile(name string, info fs.FileInfo, limit int64) error {
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: not a regular file (%v)", name, info.Mode())
	case info.Size() > limit:
		return tooLarge(name, info.Size(), limit)
	}
	return nil
}

func tooLarge(name string, size, limit int64) error {
	return fmt.Errorf("%s: %d bytes or more are over the limit of %d", name, size, limit)
}

// readAll reads a file whose size is a guess: it may grow, and /proc says 0.
func readAll(name string, f io.Reader, size, limit int64) ([]byte, error) {
	data, rest := make([]byte, 0, size+1), io.LimitReader(f, limit+1)
	for {
		n, err := rest.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case int64(len(data)) > limit:
			return nil, tooLarge(name, int64(len(data)), limit)
		case err == io.EOF:
			return data, nil
		case err != nil:
			return nil, err
		}
		data = slices.Grow(data, 1)
	}
}
