// Asks a CRI server as the kubelet and crictl do: with Go's gRPC, over a unix socket, from messages that protoc's Go
// plugin made of our .proto. Prints one JSON object for each question on its standard input:
//
//	list [IMAGE [HANDLER]] | stream | status IMAGE [HANDLER] | pull IMAGE [HANDLER [MILLISECONDS]] |
//	remove IMAGE [HANDLER] | version | handlers
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	cri "imagestore/runtime/v1"
)

// As the kubelet's client allows it.
const messageBytes = 16 * 1024 * 1024

type client struct {
	images  cri.ImageServiceClient
	runtime cri.RuntimeServiceClient
}

func main() {
	dial := func(ctx context.Context, path string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	connection, err := grpc.Dial(os.Args[1], grpc.WithInsecure(), grpc.WithContextDialer(dial),
		grpc.WithAuthority("localhost"), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytes)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	asking := client{cri.NewImageServiceClient(connection), cri.NewRuntimeServiceClient(connection)}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer, err := asking.ask(words[0], append(words[1:], "", "", ""))
		shown := map[string]interface{}{"answer": answer}
		if err != nil {
			shown = map[string]interface{}{"code": status.Code(err).String(), "error": status.Convert(err).Message()}
		}
		text, err := json.Marshal(shown)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(text))
	}
}

func (c client) ask(question string, words []string) (interface{}, error) {
	ctx := context.Background()
	spec := &cri.ImageSpec{Image: words[0], RuntimeHandler: words[1]}
	switch question {
	case "version":
		return c.runtime.Version(ctx, &cri.VersionRequest{Version: "0.1.0"})
	case "handlers":
		answer, err := c.runtime.Status(ctx, &cri.StatusRequest{})
		return answer.GetRuntimeHandlers(), err
	case "list":
		return c.images.ListImages(ctx, &cri.ListImagesRequest{Filter: &cri.ImageFilter{Image: spec}})
	case "stream":
		return c.stream(ctx)
	case "status":
		return c.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
	case "remove":
		return c.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: spec})
	case "pull":
		if words[2] != "" {
			milliseconds, err := strconv.Atoi(words[2])
			if err != nil {
				return nil, err
			}
			limited, cancel := context.WithTimeout(ctx, time.Duration(milliseconds)*time.Millisecond)
			defer cancel()
			ctx = limited
		}
		// An empty configuration, as crictl sends it with --pod-config.
		return c.images.PullImage(ctx, &cri.PullImageRequest{Image: spec, SandboxConfig: &cri.PodSandboxConfig{}})
	}
	return nil, fmt.Errorf("unknown question %q", question)
}

func (c client) stream(ctx context.Context) (interface{}, error) {
	parts, err := c.images.StreamImages(ctx, &cri.StreamImagesRequest{})
	if err != nil {
		return nil, err
	}
	images := []*cri.Image{}
	for {
		part, err := parts.Recv()
		if err == io.EOF {
			return images, nil
		}
		if err != nil {
			return nil, err
		}
		images = append(images, part.GetImages()...)
	}
}
