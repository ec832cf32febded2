package main

import "strings"

// closest returns the known names that a mistaken one may stand for, at most two, the
// nearest first: those within an edit distance of a third of their length.
func closest(name string, known []string) []string {
	name = strings.ReplaceAll(strings.ToLower(name), "-", "_")
	var best, second string
	first, next := 1<<10, 1<<10
	for _, k := range known {
		d := editDistance(name, strings.ReplaceAll(strings.ToLower(k), "-", "_"))
		switch {
		case d > max(2, len(k)/3) || d >= len(k):
		case d < first:
			best, second, first, next = k, best, d, first
		case d < next:
			second, next = k, d
		}
	}
	switch {
	case best == "":
		return nil
	case second == "" || next > first+1:
		return []string{best}
	}
	return []string{best, second}
}

// editDistance is Levenshtein's, of bytes, with a swap of neighbours as one edit.
func editDistance(a, b string) int {
	before, above := make([]int, len(b)+1), make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(above[j]+cost, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, above, row = above, row, before
	}
	return above[len(b)]
}

// didYouMean is what to put behind an error; "" where nothing is near.
func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ", did you mean " + strings.Join(names, " or ")
}
