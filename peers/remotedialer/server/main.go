// A remotedialer server. Clients connect to /connect with the header X-Tunnel-Key (the client's key) and the token.
// Each -forward key=listen=target listens on TCP and dials the target through the client of that key.
// Targets for measurements: -echo, -sink and -source listen on TCP and echo, discard, or produce data endlessly.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"

	"github.com/rancher/remotedialer"
	"github.com/sirupsen/logrus"
)

type list []string

func (l *list) String() string { return "" }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

func main() {
	var forwards, peers list
	listen := flag.String("listen", "", "host:port for tunnels")
	token := flag.String("token", "", "what clients must send as X-API-Tunnel-Token")
	peerID := flag.String("peer-id", "", "our name among peers")
	echo := flag.String("echo", "", "host:port")
	sink := flag.String("sink", "", "host:port")
	source := flag.String("source", "", "host:port")
	flag.Var(&forwards, "forward", "key=listen=target, may be repeated")
	flag.Var(&peers, "peer", "id=url, may be repeated")
	flag.Parse()
	logrus.SetLevel(logrus.WarnLevel)

	serve(*echo, func(c net.Conn) { io.Copy(c, c) })
	serve(*sink, func(c net.Conn) { io.Copy(io.Discard, c) })
	serve(*source, func(c net.Conn) { io.Copy(c, endless{}) })
	if *listen == "" {
		select {}
	}

	server := remotedialer.New(func(r *http.Request) (string, bool, error) {
		key := r.Header.Get("X-Tunnel-Key")
		return key, key != "" && r.Header.Get(remotedialer.Token) == *token, nil
	}, remotedialer.DefaultErrorWriter)
	server.PeerID, server.PeerToken = *peerID, *token
	for _, peer := range peers {
		id, url, _ := strings.Cut(peer, "=")
		server.AddPeer(url, id, *token)
	}
	for _, forward := range forwards {
		part := strings.SplitN(forward, "=", 3)
		dial := server.Dialer(part[0])
		serve(part[1], func(c net.Conn) { join(c, dial, part[2]) })
	}
	http.Handle("/connect", server)
	http.HandleFunc("/clients", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, strings.Join(server.ListClients(), "\n"))
	})
	log.Fatal(http.ListenAndServe(*listen, nil))
}

func serve(address string, handle func(net.Conn)) {
	if address == "" {
		return
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				log.Fatal(err)
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
}

// join copies in both directions. Tunnel errors are sent to the connected client as text.
func join(local net.Conn, dial remotedialer.Dialer, target string) {
	remote, err := dial(context.Background(), "tcp", target)
	if err != nil {
		fmt.Fprintf(local, "tunnel: %v", err)
		return
	}
	defer remote.Close()
	go func() {
		defer remote.Close()
		io.Copy(remote, local)
	}()
	if _, err := io.Copy(local, remote); err != nil {
		fmt.Fprintf(local, "tunnel: %v", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
