package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/util/yaml"
	strictyaml "sigs.k8s.io/yaml"
)

// documents reads YAML documents. A key that is there twice is an error: the API server would take one of the two.
func documents(in io.Reader) ([]map[string]any, error) {
	reader := yaml.NewYAMLReader(bufio.NewReader(in))
	found := []map[string]any{}
	for {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		var document map[string]any
		if err := strictyaml.UnmarshalStrict(text, &document); err != nil {
			return nil, err
		}
		if document != nil {
			found = append(found, document)
		}
	}
}

func toJSON(in io.Reader, out io.Writer) error {
	found, err := documents(in)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(found)
}

func toYAML(in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	text, err = strictyaml.JSONToYAML(text)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}
