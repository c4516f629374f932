{{/* --pool's value: name, path and the options. Argument: a pool of the values. */}}
{{- define "hostloop.pool" -}}
{{ .name }}={{ .path }}
{{- range $key := list "kind" "size" "fs" "reserve" "overcommit" -}}
{{- if hasKey $ $key -}},{{ $key }}={{ get $ $key }}{{- end -}}
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

{{/*
Whether the directory above a pool's can be mounted in the container in its place: "true", or nothing where it has what is
the container's own there, or what is mounted there already. Argument: dict "root" $ "dir" "/mnt"
*/}}
{{- define "hostloop.mayMountAbove" -}}
{{- $dir := printf "%s/" (trimSuffix "/" .dir) -}}
{{- $may := true -}}
{{- range list .root.Values.node.kubeletDir .root.Values.node.dataDir -}}
{{- if or (hasPrefix $dir (printf "%s/" .)) (hasPrefix (printf "%s/" .) $dir) -}}{{- $may = false -}}{{- end -}}
{{- end -}}
{{- if regexMatch "^/((bin|boot|csi|dev|etc|lib|lib32|lib64|libx32|proc|registration|root|run|sbin|sys|tmp|usr|var/run)/.*|var/|var/lib/)?$" $dir -}}
{{- $may = false -}}
{{- end -}}
{{- if $may -}}true{{- end -}}
{{- end -}}

{{/*
What is mounted of the host for the pools, JSON list of {path, type}. Of each directory it is the one above: so a node that
lacks the directory gets a pod all the same, in which that pool is missing, and a disk that is mounted there later is seen.
The directory itself is never made, as it would be on another disk. Argument: $
*/}}
{{- define "hostloop.poolMounts" -}}
{{- $types := dict -}}
{{- range include "hostloop.poolDirs" . | fromJsonArray -}}
{{- if include "hostloop.mayMountAbove" (dict "root" $ "dir" (dir .)) -}}
{{- $_ := set $types (dir .) (dig (dir .) "DirectoryOrCreate" $types) -}}
{{- else -}}
{{- $_ := set $types . "Directory" -}}
{{- end -}}
{{- end -}}
{{- $mounts := list -}}
{{- $above := list -}}
{{- range $path := keys $types | sortAlpha -}}
{{- $seen := false -}}
{{- range $above -}}{{- if hasPrefix (printf "%s/" .) $path -}}{{- $seen = true -}}{{- end -}}{{- end -}}
{{- if not $seen -}}
{{- $above = append $above $path -}}
{{- $mounts = append $mounts (dict "path" $path "type" (get $types $path)) -}}
{{- end -}}
{{- end -}}
{{- toJson $mounts -}}
{{- end -}}

{{/*
The most volumes of a node with metrics of each one. They have the names of claims: by default they are there only if the chart
lets nobody read the metrics but whom metricsFrom names. Argument: $
*/}}
{{- define "hostloop.volumeMetrics" -}}
{{- $closed := and .Values.networkPolicy.enabled .Values.networkPolicy.metricsFrom -}}
{{- if ne (toString .Values.metrics.volumes) "auto" -}}{{ int .Values.metrics.volumes }}{{- else -}}{{ ternary 1000 0 (not (empty $closed)) }}{{- end -}}
{{- end -}}

{{/* The directories of node.adoptFrom that no other mount shows. Argument: $ */}}
{{- define "hostloop.adoptMounts" -}}
{{- $above := list .Values.node.dataDir -}}
{{- range include "hostloop.poolMounts" . | fromJsonArray -}}
{{- $above = append $above .path -}}
{{- end -}}
{{- $mounts := list -}}
{{- range $path := .Values.node.adoptFrom -}}
{{- $seen := false -}}
{{- range $above -}}
{{- if or (eq $path .) (hasPrefix (printf "%s/" .) $path) -}}
{{- $seen = true -}}
{{- end -}}
{{- end -}}
{{- if not $seen -}}
{{- $mounts = append $mounts $path -}}
{{- end -}}
{{- end -}}
{{- toJson $mounts -}}
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
{{- if not (has (toString .Values.node.maxVolumeSize) (list "" "0")) }}
- --max-volume-size={{ .Values.node.maxVolumeSize }}
{{- end }}
- --max-copies={{ int .Values.node.maxCopies }}
- --max-streams={{ int .Values.node.maxStreams }}
- --stream-rate={{ .Values.node.streamRate }}
{{- if .Values.node.directories }}
- --directories=true
{{- end }}
- --inline-max-size={{ .Values.node.inline.maxSize }}
- --inline-pools={{ join "," .Values.node.inline.pools }}
- --inline-backends={{ join "," .Values.node.inline.backends }}
{{- with .Values.node.quotaIds }}
- --quota-ids={{ . }}
{{- end }}
{{- with .Values.node.adoptFrom }}
- {{ printf "--adopt-from=%s" (join ";" .) | quote }}
{{- end }}
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
- --volume-metrics={{ include "hostloop.volumeMetrics" . }}
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
  image: {{ include "hostloop.image" (dict "root" . "image" $own.image "tag" "") }}
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
