//go:build race

package testcluster_test

// raceEnabled makes the processes of the live tests run under the race detector too.
const raceEnabled = true
