// A client built with Go's gRPC library, as the kubelet and crictl are: it speaks to a CRI endpoint over a unix socket
// and prints what it saw, a line each. Messages are encoded by hand, a field at a time, so that no generated code is
// needed; the wire format is Protocol Buffers', the numbers are those of runtime.v1.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// raw passes messages as they are.
type raw struct{}

func (raw) Marshal(v interface{}) ([]byte, error) { return *(v.(*[]byte)), nil }
func (raw) Unmarshal(data []byte, v interface{}) error {
	*(v.(*[]byte)) = append([]byte(nil), data...)
	return nil
}
func (raw) Name() string { return "proto" }

// text encodes a field of characters or of a message.
func text(number int, value string) string {
	buffer := make([]byte, binary.MaxVarintLen64)
	key := string(buffer[:binary.PutUvarint(buffer, uint64(number<<3|2))])
	size := string(buffer[:binary.PutUvarint(buffer, uint64(len(value)))])
	return key + size + value
}

// fields decodes a message's fields of characters or of messages; numbers are left out.
func fields(message string) (map[int][]string, error) {
	found := map[int][]string{}
	for data := []byte(message); len(data) > 0; {
		key, used := binary.Uvarint(data)
		if used <= 0 {
			return nil, io.ErrUnexpectedEOF
		}
		data = data[used:]
		value, used := binary.Uvarint(data)
		if used <= 0 {
			return nil, io.ErrUnexpectedEOF
		}
		data = data[used:]
		switch key & 7 {
		case 0:
		case 2:
			if uint64(len(data)) < value {
				return nil, io.ErrUnexpectedEOF
			}
			number := int(key >> 3)
			found[number] = append(found[number], string(data[:value]))
			data = data[value:]
		default:
			return nil, fmt.Errorf("unexpected wire type %d", key&7)
		}
	}
	return found, nil
}

type client struct{ connection *grpc.ClientConn }

func (c client) call(method string, request string, patience time.Duration) (map[int][]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	question, answer := []byte(request), []byte{}
	err := c.connection.Invoke(ctx, "/runtime.v1."+method, &question, &answer)
	if err != nil {
		return nil, err
	}
	return fields(string(answer))
}

func (c client) stream(method string) (int, int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := c.connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/runtime.v1."+method)
	if err != nil {
		return 0, 0, err
	}
	empty := []byte{}
	if err = stream.SendMsg(&empty); err != nil {
		return 0, 0, err
	}
	if err = stream.CloseSend(); err != nil {
		return 0, 0, err
	}
	messages, images := 0, 0
	for {
		answer := []byte{}
		err = stream.RecvMsg(&answer)
		if err == io.EOF {
			return messages, images, nil
		}
		if err != nil {
			return 0, 0, err
		}
		found, err := fields(string(answer))
		if err != nil {
			return 0, 0, err
		}
		messages, images = messages+1, images+len(found[1])
	}
}

// spec is an ImageSpec with a reference and a runtime handler.
func spec(image, handler string) string {
	message := text(1, image)
	if handler != "" {
		message += text(19, handler)
	}
	return message
}

func must(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func main() {
	path, image, handler := os.Args[1], os.Args[2], os.Args[3]
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	limits := grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(16<<20))
	connection, err := grpc.Dial(path, grpc.WithInsecure(), grpc.WithContextDialer(dial), grpc.WithAuthority("localhost"), limits)
	must(err)
	defer connection.Close()
	c := client{connection}

	version, err := c.call("RuntimeService/Version", text(1, "0.1.0"), time.Minute)
	must(err)
	fmt.Println("version:", version[1][0], version[2][0], version[4][0])

	_, err = c.call("ImageService/PullImage", text(1, spec(image, handler)), time.Millisecond)
	fmt.Println("too late:", status.Code(err) == codes.DeadlineExceeded)

	_, err = c.call("ImageService/PullImage", text(1, spec(image, "nobody")), time.Minute)
	fmt.Println("unknown handler:", status.Code(err))

	pulled, err := c.call("ImageService/PullImage", text(1, spec(image, handler)), time.Minute)
	must(err)
	fmt.Println("pulled:", pulled[1][0])

	found, err := c.call("ImageService/ImageStatus", text(1, spec(image, handler)), time.Minute)
	must(err)
	present, err := fields(found[1][0])
	must(err)
	own, err := fields(present[7][0])
	must(err)
	fmt.Println("status:", present[1][0], present[2][0], own[19][0])

	listed, err := c.call("ImageService/ListImages", "", time.Minute)
	must(err)
	fmt.Println("listed:", len(listed[1]))
	messages, images, err := c.stream("ImageService/StreamImages")
	must(err)
	fmt.Println("streamed:", messages, images)

	_, err = c.call("ImageService/RemoveImage", text(1, spec(pulled[1][0], "")), time.Minute)
	must(err)
	gone, err := c.call("ImageService/ImageStatus", text(1, spec(image, handler)), time.Minute)
	must(err)
	fmt.Println("gone:", len(gone[1]) == 0)

	_, err = c.call("RuntimeService/RunPodSandbox", "", time.Minute)
	fmt.Println("no sandbox:", status.Code(err))
}
