package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	definitions   = "#/definitions/"
	intOrString   = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
	quantity      = "io.k8s.apimachinery.pkg.api.resource.Quantity"
	kindsKey      = "x-kubernetes-group-version-kind"
	preserveKey   = "x-kubernetes-preserve-unknown-fields"
	schemaDialect = "https://json-schema.org/draft/2020-12/schema"
)

func schemas(out string, files []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.Open(file)
		if err != nil {
			return err
		}
		found, err := documents(text)
		text.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, document := range found {
			if err := fromDocument(out, document); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return nil
}

func fromDocument(out string, document map[string]any) error {
	if all, ok := document["definitions"].(map[string]any); ok {
		return fromOpenAPI(out, all)
	}
	if document["kind"] == "CustomResourceDefinition" {
		return fromCRD(out, document)
	}
	return fmt.Errorf("neither an OpenAPI description nor a CustomResourceDefinition")
}

// fromOpenAPI writes a schema for each kind that has metadata, with the definitions that it refers to.
func fromOpenAPI(out string, all map[string]any) error {
	for name, definition := range all {
		strict(definition)
		switch name {
		case intOrString:
			all[name] = map[string]any{"type": []string{"string", "integer"}}
		case quantity:
			all[name] = map[string]any{"type": []string{"string", "number"}}
		}
	}
	for name, definition := range all {
		definition := definition.(map[string]any)
		properties, _ := definition["properties"].(map[string]any)
		kinds, _ := definition[kindsKey].([]any)
		if properties["metadata"] == nil || len(kinds) != 1 {
			continue
		}
		used := map[string]any{}
		collect(definition, all, used)
		kind := kinds[0].(map[string]any)
		schema := map[string]any{"$schema": schemaDialect, "$ref": definitions + name, "definitions": used}
		used[name] = definition
		if err := write(out, kind["group"].(string), kind["version"].(string), kind["kind"].(string), schema); err != nil {
			return err
		}
	}
	return nil
}

func fromCRD(out string, crd map[string]any) error {
	spec := crd["spec"].(map[string]any)
	kind := spec["names"].(map[string]any)["kind"].(string)
	for _, version := range spec["versions"].([]any) {
		version := version.(map[string]any)
		schema := version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
		// The API server adds what every object has, also where the schema does not name it.
		properties := schema["properties"].(map[string]any)
		for name, kind := range map[string]string{"apiVersion": "string", "kind": "string", "metadata": "object"} {
			if properties[name] == nil {
				properties[name] = map[string]any{"type": kind}
			}
		}
		strict(schema)
		schema["$schema"] = schemaDialect
		if err := write(out, spec["group"].(string), version["name"].(string), kind, schema); err != nil {
			return err
		}
	}
	return nil
}

// strict refuses properties that the API server would drop without a word, and takes the descriptions out.
func strict(node any) {
	switch node := node.(type) {
	case []any:
		for _, child := range node {
			strict(child)
		}
	case map[string]any:
		if text, ok := node["description"].(string); ok && text != "" {
			delete(node, "description")
		}
		if kind, ok := node["type"].(string); ok && node["nullable"] == true {
			node["type"] = []string{kind, "null"}
		}
		_, properties := node["properties"].(map[string]any)
		if properties && node["additionalProperties"] == nil && node[preserveKey] == nil {
			node["additionalProperties"] = false
		}
		for _, child := range node {
			strict(child)
		}
	}
}

// collect adds to used every definition that node refers to.
func collect(node any, all, used map[string]any) {
	switch node := node.(type) {
	case []any:
		for _, child := range node {
			collect(child, all, used)
		}
	case map[string]any:
		if reference, ok := node["$ref"].(string); ok {
			name := strings.TrimPrefix(reference, definitions)
			if used[name] == nil {
				used[name] = all[name]
				collect(all[name], all, used)
			}
		}
		for _, child := range node {
			collect(child, all, used)
		}
	}
}

// write names the file as kubeconform asks for it: {{ .ResourceKind }}{{ .KindSuffix }}.json.
func write(out, group, version, kind string, schema map[string]any) error {
	parts := []string{kind}
	if group != "" {
		parts = append(parts, strings.Split(group, ".")[0])
	}
	name := strings.ToLower(strings.Join(append(parts, version), "-")) + ".json"
	text, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, name), text, 0o644)
}
