// Command etcd runs one etcd member for tests: all of its data is lost with its folder, and nothing
// is synced to disk, so it is fast and survives no power failure. It is ready when it prints
// "ready". Its flags are those of etcd that controller-runtime's envtest gives.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends or the member fails.
func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("etcd", flag.ContinueOnError)
	dir := flags.String("data-dir", "", "folder of the data")
	client := flags.String("listen-client-urls", "http://127.0.0.1:2379", "URL that clients use")
	peer := flags.String("listen-peer-urls", "http://127.0.0.1:2380", "URL that peers would use")
	_ = flags.String("advertise-client-urls", "", "that of listen-client-urls: there is one")
	_ = flags.Bool("unsafe-no-fsync", true, "nothing is synced to disk in any case")
	if err := flags.Parse(args); err != nil {
		return err
	}
	clientURL, err := url.Parse(*client)
	if err != nil {
		return err
	}
	peerURL, err := url.Parse(*peer)
	if err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Name = "test"
	cfg.Dir = *dir
	cfg.UnsafeNoFsync = true
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*clientURL}, []url.URL{*clientURL}
	cfg.ListenPeerUrls = []url.URL{*peerURL} // the port 0 too: nobody has to know it
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.QuotaBackendBytes = 8 << 30
	cfg.LogLevel = "warn"
	cfg.WarningUnaryRequestDuration = time.Second // zero, the default here, means a line for every request
	member, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer member.Close()
	select {
	case <-member.Server.ReadyNotify():
		fmt.Println("ready")
	case err := <-member.Err():
		return err
	case <-ctx.Done():
		return nil
	}
	select {
	case err := <-member.Err():
		return err
	case <-ctx.Done():
		return nil
	}
}
