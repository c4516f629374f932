{{/*
A sidecar that serves metrics, and leads by a lease if "lead" says so. Argument: dict "root" $ "name" of the container
"key" of sidecars "port" number "portName" text "args" list "lead" bool "env" YAML or nothing "selinux" bool. The socket
is in the volume `socket`. The health monitor alone has no flags for the rate of its API calls.
*/}}
{{- define "hostloop.sidecar" -}}
{{- $all := .root.Values.sidecars -}}
{{- $own := index $all .key -}}
- name: {{ .name }}
  image: {{ include "hostloop.image" (dict "root" .root "image" $own.image "tag" "") }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args:
    - --csi-address=/csi/csi.sock
    - --v={{ $all.logLevel }}
    - --timeout={{ $all.timeout }}
    {{- if ne .key "healthMonitor" }}
    - --kube-api-qps={{ $all.kubeApiQps }}
    - --kube-api-burst={{ $all.kubeApiBurst }}
    {{- end }}
    - --http-endpoint=:{{ .port }}
    {{- if .lead }}
    - --leader-election=true
    {{- end }}
    {{- range concat .args $own.additionalArgs }}
    - {{ . | quote }}
    {{- end }}
  {{- with .env }}
  env: {{- . | nindent 4 }}
  {{- end }}
  ports:
    - {name: {{ .portName }}, containerPort: {{ .port }}}
  {{- if .lead }}
  livenessProbe:
    httpGet: {path: /healthz/leader-election, port: {{ .portName }}}
    initialDelaySeconds: 10
    periodSeconds: 20
    timeoutSeconds: 10
  {{- end }}
  securityContext:
    {{- include "hostloop.restricted" .root | nindent 4 }}
    {{- if .selinux }}
    seLinuxOptions: {type: spc_t}
    {{- end }}
  terminationMessagePolicy: FallbackToLogsOnError
  resources: {{- toYaml $all.resources | nindent 4 }}
  volumeMounts:
    - {name: socket, mountPath: /csi}
{{- end -}}

{{- define "hostloop.podEnv" -}}
- name: NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end -}}

{{/* csi-provisioner. Argument: dict "root" $ */}}
{{- define "hostloop.provisioner" -}}
{{- $v := .root.Values -}}
{{- $each := eq $v.mode "distributed" -}}
{{- /* A volume is deleted as soon as its pod and claim are gone, often before kubelet has unstaged it, which takes a
       fraction of a second. */ -}}
{{- $args := list "--extra-create-metadata=true" "--default-fstype=ext4" "--retry-interval-start=200ms" "--retry-interval-max=1m" -}}
{{- $args = append $args (printf "--worker-threads=%v" $v.sidecars.provisioner.workerThreads) -}}
{{- if $v.storageCapacity -}}
{{- /* Capacity objects are owned by what outlives a pod: the Deployment, or the DaemonSet. */ -}}
{{- $args = concat $args (list "--enable-capacity=true"
    (printf "--capacity-ownerref-level=%d" (eq $v.mode "cluster" | ternary 2 1))
    (printf "--capacity-poll-interval=%s" $v.sidecars.provisioner.capacityPollInterval)
    (printf "--kube-api-capacity-qps=%v" $v.sidecars.kubeApiQps)
    (printf "--kube-api-capacity-burst=%v" $v.sidecars.kubeApiBurst)) -}}
{{- end -}}
{{- if ne $v.mode "single" -}}
{{- /* A volume is made on the node that the scheduler has chosen, a copy too: a pod that cannot run on the node of a
       snapshot would wait for ever for a volume that was made there. */ -}}
{{- $args = append $args "--strict-topology=true" -}}
{{- end -}}
{{- if $each -}}
{{- $args = concat $args (list "--node-deployment=true" "--immediate-topology=false") -}}
{{- end -}}
{{- if not (include "hostloop.snapshots" .root) -}}
{{- /* It looks for snapshots' finalizers, and would complain that there is no such API. */ -}}
{{- $args = append $args "--snapshot-orphan-sweep-interval=0" -}}
{{- end -}}
{{- include "hostloop.sidecar" (dict "root" .root "name" "csi-provisioner" "key" "provisioner"
    "port" 8081 "portName" "provisioner" "args" $args "lead" (not $each) "env" (include "hostloop.podEnv" .root) "selinux" .selinux) -}}
{{- end -}}

{{/* csi-resizer. It waits for nobody: the driver grows volumes while they are in use. Argument: dict "root" $ */}}
{{- define "hostloop.resizer" -}}
{{- $args := list "--handle-volume-inuse-error=false" "--extra-modify-metadata=true" "--retry-interval-max=1m"
    (printf "--workers=%v" .root.Values.sidecars.resizer.workerThreads) -}}
{{- include "hostloop.sidecar" (dict "root" .root "name" "csi-resizer" "key" "resizer" "port" 8084 "portName" "resizer"
    "args" $args "lead" true "env" "" "selinux" .selinux) -}}
{{- end -}}

{{/* csi-snapshotter. Argument: dict "root" $ */}}
{{- define "hostloop.snapshotter" -}}
{{- $each := eq .root.Values.mode "distributed" -}}
{{- $args := list "--extra-create-metadata=true" "--retry-interval-max=1m"
    (printf "--worker-threads=%v" .root.Values.sidecars.snapshotter.workerThreads) -}}
{{- if $each -}}
{{- $args = append $args "--node-deployment=true" -}}
{{- end -}}
{{- include "hostloop.sidecar" (dict "root" .root "name" "csi-snapshotter" "key" "snapshotter"
    "port" 8083 "portName" "snapshotter" "args" $args "lead" (not $each) "env" (include "hostloop.podEnv" .root) "selinux" .selinux) -}}
{{- end -}}

{{/* csi-attacher. Argument: dict "root" $ */}}
{{- define "hostloop.attacher" -}}
{{- $args := list "--retry-interval-max=1m" (printf "--worker-threads=%v" .root.Values.sidecars.attacher.workerThreads) -}}
{{- include "hostloop.sidecar" (dict "root" .root "name" "csi-attacher" "key" "attacher" "port" 8082 "portName" "attacher"
    "args" $args "lead" true "env" "" "selinux" .selinux) -}}
{{- end -}}

{{/* csi-external-health-monitor-controller. Argument: dict "root" $ */}}
{{- define "hostloop.healthMonitor" -}}
{{- include "hostloop.sidecar" (dict "root" .root "name" "csi-health-monitor" "key" "healthMonitor" "port" 8085
    "portName" "health-monitor" "args" (list) "lead" true "env" "" "selinux" false) -}}
{{- end -}}

{{/* The sidecars that every mode has, for the pod that runs them. Argument: dict "root" $ */}}
{{- define "hostloop.commonSidecars" -}}
{{ include "hostloop.provisioner" . }}
{{- if include "hostloop.snapshots" .root }}
{{ include "hostloop.snapshotter" . }}
{{- end }}
{{- if ne .root.Values.mode "distributed" }}
{{ include "hostloop.resizer" . }}
{{- if .root.Values.attachRequired }}
{{ include "hostloop.attacher" . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* livenessprobe. Argument: dict "root" $ "selinux" bool */}}
{{- define "hostloop.livenessprobe" -}}
{{- $own := .root.Values.sidecars.livenessProbe -}}
- name: liveness-probe
  image: {{ include "hostloop.image" (dict "root" .root "image" $own.image "tag" "") }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args:
    - --csi-address=/csi/csi.sock
    - --probe-timeout=3s
    - --health-port=9808
    {{- range $own.additionalArgs }}
    - {{ . | quote }}
    {{- end }}
  securityContext:
    {{- include "hostloop.restricted" .root | nindent 4 }}
    {{- if .selinux }}
    seLinuxOptions: {type: spc_t}
    {{- end }}
  terminationMessagePolicy: FallbackToLogsOnError
  resources: {{- toYaml .root.Values.sidecars.resources | nindent 4 }}
  volumeMounts:
    - {name: socket, mountPath: /csi}
{{- end -}}

{{/*
Ports and probes of the driver's container. Whether it is alive it says itself, on a port of its own: livenessprobe knows
only whether it is ready, and would have it killed while it checks a large pool. Argument: dict "root" $ "sidecar" does
livenessprobe run beside it?
*/}}
{{- define "hostloop.probes" -}}
{{- $probes := .root.Values.probes -}}
ports:
  - {name: health, containerPort: {{ .root.Values.health.port }}}
  {{- if .sidecar }}
  - {name: healthz, containerPort: 9808}
  {{- end }}
  {{- if .root.Values.metrics.enabled }}
  - {name: metrics, containerPort: {{ .root.Values.metrics.port }}}
  {{- end }}
  {{- if .inspect }}
  - {name: inspect, containerPort: {{ .root.Values.inspect.port }}}
  {{- end }}
  {{- if .peer }}
  - {name: peer, containerPort: {{ .root.Values.peer.port }}}
  {{- end }}
startupProbe:
  httpGet: {path: /healthz, port: health}
  {{- toYaml $probes.startup | nindent 2 }}
livenessProbe:
  httpGet: {path: /healthz, port: health}
  {{- toYaml $probes.liveness | nindent 2 }}
readinessProbe:
  httpGet: {{ .sidecar | ternary "{path: /healthz, port: healthz}" "{path: /readyz, port: health}" }}
  {{- toYaml $probes.readiness | nindent 2 }}
{{- end -}}

{{/* csi-snapshot-metadata: backup programs call it, it calls the driver. It does not lead. Argument: dict "root" $ */}}
{{- define "hostloop.snapshotMetadata" -}}
{{- $all := .root.Values.sidecars -}}
- name: csi-snapshot-metadata
  image: {{ include "hostloop.image" (dict "root" .root "image" $all.snapshotMetadata.image "tag" "") }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args:
    - --csi-address=/csi/csi.sock
    - --v={{ $all.logLevel }}
    - --timeout={{ $all.timeout }}
    - --port=50051
    - --tls-cert=/tls/tls.crt
    - --tls-key=/tls/tls.key
    - --http-endpoint=:8080
    {{- range $all.snapshotMetadata.additionalArgs }}
    - {{ . | quote }}
    {{- end }}
  ports:
    - {name: snap-metadata, containerPort: 50051}
    - {name: snap-meta-http, containerPort: 8080}
  securityContext:
    {{- include "hostloop.restricted" .root | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  resources: {{- toYaml $all.resources | nindent 4 }}
  volumeMounts:
    - {name: socket, mountPath: /csi}
    - {name: snapshot-metadata-tls, mountPath: /tls, readOnly: true}
{{- end -}}
