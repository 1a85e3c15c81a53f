// The load generator of the benchmarks: the same requests, from the same client, to the API server of the kubeconfig.
// Bodies and responses are raw bytes, so that only the server is measured.
//
//	load create  -n 5000 -parallel 32 -bytes 3000     creates custom resources, prints rate and latencies
//	load update  -n 5000 -parallel 32                 updates them in turn
//	load list    -rounds 5                            lists all of them, prints time and size
//	load watch   -watchers 500 -events 100            watchers that each see every event
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const collection = "/apis/bench.herder.io/v1/namespaces/bench/things"

var (
	kubeconfig = flag.String("kubeconfig", "", "path of the kubeconfig")
	mode       = flag.String("mode", "create", "create, update, list or watch")
	count      = flag.Int("n", 1000, "how many objects")
	first      = flag.Int("first", 0, "number of the first object")
	parallel   = flag.Int("parallel", 32, "requests under way at once")
	size       = flag.Int("bytes", 3000, "size of an object's payload")
	rounds     = flag.Int("rounds", 3, "how many lists")
	watchers   = flag.Int("watchers", 500, "how many watches")
	gzip       = flag.Bool("gzip", false, "accept compressed answers")
)

type client struct {
	http *http.Client
	host string
}

func main() {
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	must(err)
	shared := newClient(config)
	switch *mode {
	case "create", "update":
		print(shared.write())
	case "list":
		print(shared.list())
	case "watch":
		print(shared.watch(config))
	}
}

// Keeps as many connections as parallel requests, and uses HTTP/2 if the server offers it.
func newClient(config *rest.Config) *client {
	tls, err := rest.TLSConfigFor(config)
	must(err)
	transport := &http.Transport{
		TLSClientConfig: tls, DisableCompression: !*gzip, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: *parallel,
	}
	return &client{&http.Client{Transport: transport}, config.Host}
}

func (c *client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.host+path, bytes.NewReader(body))
	must(err)
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	return c.http.Do(request)
}

func (c *client) write() map[string]any {
	payload := strings.Repeat("x", *size-500)
	times := make([]float64, *count)
	var next, failed atomic.Int64
	var group sync.WaitGroup
	started := time.Now()
	for range *parallel {
		group.Add(1)
		go func() {
			defer group.Done()
			for {
				i := int(next.Add(1)) - 1
				if i >= *count {
					return
				}
				method, path := "POST", collection
				if *mode == "update" {
					method, path = "PATCH", fmt.Sprintf("%s/thing-%06d", collection, *first+i)
				}
				at := time.Now()
				response, err := c.do(context.Background(), method, path, object(*first+i, payload))
				if err != nil {
					failed.Add(1)
					continue
				}
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
				if response.StatusCode >= 300 {
					failed.Add(1)
				}
				times[i] = time.Since(at).Seconds()
			}
		}()
	}
	group.Wait()
	took := time.Since(started).Seconds()
	sort.Float64s(times)
	return map[string]any{
		"rate": float64(*count) / took, "seconds": took, "failed": failed.Load(),
		"p50": times[len(times)/2], "p99": times[len(times)*99/100],
	}
}

func object(i int, payload string) []byte {
	encoded, err := json.Marshal(map[string]any{
		"apiVersion": "bench.herder.io/v1", "kind": "Thing",
		"metadata": map[string]any{
			"name": fmt.Sprintf("thing-%06d", i), "labels": map[string]string{"half": fmt.Sprint(i % 2)},
		},
		"spec": map[string]any{"payload": payload, "number": i, "stamp": time.Now().UnixNano()},
	})
	must(err)
	return encoded
}

func (c *client) list() map[string]any {
	var seconds []float64
	var total int64
	for range *rounds {
		at := time.Now()
		response, err := c.do(context.Background(), "GET", collection, nil)
		must(err)
		total, err = io.Copy(io.Discard, response.Body)
		must(err)
		response.Body.Close()
		seconds = append(seconds, time.Since(at).Seconds())
	}
	sort.Float64s(seconds)
	return map[string]any{"seconds": seconds[len(seconds)/2], "bytes": total}
}

// Each watcher has its own connection, like a separate client.
func (c *client) watch(config *rest.Config) map[string]any {
	var ready, done sync.WaitGroup
	var delivered atomic.Int64
	from := c.revision()
	for range *watchers {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			response, err := separate(config).do(context.Background(), "GET", collection+"?watch=true&resourceVersion="+from, nil)
			must(err)
			ready.Done()
			lines := bufio.NewReaderSize(response.Body, 1<<16)
			for seen := 0; seen < *count; seen++ {
				if _, err := lines.ReadSlice('\n'); err != nil {
					fmt.Fprintln(os.Stderr, "watch ended:", err)
					return
				}
				delivered.Add(1)
			}
			response.Body.Close()
		}()
	}
	ready.Wait()
	started := time.Now()
	*mode = "create"
	written := c.write()
	done.Wait()
	took := time.Since(started).Seconds()
	return map[string]any{
		"events": float64(*count) / took, "deliveries": float64(delivered.Load()) / took, "seconds": took,
		"missing": int64(*watchers)*int64(*count) - delivered.Load(), "failed": written["failed"],
	}
}

func (c *client) revision() string {
	response, err := c.do(context.Background(), "GET", collection+"?limit=1", nil)
	must(err)
	defer response.Body.Close()
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	must(json.NewDecoder(response.Body).Decode(&list))
	return list.Metadata.ResourceVersion
}

func separate(config *rest.Config) *client {
	tls, err := rest.TLSConfigFor(config)
	must(err)
	transport := &http.Transport{TLSClientConfig: tls, DisableCompression: true}
	return &client{&http.Client{Transport: transport}, config.Host}
}

func print(result map[string]any) {
	encoded, err := json.Marshal(result)
	must(err)
	fmt.Println(string(encoded))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}
