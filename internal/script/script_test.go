package script

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestRun_ParsesCases(t *testing.T) {
	Run(t, filepath.Join("testdata", "echo"), func(c *Cmd) string {
		switch c.Name {
		case "echo":
			return c.Input
		case "args":
			return fmt.Sprintf("%v %d %v %s", c.Args, c.Int("n", 1), c.Float("f", 0.5), c.String("s", "none"))
		case "blank":
			return "a\n\nb"
		}
		return "unknown"
	})
}

func TestRun_UpdateRewritesOutputOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, []byte("# kept\nsay\ninput\n----\nold\n\nsay x=1\n----\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	*update = true
	defer func() { *update = false }()
	Run(t, path, func(c *Cmd) string { return "new " + c.String("x", "") })
	got, _ := os.ReadFile(path)
	want := "# kept\nsay\ninput\n----\nnew \n\nsay x=1\n----\nnew 1\n"
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
