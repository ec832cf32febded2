package testcluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The live tests run the built binary: workers, relays, NATS and proxies are processes
// of their own, and only their sockets, signals and exit codes are used.
//
//	clients ──HTTP──▶ proxy ──HTTP──▶ worker
//	  test              ▲                │ ZMQ
//	   │                └──── NATS ◀── relay
//	   └── /debug, /metrics, /cache, signals ──▶ all of them

// soak tells whether tests run at full size.
var soak = os.Getenv("WARMROUTE_SOAK") == "1"

// patience bounds every wait for something that must happen but has no promised time:
// long, because the machine may be busy.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// built is where the binaries of this test run are.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// binary returns the path of warmroute or nats-server, built once a run. NATS is built
// from the module cache: it is the version that go.mod names.
func binary(t testing.TB, name string) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "warmroute-live-"); built.err != nil {
			return
		}
		args := []string{"build", "-o", built.dir + string(filepath.Separator)}
		if raceEnabled {
			args = append(args, "-race")
		}
		cmd := exec.Command("go", append(args, "github.com/warmroute/warmroute/cmd/warmroute", "github.com/nats-io/nats-server/v2")...)
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, name)
}

// ports hands out TCP ports that nobody listens on. They lie below the range from which
// systems take ports for outgoing connections: a process that is dead for a moment must
// find its port free again, and a client that dials it meanwhile must not reach itself.
var ports struct {
	sync.Mutex
	given map[int]bool
}

func freePort(t testing.TB) int { t.Helper(); return freePorts(t, 1) }

// freePorts returns the first of n ports in a row.
func freePorts(t testing.TB, n int) int {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	if ports.given == nil {
		ports.given = map[int]bool{}
	}
next:
	for range 1000 {
		first := 10_000 + rand.IntN(22_000)
		for port := first; port < first+n; port++ {
			if ports.given[port] {
				continue next
			}
			ln, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
			if err != nil {
				continue next
			}
			_ = ln.Close()
		}
		for port := first; port < first+n; port++ {
			ports.given[port] = true
		}
		return first
	}
	t.Fatalf("no %d free ports between 10000 and 32000", n)
	return 0
}

// errPortTaken says that a process found its port in use although it was free a moment
// ago.
var errPortTaken = errors.New("port taken")

// process is one running binary. It ends with the test.
type process struct {
	t    testing.TB
	name string
	bin  string
	args []string
	log  string // file with its stdout and stderr, of all its lives

	mu   sync.Mutex
	cmd  *exec.Cmd
	from int64         // size of log when the present life began
	done chan struct{} // closed when the present life has ended
}

// newProcess describes a process; start runs it.
func newProcess(t testing.TB, name, bin string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, bin: binary(t, bin), args: args, log: filepath.Join(t.TempDir(), name+".log")}
	t.Cleanup(func() {
		p.kill()
		text := p.text()
		if strings.Contains(text, "WARNING: DATA RACE") || strings.Contains(text, "panic: ") || strings.Contains(text, "fatal error: ") {
			t.Errorf("%s crashed or raced:\n%s", p.name, text)
		} else if t.Failed() {
			t.Logf("%s (%v) said at the end:\n%s", p.name, p.args, lastLines(text, 25))
		}
	})
	return p
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

// start begins a life of the process.
func (p *process) start() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close() // the child has its own
	if p.from, err = out.Seek(0, io.SeekEnd); err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(p.bin, p.args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1")
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("start %s: %v", p.name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() { // ends with the process, which kill waits for
		_ = cmd.Wait()
		close(done)
	}()
}

// signal sends sig to the present life.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(sig) // it may just have ended
	}
}

// kill ends the process at once and waits for it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	p.wait(patience)
}

// stop asks the process to end and returns its exit code.
func (p *process) stop() int {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if !p.wait(patience) {
		p.t.Fatalf("%s does not end after SIGTERM:\n%s", p.name, lastLines(p.text(), 40))
	}
	return p.exitCode()
}

// wait returns false when the process still runs after the limit.
func (p *process) wait(limit time.Duration) bool {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done == nil {
		return true
	}
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

func (p *process) running() bool { return !p.wait(0) }

func (p *process) exitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// text returns what all lives of the process printed.
func (p *process) text() string {
	b, _ := os.ReadFile(p.log) // absent before the first start
	return string(b)
}

// lifeText returns what the present life printed.
func (p *process) lifeText() string {
	b, _ := os.ReadFile(p.log)
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(b[min(int(p.from), len(b)):])
}

// ready waits until check succeeds. It fails the test when the process ends before that,
// unless the reason is a port, for which it returns errPortTaken.
func (p *process) ready(check func() error) error {
	p.t.Helper()
	var err error
	waitFor(p.t, p.name+" to be ready", func() error {
		if !p.running() {
			if text := p.lifeText(); strings.Contains(text, "in use") {
				err = errPortTaken
				return nil
			}
			p.t.Fatalf("%s %v ended with code %d:\n%s", p.name, p.args, p.exitCode(), lastLines(p.text(), 40))
		}
		return check()
	})
	return err
}

// waitFor polls check until it returns nil and fails the test when that takes longer
// than patience.
func waitFor(t testing.TB, what string, check func() error) time.Duration {
	t.Helper()
	took, err := poll(patience, check)
	if err != nil {
		t.Fatalf("waited %v for %s: %v", took.Round(time.Millisecond), what, err)
	}
	return took
}

// poll runs check until it returns nil or the limit has passed. It returns the time that
// took and the last error.
func poll(limit time.Duration, check func() error) (time.Duration, error) {
	from := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		took := time.Since(from)
		if err == nil || took > limit {
			return took, err
		}
		<-tick.C
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// starvation measures how late a timer fires: what the machine, not the product, adds to
// every time that a test measures. stop returns the worst delay.
func starvation() (stop func() time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	worst := make(chan time.Duration, 1)
	go func() { // waited for by stop
		var w time.Duration
		for ctx.Err() == nil {
			from := time.Now()
			sleep(ctx, 5*time.Millisecond)
			w = max(w, time.Since(from)-5*time.Millisecond)
		}
		worst <- w
	}()
	return func() time.Duration { cancel(); return <-worst }
}

// openFiles counts the file descriptors of a process; -1 where the system does not tell.
func openFiles(pid int) int {
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		return -1
	}
	return len(entries)
}
