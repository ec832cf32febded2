package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// fieldCases are the rows that docs/field-cases.md must have, by section.
var fieldCases = map[string][]int{
	"A": {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14},
	"B": {16, 17, 18, 19, 21, 23, 26, 27, 28, 29, 30, 31},
	"C": {32, 37, 39, 40},
	"D": {43, 44, 46, 47, 49, 50, 51, 53, 54, 57, 58, 59, 60},
	"E": {61, 63, 65, 68, 69, 70},
	"F": {72, 74, 75},
	"G": {77, 78, 80, 81},
	"H": {88, 89, 91},
}

var (
	caseRow   = regexp.MustCompile(`^\| FC-(\d\d) \| (.+) \| (.+) \|$`)
	testNames = regexp.MustCompile("`([a-z/]+)` ([A-Za-z0-9_, ]+)")
	testFunc  = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
)

// TestFieldCases_HaveTests: every row of docs/field-cases.md names tests that exist, at
// least one of them after the row, and every test named after a row is in it.
func TestFieldCases_HaveTests(t *testing.T) {
	doc, err := os.ReadFile("../../docs/field-cases.md")
	if err != nil {
		t.Fatal(err)
	}
	unnamed := testsOfCases(t)
	section, seen := "", map[string]bool{}
	for line := range strings.Lines(string(doc)) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section, _, _ = strings.Cut(title, ".")
		}
		row := caseRow.FindStringSubmatch(line)
		if row == nil {
			if strings.HasPrefix(line, "| FC") {
				t.Errorf("row that cannot be read: %s", line)
			}
			continue
		}
		seen[section+row[1]] = true
		own := false
		for _, group := range testNames.FindAllStringSubmatch(row[3], -1) {
			exist := testsIn(t, filepath.Join("../..", group[1]))
			for name := range strings.SplitSeq(group[2], ", ") {
				if !exist[name] {
					t.Errorf("FC-%s: package %s has no test %s", row[1], group[1], name)
				}
				own = own || strings.Contains(name, "FC"+row[1]+"_")
				delete(unnamed, group[1]+" "+name)
			}
		}
		if !own {
			t.Errorf("FC-%s names no test of its own", row[1])
		}
	}
	for section, rows := range fieldCases {
		for _, n := range rows {
			if !seen[fmt.Sprintf("%s%02d", section, n)] {
				t.Errorf("section %s has no row FC-%02d", section, n)
			}
		}
	}
	for name := range unnamed {
		t.Errorf("in no row of docs/field-cases.md: %s", name)
	}
}

// testsIn returns the names of the tests in a directory.
func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	names := map[string]bool{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(raw), -1) {
			names[m[1]] = true
		}
	}
	return names
}

// testsOfCases returns "package test" of each test of the module that is named after a case.
func testsOfCases(t *testing.T) map[string]bool {
	t.Helper()
	of := regexp.MustCompile(`FC\d\d_`)
	out := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		pkg, _ := filepath.Rel("../..", path)
		for name := range testsIn(t, path) {
			if of.MatchString(name) {
				out[filepath.ToSlash(pkg)+" "+name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
