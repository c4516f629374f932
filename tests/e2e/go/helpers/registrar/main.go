// Tells kubelet about a driver: what node-driver-registrar does, with its flags, as that is not to be had as a Go module.
package main

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type server struct {
	registration.UnimplementedRegistrationServer
	info *registration.PluginInfo
}

func (s *server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return s.info, nil
}

// NotifyRegistrationStatus ends the process when kubelet refuses the driver, so that a restart tries again.
func (s *server) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		log.Fatalf("kubelet refuses the driver: %s", status.Error)
	}
	log.Print("registered")
	return &registration.RegistrationStatusResponse{}, nil
}

// The driver's name, as soon as it answers.
func driverName(socket string, limit time.Duration) string {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		cancel()
		if err == nil {
			return info.GetName()
		}
		log.Printf("the driver does not answer yet: %v", err)
	}
}

func main() {
	socket := flag.String("csi-address", "/csi/csi.sock", "the driver's socket")
	endpoint := flag.String("kubelet-registration-path", "", "the same, as kubelet sees it")
	directory := flag.String("plugin-registration-path", "/registration", "kubelet's plugins_registry")
	health := flag.String("http-endpoint", "", "where to serve /healthz")
	limit := flag.Duration("timeout", time.Second, "how long to wait for an answer of the driver")
	flag.String("v", "", "ignored")
	flag.Parse()
	if *endpoint == "" {
		log.Fatal("--kubelet-registration-path is missing")
	}

	name := driverName(*socket, *limit)
	own := filepath.Join(*directory, name+"-reg.sock")
	if err := os.Remove(own); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Fatal(err)
	}
	syscall.Umask(0o077)
	listener, err := net.Listen("unix", own)
	if err != nil {
		log.Fatal(err)
	}
	if *health != "" {
		http.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
		go func() { log.Fatal(http.ListenAndServe(*health, nil)) }()
	}

	service := grpc.NewServer()
	registration.RegisterRegistrationServer(service, &server{info: &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              name,
		Endpoint:          *endpoint,
		SupportedVersions: []string{"1.0.0"},
	}})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		// This removes the socket, by which kubelet knows that the driver is gone.
		service.Stop()
	}()
	if err := service.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
