package redis_test

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/deltaplane/deltaplane/services/queue/enginetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// What transactions call, all of Redis 6.2. Of each the keys are the first argument,
// or all of them where that is so.
var allowed = map[string]string{
	"TIME": "", "INFO": "", "PUBLISH": "",
	"UNLINK": "all",
	"HGET":   "first", "HMGET": "first", "HSET": "first", "HDEL": "first", "HEXISTS": "first", "HSCAN": "first",
	"LRANGE": "first", "LTRIM": "first", "RPUSH": "first",
	"ZADD": "first", "ZREM": "first", "ZRANGE": "first", "ZRANGEBYSCORE": "first", "ZSCORE": "first", "ZCARD": "first",
	"SET": "first", "GET": "first", "GETRANGE": "first", "SETRANGE": "first",
}

var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// Redis Cluster and others that route or lock by key need every key named in
// the call; MONITOR shows what scripts really touch.
func TestTransactionsTouchOnlyKeysThatTheyDeclare(t *testing.T) {
	t.Parallel()
	srv := start(t)
	conn, err := net.Dial("tcp", srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(conn, "MONITOR\r\n"); err != nil {
		t.Fatal(err)
	}
	seen, undeclared := map[string]int{}, map[string]int{}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer conn.Close()
	ended := make(chan struct{})
	wg.Go(func() {
		defer close(ended)
		lines := bufio.NewScanner(conn)
		lines.Buffer(nil, 1<<20)
		tx := false
		declared := map[string]bool{}
		for lines.Scan() {
			line := lines.Text()
			args := quoted.FindAllString(line, -1)
			if len(args) == 0 {
				continue
			}
			if slices.Contains(args, `"end of test"`) {
				return
			}
			name := strings.ToUpper(strings.Trim(args[0], `"`))
			if !strings.Contains(line, "[0 lua]") {
				tx = name == "EVALSHA" && len(args) > 3 && strings.Contains(line, ":rq:")
				clear(declared)
				if tx {
					for _, k := range args[3 : 3+redis.KeyCount] {
						declared[k] = true
					}
				}
				continue
			}
			if !tx {
				continue
			}
			seen[name]++
			touched := args[1:]
			switch allowed[name] {
			case "":
				touched = nil
			case "first":
				touched = args[1:2]
			}
			for _, k := range touched {
				if !declared[k] {
					undeclared[name+" "+k]++
				}
			}
		}
	})
	_, fx := open(t, srv.URL())
	enginetest.Model(t, fx, 1, 4000)
	if err := raw(t, srv).Echo(t.Context(), "end of test").Err(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if len(undeclared) > 0 {
		t.Errorf("touched without being declared: %v", undeclared)
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if _, ok := allowed[name]; !ok {
			t.Errorf("%s is called, and is not known to this test", name)
		}
	}
	if seen["HMGET"] < 100 || seen["LTRIM"] == 0 || seen["ZSCORE"] == 0 {
		t.Errorf("the history met too little: %v", seen)
	}
}
