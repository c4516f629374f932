{{/* The volume `tls` of a pod: ca.crt, tls.crt, tls.key. Argument: dict "root" $ "role" "node" */}}
{{- define "hostloop.tlsVolumes" -}}
{{- if eq .root.Values.tls.mode "generate" -}}
- name: tls
  emptyDir: {medium: Memory}
- name: ca
  secret:
    secretName: {{ include "hostloop.fullname" .root }}-ca
    defaultMode: {{ eq .role "node" | ternary "0400" "0440" }}
{{- else -}}
- name: tls
  secret:
    secretName: {{ include "hostloop.tlsSecret" . }}
    defaultMode: {{ eq .role "node" | ternary "0400" "0440" }}
{{- end -}}
{{- end -}}

{{/* The init container that signs the pod's certificate; only it sees the CA's key. Argument as above. */}}
{{- define "hostloop.tlsInit" -}}
{{- if eq .root.Values.tls.mode "generate" -}}
- name: certificate
  image: {{ include "hostloop.image" (dict "root" .root "image" .root.Values.image "tag" .root.Chart.AppVersion) }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args:
    - certs
    - issue
    - --ca=/ca
    - --out=/tls
    - --driver-name={{ .root.Values.driverName }}
    - --role={{ .role }}
    {{- if eq .role "node" }}
    - --node-id=$(NODE_ID)
    {{- end }}
    - --valid={{ .root.Values.tls.generate.validityDays }}d
  {{- if eq .role "node" }}
  env:
    - name: NODE_ID
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  {{- end }}
  securityContext:
    {{- include "hostloop.restricted" .root | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  resources: {{- toYaml .root.Values.sidecars.resources | nindent 4 }}
  volumeMounts:
    - {name: ca, mountPath: /ca, readOnly: true}
    - {name: tls, mountPath: /tls}
{{- end -}}
{{- end -}}
