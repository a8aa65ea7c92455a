//go:build unix

// Box is the program in the images of the node tests: one static binary whose
// sub-commands are what containers do. It is process 1 of its container, so that it
// has to take SIGTERM by itself: it ends with 143.
//
//	pause                    wait for SIGTERM, and end with 0
//	sleep D                  run for a duration, then end with 0
//	exit N [D]               end with a code, after a duration
//	crash [D]                print a line, and end with 1 after a duration
//	print TEXT               print a line
//	write PATH TEXT          write a file
//	cat PATH                 print a file
//	env [NAME]               print the environment, or one variable
//	mark PATH COMMAND...     append the time to a file, then go on as COMMAND
//	alone FOLDER COMMAND...  the same in FOLDER/starts, holding FOLDER/lock; one who finds it held says so in FOLDER/twice
//	ignore-term              ignore SIGTERM, for ever
//	eat MB                   hold that much memory, then sleep
//	serve ADDRESS            answer HTTP with the host name
//	call URL TOKEN CA        print what a GET answers, with a bearer token and an authority's certificate from files
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	codeUsage = 64
	codeTerm  = 143
)

// ended is an exit code as an error.
type ended int

func (e ended) Error() string { return "exit " + strconv.Itoa(int(e)) }

func main() {
	err := run(os.Args[1:], os.Stdout)
	code, isCode := errors.AsType[ended](err)
	switch {
	case isCode:
		os.Exit(int(code))
	case err != nil:
		fmt.Fprintln(os.Stderr, "box:", err)
		os.Exit(codeUsage)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("want a command")
	}
	name, args := args[0], args[1:]
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	switch name {
	case "pause":
		return asCode(wait("", io.Discard), 0)
	case "sleep":
		return wait(arg(0), out)
	case "exit", "crash":
		code, after := 1, arg(0)
		if name == "exit" {
			n, err := strconv.Atoi(arg(0))
			if err != nil {
				return err
			}
			code, after = n, arg(1)
		} else {
			fmt.Fprintln(os.Stderr, "box: crash")
		}
		if after == "" {
			return ended(code)
		}
		if err := wait(after, out); err != nil {
			return err
		}
		return ended(code)
	case "print":
		_, err := fmt.Fprintln(out, arg(0))
		return err
	case "write":
		return os.WriteFile(arg(0), []byte(arg(1)), 0o644)
	case "cat":
		text, err := os.ReadFile(arg(0))
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	case "env":
		return env(arg(0), out)
	case "mark":
		if len(args) < 2 {
			return errors.New("mark wants a path and a command")
		}
		if err := mark(args[0]); err != nil {
			return err
		}
		return run(args[1:], out)
	case "alone":
		if len(args) < 2 {
			return errors.New("alone wants a folder and a command")
		}
		if err := alone(args[0]); err != nil {
			return err
		}
		return run(args[1:], out)
	case "ignore-term":
		signal.Ignore(syscall.SIGTERM)
		fmt.Fprintln(out, ready)
		for {
			time.Sleep(time.Hour)
		}
	case "eat":
		return eat(arg(0), out)
	case "call":
		return call(arg(0), arg(1), arg(2), out)
	case "serve":
		return http.ListenAndServe(arg(0), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			host, _ := os.Hostname()
			fmt.Fprintln(w, host)
		}))
	}
	return fmt.Errorf("unknown command %q", name)
}

// ready is printed once SIGTERM is taken care of: before that, process 1 ignores it.
const ready = "ready"

// wait waits for a duration, or without one for ever; SIGTERM ends it with 143.
func wait(text string, out io.Writer) error {
	var after <-chan time.Time
	if text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			return err
		}
		after = time.After(d)
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	fmt.Fprintln(out, ready)
	select {
	case <-after:
		return nil
	case <-term:
		return ended(codeTerm)
	}
}

func asCode(err error, code int) error {
	if _, ok := errors.AsType[ended](err); ok {
		return ended(code)
	}
	return err
}

func env(name string, out io.Writer) error {
	if name != "" {
		_, err := fmt.Fprintln(out, os.Getenv(name))
		return err
	}
	for _, pair := range os.Environ() {
		if _, err := fmt.Fprintln(out, pair); err != nil {
			return err
		}
	}
	return nil
}

func mark(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, time.Now().UTC().Format(time.RFC3339Nano))
	return errors.Join(err, f.Close())
}

// alone takes a lock that lasts as long as the process.
func alone(folder string) error {
	fd, err := syscall.Open(folder+"/lock", syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("%s/lock: %w", folder, err), mark(folder+"/twice"))
	}
	return mark(folder + "/starts")
}

func eat(text string, out io.Writer) error {
	mb, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	var held [][]byte
	for range mb {
		block := make([]byte, 1<<20)
		for i := range block {
			block[i] = byte(i)
		}
		held = append(held, block)
	}
	fmt.Fprintln(out, "ate", len(held), "MB")
	return wait("", out)
}

func call(url, tokenFile, caFile string, out io.Writer) error {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(caFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return fmt.Errorf("%s holds no certificate", caFile)
	}
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	fmt.Fprintln(out, answer.Status)
	_, err = io.Copy(out, answer.Body)
	return err
}
