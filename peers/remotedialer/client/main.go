// The client of remotedialer as its users build it: dials a server, executes what it is told to dial, and comes again.
package main

import (
	"context"
	"flag"
	"net/http"
	"os"
	"os/signal"
	"strings"
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
	given := headers{}
	url := flag.String("url", "", "ws:// or wss:// address of the server")
	allow := flag.String("allow", "", "the only address that may be dialled (default: all)")
	retry := flag.Duration("retry", 5*time.Second, "pause before connecting again")
	flag.Var(given, "header", "'Name: value', may be repeated")
	flag.Parse()
	logrus.SetLevel(logrus.WarnLevel)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	authorize := func(proto, address string) bool { return *allow == "" || address == *allow }
	for ctx.Err() == nil {
		err := remotedialer.ConnectToProxy(ctx, *url, http.Header(given), authorize, nil, nil)
		logrus.Warnf("session over: %v", err)
		select {
		case <-ctx.Done():
		case <-time.After(*retry):
		}
	}
}
