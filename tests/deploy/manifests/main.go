// Command manifests is what the checks of the deployment need besides helm, kustomize and kubeconform.
//
//	manifests json                      turns a stream of YAML documents (stdin) into a JSON array (stdout)
//	manifests yaml                      turns a JSON object (stdin) into YAML (stdout), the keys in alphabetical order
//	manifests schemas OUT FILE...       writes JSON schemas for kubeconform into OUT: of every kind in an OpenAPI
//	                                    description of Kubernetes (swagger.json) and in CustomResourceDefinitions (YAML)
package main

import (
	"fmt"
	"os"
)

func main() {
	err := fmt.Errorf("usage: manifests json | manifests yaml | manifests schemas OUT FILE")
	switch {
	case len(os.Args) == 2 && os.Args[1] == "json":
		err = toJSON(os.Stdin, os.Stdout)
	case len(os.Args) == 2 && os.Args[1] == "yaml":
		err = toYAML(os.Stdin, os.Stdout)
	case len(os.Args) > 3 && os.Args[1] == "schemas":
		err = schemas(os.Args[2], os.Args[3:])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "manifests: %v\n", err)
		os.Exit(1)
	}
}
