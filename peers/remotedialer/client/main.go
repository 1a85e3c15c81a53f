// A remotedialer client: connects to a server, dials the addresses that the server requests, and reconnects.
package main

import (
	"context"
	"flag"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rancher/remotedialer"
	"github.com/sirupsen/logrus"
)

type headers http.Header

func (h headers) String() string { return "" }

func (h headers) Set(value string) error {
	name, text, _ := strings.Cut(value, ":")
	http.Header(h).Add(strings.TrimSpace(name), strings.TrimSpace(text))
	return nil
}

func main() {
	extra := headers{}
	url := flag.String("url", "", "ws:// or wss:// address of the server")
	allow := flag.String("allow", "", "the only address that may be dialled (default: all)")
	retry := flag.Duration("retry", 5*time.Second, "pause before connecting again")
	sessions := flag.Int("sessions", 1, "so many at once; '{}' in headers is the number of each")
	flag.Var(extra, "header", "'Name: value', may be repeated")
	flag.Parse()
	logrus.SetLevel(logrus.WarnLevel)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	authorize := func(proto, address string) bool { return *allow == "" || address == *allow }
	var all sync.WaitGroup
	for number := range *sessions {
		all.Go(func() { keepConnected(ctx, *url, numbered(extra, number), authorize, *retry) })
	}
	all.Wait()
}

func keepConnected(ctx context.Context, url string, headers http.Header, authorize remotedialer.ConnectAuthorizer, retry time.Duration) {
	for ctx.Err() == nil {
		err := remotedialer.ConnectToProxy(ctx, url, headers, authorize, nil, nil)
		logrus.Warnf("session over: %v", err)
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

func numbered(extra headers, number int) http.Header {
	own := http.Header{}
	for name, values := range extra {
		for _, value := range values {
			own.Add(name, strings.ReplaceAll(value, "{}", strconv.Itoa(number)))
		}
	}
	return own
}
