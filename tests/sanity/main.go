// Runs csi-sanity, the suite of csi-test, as its own command does, but for one thing: what is sent is a copy of the
// request.
//
// The spec "should succeed when creating a snapshot with accessibility requirements" compares the topology in the answer
// with one that was part of a request, field by field, also those that are internal to the protobuf library. Sending a
// message changes one of them (the size that the encoder keeps), so that equal topologies are never found equal. With a
// copy sent, the suite's own message stays as it is, and the spec tests what it says.
package main

import (
	"context"
	"flag"
	"os"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"
)

// outcome is what the suite tells about itself.
type outcome struct{ failed bool }

func (o *outcome) Fail() { o.failed = true }

func sendCopy(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	if message, ok := request.(proto.Message); ok {
		request = proto.Clone(message)
	}
	return invoke(ctx, method, request, reply, conn, options...)
}

func main() {
	config := sanity.NewTestConfig()
	for name, value := range map[string]*string{
		"endpoint":                    &config.Address,
		"controllerendpoint":          &config.ControllerAddress,
		"mountdir":                    &config.TargetPath,
		"stagingdir":                  &config.StagingPath,
		"secrets":                     &config.SecretsFile,
		"testvolumeaccesstype":        &config.TestVolumeAccessType,
		"testvolumeparameters":        &config.TestVolumeParametersFile,
		"testvolumemutableparameters": &config.TestVolumeMutableParametersFile,
		"testsnapshotparameters":      &config.TestSnapshotParametersFile,
	} {
		flag.StringVar(value, "csi."+name, *value, "as of csi-sanity")
	}
	flag.Int64Var(&config.TestVolumeSize, "csi.testvolumesize", config.TestVolumeSize, "as of csi-sanity")
	flag.Int64Var(&config.TestVolumeExpandSize, "csi.testvolumeexpandsize", config.TestVolumeExpandSize, "as of csi-sanity")
	flag.BoolVar(&config.TestNodeVolumeAttachLimit, "csi.testnodevolumeattachlimit", false, "as of csi-sanity")
	flag.Parse()

	config.DialOptions = append(config.DialOptions, grpc.WithUnaryInterceptor(sendCopy))
	config.ControllerDialOptions = append(config.ControllerDialOptions, grpc.WithUnaryInterceptor(sendCopy))
	klog.SetOutput(ginkgo.GinkgoWriter)
	var result outcome
	sanity.Test(&result, config)
	if result.failed {
		os.Exit(1)
	}
}
