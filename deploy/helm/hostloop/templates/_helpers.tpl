{{/* The start of every object's name. */}}
{{- define "hostloop.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- (contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name)) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects pods; it must never change. Argument: dict "root" $ "component" "node" */}}
{{- define "hostloop.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of every object. Argument as above; without component for objects of both. */}}
{{- define "hostloop.labels" -}}
{{- if .component -}}
{{ include "hostloop.selector" . }}
{{- else -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- if eq .root.Release.Service "Helm" }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
An image. global.imageRegistry takes the place of a registry in its repository: of a first part with a dot or a port, and of
localhost. Argument: dict "root" $ "image" of the values "tag" to take without one
*/}}
{{- define "hostloop.image" -}}
{{- $repository := .image.repository -}}
{{- with dig "imageRegistry" "" (default dict .root.Values.global) -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $repository "") -}}
{{- end -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ default .tag .image.tag }}
{{- end -}}
{{- end -}}

{{/*
Labels and annotations of a class. Argument: dict "root" $ "class" of the values "default" the annotation of a default class,
or nothing
*/}}
{{- define "hostloop.classMetadata" -}}
name: {{ .class.name }}
labels: {{- merge (include "hostloop.labels" (dict "root" .root) | fromYaml) (default dict .class.labels) | toYaml | nindent 2 }}
{{- $annotations := default dict .class.annotations -}}
{{- if and .class.default .default -}}
{{- $annotations = merge (dict .default "true") $annotations -}}
{{- end -}}
{{- with $annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* "true" or nothing: is a sidecar with true, false and auto on? Argument: dict "root" $ "enabled" value "api" name */}}
{{- define "hostloop.enabled" -}}
{{- if eq (toString .enabled) "auto" -}}
{{- if .root.Capabilities.APIVersions.Has .api }}true{{ end -}}
{{- else if .enabled }}true{{ end -}}
{{- end -}}

{{- define "hostloop.snapshots" -}}
{{- include "hostloop.enabled" (dict "root" . "enabled" .Values.sidecars.snapshotter.enabled "api" "snapshot.storage.k8s.io/v1") -}}
{{- end -}}

{{/* The service account that talks to the API server for the sidecars. */}}
{{- define "hostloop.apiServiceAccount" -}}
{{ include "hostloop.fullname" . }}-{{ eq .Values.mode "cluster" | ternary "controller" "node" }}
{{- end -}}

{{/* IP:PORT to listen on. Argument: dict "root" $ "port" number */}}
{{- define "hostloop.listen" -}}
{{- $ip := .root.Values.listenAddress -}}
{{ contains ":" $ip | ternary (printf "[%s]" $ip) $ip }}:{{ .port }}
{{- end -}}

{{/* Name of the Secret with the certificate of a role. Argument: dict "root" $ "role" "node" */}}
{{- define "hostloop.tlsSecret" -}}
{{- if eq .root.Values.tls.mode "existingSecrets" -}}
{{ index .root.Values.tls.existingSecrets .role }}
{{- else -}}
{{ include "hostloop.fullname" .root }}-{{ .role }}-tls
{{- end -}}
{{- end -}}

{{/* Restrictions of a container that needs no privilege at all. */}}
{{- define "hostloop.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
