// Tells kubelet whether a driver is well: what livenessprobe does, with its flags, as that is not to be had as a Go module.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Asks over a connection of its own, so that each answer tells of the socket as well.
func probe(ctx context.Context, socket string) (bool, error) {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return false, err
	}
	defer connection.Close()
	answer, err := csi.NewIdentityClient(connection).Probe(ctx, &csi.ProbeRequest{})
	if err != nil {
		return false, err
	}
	return answer.GetReady() == nil || answer.GetReady().GetValue(), nil
}

func main() {
	socket := flag.String("csi-address", "/csi/csi.sock", "the driver's socket")
	limit := flag.Duration("probe-timeout", time.Second, "how long to wait for an answer of the driver")
	port := flag.String("health-port", "9808", "where to serve /healthz")
	endpoint := flag.String("http-endpoint", "", "the same with an address")
	flag.String("v", "", "ignored")
	flag.Parse()
	if *endpoint == "" {
		*endpoint = ":" + *port
	}
	http.HandleFunc("/healthz", func(answer http.ResponseWriter, request *http.Request) {
		ctx, cancel := context.WithTimeout(request.Context(), *limit)
		defer cancel()
		if ready, err := probe(ctx, *socket); err != nil || !ready {
			log.Printf("ready %v, error %v", ready, err)
			http.Error(answer, "the driver is not ready", http.StatusInternalServerError)
		}
	})
	log.Fatal(http.ListenAndServe(*endpoint, nil))
}
