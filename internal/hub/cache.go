package hub

import (
	"crypto/rand"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// repo is one model's folder in the cache.
type repo struct {
	root    string
	symlink func(target, name string) error
}

func (h *Hub) repo(id string) repo {
	return repo{
		root:    filepath.Join(h.cache, "models--"+strings.ReplaceAll(id, "/", "--")),
		symlink: h.symlink,
	}
}

func (r repo) snapshot(commit string) string   { return filepath.Join(r.root, "snapshots", commit) }
func (r repo) file(commit, name string) string { return filepath.Join(r.snapshot(commit), name) }
func (r repo) blob(etag string) string         { return filepath.Join(r.root, "blobs", etag) }
func (r repo) refFile(revision string) string {
	return filepath.Join(r.root, "refs", filepath.FromSlash(revision))
}
func (r repo) absentFile(commit, name string) string {
	return filepath.Join(r.root, ".no_exist", commit, name)
}

// has reports a cached file. A link whose blob is gone counts as not cached.
func (r repo) has(commit, name string) bool { return isFile(r.file(commit, name)) }

// absent reports a file that the repository is known not to have.
func (r repo) absent(commit, name string) bool { return isFile(r.absentFile(commit, name)) }

func isFile(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular()
}

// readSmall reads a file that holds one word: what is no regular file may have no end.
func readSmall(path string) ([]byte, error) {
	if !isFile(path) {
		return nil, fs.ErrNotExist
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 64<<10))
}

// complete reports whether nothing about the commit is left to ask.
func (r repo) complete(commit string) bool {
	for _, name := range optional {
		if !r.has(commit, name) && !r.absent(commit, name) {
			return false
		}
	}
	return r.has(commit, required)
}

// cached returns the commit of the snapshot that the cache holds for a revision, "" if it
// holds none with a tokenizer.json.
func (r repo) cached(revision string) string {
	commit := revision
	if !isCommit(revision) {
		b, err := readSmall(r.refFile(revision))
		if err != nil {
			return ""
		}
		commit = strings.TrimSpace(string(b))
	}
	if !isCommit(commit) || !r.has(commit, required) {
		return ""
	}
	return commit
}

// hasBlob reports a stored content; size is in bytes, negative if not known.
func (r repo) hasBlob(etag string, size int64) bool {
	fi, err := os.Stat(r.blob(etag))
	return err == nil && fi.Mode().IsRegular() && (size < 0 || fi.Size() == size)
}

// setRef remembers the commit of a branch or tag.
func (r repo) setRef(revision, commit string) error {
	path := r.refFile(revision)
	if old, err := readSmall(path); revision == commit || err == nil && string(old) == commit {
		return nil
	}
	return writeFile(path, func(w io.Writer) error {
		_, err := io.WriteString(w, commit)
		return err
	})
}

// setAbsent remembers that the repository has no such file.
func (r repo) setAbsent(commit, name string) error {
	if r.absent(commit, name) {
		return nil
	}
	return writeFile(r.absentFile(commit, name), func(io.Writer) error { return nil })
}

// link puts a stored content into a snapshot.
func (r repo) link(etag, commit, name string) error {
	path := r.file(commit, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	tmp := temporary(path)
	if err := r.symlink(filepath.Join("..", "..", "blobs", etag), tmp); err != nil {
		return r.copyBlob(etag, path)
	}
	if err := os.Rename(tmp, path); err != nil {
		os.Remove(tmp)
		return err
	}
	return nil
}

func (r repo) copyBlob(etag, path string) error {
	src, err := os.Open(r.blob(etag))
	if err != nil {
		return err
	}
	defer src.Close()
	return writeFile(path, func(w io.Writer) error {
		_, err := io.Copy(w, src)
		return err
	})
}

// writeFile makes a file appear at once, with all that fill wrote, or not at all. Its
// permissions follow the umask, since other users' processes may share the cache.
func writeFile(path string, fill func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	tmp := temporary(path)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(tmp)
		}
	}()
	if err := fill(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// temporary returns a name beside path that no other goroutine or process uses.
func temporary(path string) string {
	return fmt.Sprintf("%s.%s.incomplete", path, rand.Text()[:12])
}
