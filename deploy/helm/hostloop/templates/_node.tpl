{{/* --pool's value: name, path and the options. Argument: a pool of the values. */}}
{{- define "hostloop.pool" -}}
{{ .name }}={{ .path }}
{{- range $key := list "kind" "size" "fs" "reserve" "overcommit" -}}
{{- with index $ $key -}},{{ $key }}={{ . }}{{- end -}}
{{- end -}}
{{- if .directories -}},directories=true{{- end -}}
{{- end -}}

{{/*
Directories of the host that the pools need, JSON list: a directory pool itself, the directory of an image. What lies in
the data directory or in /dev is there already. Argument: $
*/}}
{{- define "hostloop.poolDirs" -}}
{{- $dirs := list -}}
{{- range .Values.node.pools -}}
{{- $dir := eq (default "directory" .kind) "directory" | ternary .path (dir .path) -}}
{{- if not (or (hasPrefix (printf "%s/" $.Values.node.dataDir) (printf "%s/" $dir)) (hasPrefix "/dev/" (printf "%s/" $dir))) -}}
{{- $dirs = append $dirs $dir -}}
{{- end -}}
{{- end -}}
{{- uniq $dirs | toJson -}}
{{- end -}}

{{/* Arguments of the driver on a node. Argument: $ */}}
{{- define "hostloop.nodeArgs" -}}
- serve
- --role={{ eq .Values.mode "cluster" | ternary "node" "all" }}
- --endpoint=unix:///csi/csi.sock
- --driver-name={{ .Values.driverName }}
- --data-dir={{ .Values.node.dataDir }}
- --kubelet-dir={{ .Values.node.kubeletDir }}
- --reserve={{ .Values.node.reserve }}
- --overcommit={{ .Values.node.overcommit }}
- --max-volume-size={{ .Values.node.maxVolumeSize }}
- --max-copies={{ int .Values.node.maxCopies }}
- --max-streams={{ int .Values.node.maxStreams }}
- --stream-rate={{ .Values.node.streamRate }}
{{- if .Values.node.directories }}
- --directories=true
{{- end }}
- --inline-max-size={{ .Values.node.inline.maxSize }}
- --inline-pools={{ join "," .Values.node.inline.pools }}
- --inline-backends={{ join "," .Values.node.inline.backends }}
{{- range .Values.node.pools }}
- {{ printf "--pool=%s" (include "hostloop.pool" .) | quote }}
{{- end }}
{{- if .Values.attachRequired }}
- --attach=true
{{- end }}
{{- with .Values.node.maxVolumesPerNode }}
- --max-volumes-per-node={{ int . }}
{{- end }}
{{- if eq .Values.mode "cluster" }}
- --tls-dir=/etc/hostloop/tls
- --peer-listen={{ include "hostloop.listen" (dict "root" . "port" .Values.peer.port) }}
{{- end }}
{{- if .Values.node.register }}
- --register
- --registration-dir=/registration
- --kubelet-endpoint={{ .Values.node.kubeletDir }}/plugins/{{ .Values.driverName }}/csi.sock
{{- end }}
- --health-listen={{ include "hostloop.listen" (dict "root" . "port" .Values.health.port) }}
{{- if .Values.metrics.enabled }}
- --metrics-listen={{ include "hostloop.listen" (dict "root" . "port" .Values.metrics.port) }}
{{- end }}
- --log-level={{ .Values.log.level }}
- --log-format={{ .Values.log.format }}
{{- range .Values.node.additionalArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* node-driver-registrar. Argument: $ */}}
{{- define "hostloop.registrar" -}}
{{- $own := .Values.sidecars.nodeDriverRegistrar -}}
- name: node-driver-registrar
  image: {{ include "hostloop.image" (dict "image" $own.image "tag" "") }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - --csi-address=/csi/csi.sock
    - --kubelet-registration-path={{ .Values.node.kubeletDir }}/plugins/{{ .Values.driverName }}/csi.sock
    - --v={{ .Values.sidecars.logLevel }}
    - --timeout=10s
    - --http-endpoint=:9809
    {{- range $own.additionalArgs }}
    - {{ . | quote }}
    {{- end }}
  ports:
    - {name: registrar, containerPort: 9809}
  livenessProbe:
    httpGet: {path: /healthz, port: registrar}
    initialDelaySeconds: 30
    periodSeconds: 30
    timeoutSeconds: 15
  # Root, since kubelet's directories and the driver's socket are root's; without any capability.
  securityContext:
    {{- include "hostloop.restricted" . | nindent 4 }}
    {{- if .Values.node.selinux }}
    seLinuxOptions: {type: spc_t}
    {{- end }}
  terminationMessagePolicy: FallbackToLogsOnError
  resources: {{- toYaml .Values.sidecars.resources | nindent 4 }}
  volumeMounts:
    - {name: socket, mountPath: /csi}
    - {name: registration, mountPath: /registration}
{{- end -}}
