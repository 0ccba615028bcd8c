// Acquires locks as go-zookeeper does, in the version that Debian has. ../README.md lists the orders.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/samuel/go-zookeeper/zk"
)

type quiet struct{}

func (quiet) Printf(string, ...interface{}) {}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type peer struct {
	client *zk.Conn
	held   *zk.Lock
}

func (p *peer) lock(path string) *zk.Lock {
	return zk.NewLock(p.client, path, zk.WorldACL(zk.PermAll))
}

func (p *peer) obey(words []string) string {
	switch words[0] {
	case "lock":
		p.held = p.lock(words[1])
		must(p.held.Lock())
		return "held"
	case "release":
		must(p.held.Unlock())
		return "released"
	case "work":
		rounds, err := strconv.Atoi(words[3])
		must(err)
		return p.work(p.lock(words[1]), rounds, words[4])
	}
	must(fmt.Errorf("unknown order: %v", words))
	return ""
}

func (p *peer) work(lock *zk.Lock, rounds int, counter string) string {
	taken := 0
	for round := 0; round < rounds; round++ {
		must(lock.Lock())
		before, err := os.ReadFile(counter)
		must(err)
		words := strings.Fields(string(before))
		count, err := strconv.Atoi(words[0])
		must(err)
		if words[1] != "go" {
			taken++
		}
		must(os.WriteFile(counter, []byte(fmt.Sprintf("%d go", count+1)), 0o600))
		must(lock.Unlock())
	}
	return fmt.Sprintf("done %d", taken)
}

func main() {
	client, _, err := zk.Connect(strings.Split(os.Args[1], ","), 10*time.Second, zk.WithLogger(quiet{}))
	must(err)
	for client.State() != zk.StateHasSession {
		time.Sleep(10 * time.Millisecond)
	}
	one := &peer{client: client}
	fmt.Println("peer: ready")
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		fmt.Println("peer:", one.obey(strings.Fields(orders.Text())))
	}
	client.Close()
}
