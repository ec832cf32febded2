package arch

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go/parser"
	"go/token"
)

type pkg struct {
	ImportPath string
	Dir        string
	Imports    []string
	GoFiles    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Imports,GoFiles", Module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) > 0 {
			pkgs = append(pkgs, p)
		}
	}
	if len(pkgs) < 3 {
		t.Fatalf("go list shows %d packages", len(pkgs))
	}
	return pkgs
}

func layer(path string) int {
	for i, l := range Layers {
		if slices.Contains(l, path) {
			return i + 1
		}
	}
	return 0
}

func TestImports_GoStrictlyDownward(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, Module+"/")
		if layer(from) == 0 {
			t.Errorf("%s is in no layer: add it to arch.Layers or make it a file of another package", from)
			continue
		}
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, Module+"/")
			if ours && layer(to) >= layer(from) {
				t.Errorf("%s (layer %d) imports %s (layer %d)", from, layer(from), to, layer(to))
			}
		}
	}
}

func TestImports_LibrariesStayHome(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, Module+"/")
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range f.Imports {
				imp, _ := strconv.Unquote(spec.Path.Value)
				first, _, _ := strings.Cut(imp, "/")
				if !strings.Contains(first, ".") || strings.HasPrefix(imp, Module) {
					continue
				}
				lib := home(imp)
				if lib == "" {
					t.Errorf("%s/%s imports %s, which has no home in arch.Homes", from, file, imp)
				} else if !slices.Contains(Homes[lib], from) && !(slices.Contains(Homes[lib], "metrics.go") && slices.Contains(p.GoFiles, "metrics.go")) {
					t.Errorf("%s/%s imports %s, whose home is %v", from, file, imp, Homes[lib])
				}
			}
		}
	}
}

// home returns the longest key of Homes that imp lies in.
func home(imp string) string {
	var best string
	for lib := range Homes {
		if (imp == lib || strings.HasPrefix(imp, lib+"/")) && len(lib) > len(best) {
			best = lib
		}
	}
	return best
}

func TestPackages_AreDocumented(t *testing.T) {
	for _, p := range packages(t) {
		var doc string
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil {
				if doc != "" {
					t.Errorf("%s has two package comments", p.ImportPath)
				}
				doc = f.Doc.Text()
			}
		}
		if strings.Count(doc, "\n") < 5 {
			t.Errorf("%s: the package comment has %d lines, want at least 5", p.ImportPath, strings.Count(doc, "\n"))
		}
	}
}
