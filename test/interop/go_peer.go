// go_peer HOSTS SESSION_TIMEOUT_MS: the lock of samuel/go-zookeeper, driven by lines.
//
// The protocol is described at the head of test/perl/ZkPeers.pm. Kinds: mutex. The library
// cannot tell who takes part, so "participants" lists the children.
//
// Copyright (c) 2026, zklock developers
package main

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/samuel/go-zookeeper/zk"
)

var (
	conn *zk.Conn
	out  sync.Mutex
)

func say(fields ...string) {
	out.Lock()
	defer out.Unlock()
	fmt.Println(strings.Join(fields, "\t"))
}

func fail(id string, err error) {
	say(id, "error", strings.Join(strings.Fields(err.Error()), " "))
}

func serve(id string, commands chan []string) {
	var held *zk.Lock

	for c := range commands {
		switch {
		case c[0] == "acquire" && c[1] == "mutex":
			lock := zk.NewLock(conn, c[2], zk.WorldACL(zk.PermAll))
			if err := lock.Lock(); err != nil {
				fail(id, err)
				continue
			}
			held = lock
			// no method tells
			path := reflect.ValueOf(lock).Elem().FieldByName("lockPath").String()
			say(id, "acquired", path[strings.LastIndex(path, "/")+1:])
		case c[0] == "release" && held != nil:
			if err := held.Unlock(); err != nil {
				fail(id, err)
				continue
			}
			held = nil
			say(id, "released")
		case c[0] == "participants":
			children, _, err := conn.Children(c[2])
			if err != nil {
				fail(id, err)
				continue
			}
			say(append([]string{id, "participants"}, children...)...)
		default:
			say(id, "error", "cannot do that")
		}
	}
}

func main() {
	timeout, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	var events <-chan zk.Event
	conn, events, err = zk.Connect(strings.Split(os.Args[1], ","), time.Duration(timeout)*time.Millisecond, zk.WithLogInfo(false))
	if err != nil {
		panic(err)
	}
	for event := range events {
		if event.State == zk.StateHasSession {
			break
		}
	}
	go func() {
		for range events {
		}
	}()
	say("-", "ready")

	threads := map[string]chan []string{}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		c := strings.Split(in.Text(), "\t")
		if threads[c[0]] == nil {
			threads[c[0]] = make(chan []string, 100)
			go serve(c[0], threads[c[0]])
		}
		threads[c[0]] <- c[1:]
	}
	conn.Close()
}
