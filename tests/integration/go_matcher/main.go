// Answers as containerd's own packages do: what a specifier means, what a platform's normal form is, which platforms a
// matcher takes and in which order, and which manifest of an index is chosen. Reads one JSON object for each question
// from its standard input and prints one JSON value for each.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/containerd/containerd/content"
	"github.com/containerd/containerd/errdefs"
	"github.com/containerd/containerd/images"
	"github.com/containerd/containerd/platforms"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go/v1"
)

type question struct {
	Ask        string
	Text       string
	Matcher    string
	Wanted     []specs.Platform
	Candidates []specs.Platform
	Target     specs.Descriptor
	Blobs      map[digest.Digest]string
}

func main() {
	questions := json.NewDecoder(bufio.NewReader(os.Stdin))
	out := bufio.NewWriter(os.Stdout)
	answers := json.NewEncoder(out)
	for {
		var asked question
		err := questions.Decode(&asked)
		if err == io.EOF {
			break
		}
		if err == nil {
			err = answers.Encode(answer(asked))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if err := out.Flush(); err != nil {
		os.Exit(1)
	}
}

func answer(asked question) interface{} {
	switch asked.Ask {
	case "host":
		return platforms.DefaultSpec()
	case "parse":
		platform, err := platforms.Parse(asked.Text)
		if err != nil {
			return nil
		}
		return platform
	case "normal":
		platform := asked.Candidates[0]
		return []interface{}{platforms.Normalize(platform), platforms.Format(platform)}
	case "fits":
		return fits(matcher(asked), asked.Candidates)
	case "choose":
		manifest, err := images.Manifest(context.Background(), blobs(asked.Blobs), asked.Target, matcher(asked))
		if err != nil {
			return nil
		}
		return manifest.Config.Digest
	}
	panic("no such question: " + asked.Ask)
}

func matcher(asked question) platforms.MatchComparer {
	switch asked.Matcher {
	case "only":
		return platforms.Only(asked.Wanted[0])
	case "only_strict":
		return platforms.OnlyStrict(asked.Wanted[0])
	case "ordered":
		return platforms.Ordered(asked.Wanted...)
	case "any_of":
		return platforms.Any(asked.Wanted...)
	}
	panic("no such matcher: " + asked.Matcher)
}

// fits says of each candidate whether it fits, and of each pair whether the first is better.
func fits(matcher platforms.MatchComparer, candidates []specs.Platform) interface{} {
	matched, better := []bool{}, []bool{}
	for _, first := range candidates {
		matched = append(matched, matcher.Match(first))
		for _, second := range candidates {
			better = append(better, matcher.Less(first, second))
		}
	}
	return [][]bool{matched, better}
}

// blobs is a content provider in memory.
type blobs map[digest.Digest]string

func (held blobs) ReaderAt(_ context.Context, descriptor specs.Descriptor) (content.ReaderAt, error) {
	text, ok := held[descriptor.Digest]
	if !ok {
		return nil, errdefs.ErrNotFound
	}
	return blob{bytes.NewReader([]byte(text))}, nil
}

type blob struct{ *bytes.Reader }

func (blob) Close() error { return nil }
