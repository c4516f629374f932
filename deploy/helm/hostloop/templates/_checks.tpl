{{/*
What the driver would refuse at its start, or at the first claim of a class, is refused here, with the place and the right
form. The schema checks names and types.
*/}}

{{/* The parameters that the driver knows. tests/csi compares them with the driver. */}}
{{- define "hostloop.keys.storageClass" -}}
backend provisioning pool mkfsOptions directIO discard sharedOnNode crossNodeCopy enforcement inodes standby standbyInterval standbyByClaim freeze freezeTimeout
{{- end -}}
{{- define "hostloop.keys.snapshotClass" -}}
freeze freezeTimeout
{{- end -}}
{{- define "hostloop.keys.attributesClass" -}}
provisioning directIO discard enforcement
{{- end -}}

{{/*
Fails unless a value is a size, of at least so many MiB. Argument: dict "at" path "value" value "more" what else it can be
"least" number, or nothing
*/}}
{{- define "hostloop.checkSize" -}}
{{- $value := toString .value -}}
{{- if not (regexMatch "^[0-9]+([.][0-9]+)?([KMGTP]i|[kMGTP])$" $value) -}}
{{- fail (printf "%s: %v is not a size; write 20G or 20Gi%s" .at .value (default "" .more)) -}}
{{- end -}}
{{- $units := dict "k" 1000.0 "M" 1000000.0 "G" 1000000000.0 "T" 1000000000000.0 "P" 1000000000000000.0
    "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 -}}
{{- $bytes := mulf (float64 (regexFind "^[0-9.]+" $value)) (get $units (regexFind "[a-zA-Z]+$" $value)) -}}
{{- $least := mulf (float64 (default 1 .least)) 1048576.0 -}}
{{- if lt $bytes $least -}}
{{- fail (printf "%s: %v is too small; write at least %vMi%s" .at .value (default 1 .least) (default "" .more)) -}}
{{- end -}}
{{- if gt $bytes 9000000000000000000.0 -}}
{{- fail (printf "%s: %v is too large; write less than 8Ei" .at .value) -}}
{{- end -}}
{{- end -}}

{{/* Fails unless a value says how much a pool leaves free. Argument as above */}}
{{- define "hostloop.checkReserve" -}}
{{- $value := toString .value -}}
{{- if not (or (has $value (list "auto" "0")) (regexMatch "^[0-9]{1,2}([.][0-9]+)?%$" $value)) -}}
{{- include "hostloop.checkSize" (dict "at" .at "value" .value "more" ", 10%, auto, or 0 for nothing") -}}
{{- end -}}
{{- end -}}

{{/* Fails unless a value is a ratio from 1 to 1000. Argument as above */}}
{{- define "hostloop.checkOvercommit" -}}
{{- $value := toString .value -}}
{{- if not (and (regexMatch "^[0-9]+([.][0-9]+)?$" $value) (ge (float64 $value) 1.0) (le (float64 $value) 1000.0)) -}}
{{- fail (printf "%s: %v is not a ratio from 1 to 1000; write \"1.5\"" .at .value) -}}
{{- end -}}
{{- end -}}

{{/* Fails unless a value is the name of a pool. Argument as above */}}
{{- define "hostloop.checkPoolName" -}}
{{- if not (and (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" .value) (le (len .value) 63)) -}}
{{- fail (printf "%s: %q is not the name of a pool; write 1 to 63 small letters, digits and dashes, such as fast-1" .at .value) -}}
{{- end -}}
{{- end -}}

{{/* Fails unless a value is the name of a class. Argument as above */}}
{{- define "hostloop.checkName" -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$" .value) -}}
{{- fail (printf "%s: %q is not a name; write small letters, digits and dashes, such as fast-1" .at .value) -}}
{{- end -}}
{{- end -}}

{{/* Fails unless a value is a duration. Argument as above */}}
{{- define "hostloop.checkDuration" -}}
{{- if not (regexMatch "^([0-9]+([.][0-9]+)?(ms|s|m|h))+$" .value) -}}
{{- fail (printf "%s: %q is not a duration; write 30s or 1h30m" .at .value) -}}
{{- end -}}
{{- end -}}

{{/* Fails unless a value is a path that a flag of the driver can have. Argument as above */}}
{{- define "hostloop.checkPath" -}}
{{- if or (not (regexMatch "^/[^,;]*[^,;/]$" .value)) (regexMatch "//|/[.]{1,2}(/|$)" .value) -}}
{{- fail (printf "%s: %q is not an absolute path; write /mnt/disk, without .., a slash at the end, a comma or a semicolon" .at .value) -}}
{{- end -}}
{{- end -}}

{{/* Fails unless an image has a digest that is one, or none. Argument: dict "at" path "image" of the values */}}
{{- define "hostloop.checkDigest" -}}
{{- if not (regexMatch "^(sha256:[0-9a-f]{64})?$" (default "" .image.digest)) -}}
{{- fail (printf "%s.digest: %q is not a digest; write sha256: and 64 hexadecimal digits" .at .image.digest) -}}
{{- end -}}
{{- end -}}

{{- define "hostloop.checkPools" -}}
{{- $names := list "default" -}}
{{- $paths := list .Values.node.dataDir -}}
{{- range $i, $pool := .Values.node.pools -}}
{{- $at := printf "node.pools[%d]" $i -}}
{{- include "hostloop.checkPoolName" (dict "at" (printf "%s.name" $at) "value" $pool.name) -}}
{{- if eq $pool.name "default" -}}
{{- fail (printf "%s.name: the pool default is at node.dataDir; choose another name" $at) -}}
{{- end -}}
{{- if has $pool.name $names -}}
{{- fail (printf "%s.name: there is another pool %q; each name can be used once" $at $pool.name) -}}
{{- end -}}
{{- include "hostloop.checkPath" (dict "at" (printf "%s.path" $at) "value" $pool.path) -}}
{{- $kind := default "directory" $pool.kind -}}
{{- range $other := $paths -}}
{{- if eq $pool.path $other -}}
{{- fail (printf "%s.path: another pool has %s; each pool needs a path of its own" $at $other) -}}
{{- end -}}
{{- if and (eq $kind "directory") (or (hasPrefix (printf "%s/" $other) $pool.path) (hasPrefix (printf "%s/" $pool.path) $other)) -}}
{{- fail (printf "%s.path: %s and %s of another pool lie in each other; choose a directory beside it" $at $pool.path $other) -}}
{{- end -}}
{{- end -}}
{{- $names = append $names $pool.name -}}
{{- if eq $kind "directory" -}}{{- $paths = append $paths $pool.path -}}{{- end -}}
{{- if eq $kind "image" -}}
{{- if not $pool.size -}}{{- fail (printf "%s.size is missing: an image needs one; write 200Gi" $at) -}}{{- end -}}
{{- include "hostloop.checkSize" (dict "at" (printf "%s.size" $at) "value" $pool.size "least" (eq (default "xfs" $pool.fs) "btrfs" | ternary 256 300)) -}}
{{- if or (eq (base $pool.path) "lock") (hasSuffix ".hostloop-lock" $pool.path) (hasSuffix ".hostloop-new" $pool.path) -}}
{{- fail (printf "%s.path: %s is like the name of a file of the driver; choose another name" $at $pool.path) -}}
{{- end -}}
{{- else if hasKey $pool "size" -}}
{{- fail (printf "%s.size: only a pool of kind image has a size; leave it out" $at) -}}
{{- end -}}
{{- if and (eq $kind "directory") (hasKey $pool "fs") -}}
{{- fail (printf "%s.fs: a directory has the filesystem of its disk; leave it out, or set kind: image or device" $at) -}}
{{- end -}}
{{- if hasKey $pool "reserve" -}}
{{- include "hostloop.checkReserve" (dict "at" (printf "%s.reserve" $at) "value" $pool.reserve) -}}
{{- end -}}
{{- if hasKey $pool "overcommit" -}}
{{- include "hostloop.checkOvercommit" (dict "at" (printf "%s.overcommit" $at) "value" $pool.overcommit) -}}
{{- end -}}
{{- end -}}
{{- range $i, $name := .Values.node.inline.pools -}}
{{- if not (has $name $names) -}}
{{- fail (printf "node.inline.pools[%d]: there is no pool %q; use one of: %s" $i $name (join ", " $names)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Fails if a class has a parameter that the driver does not know. Keys of the sidecars are theirs.
Argument: dict "at" path "parameters" of the class "keys" name of the list
*/}}
{{- define "hostloop.checkKeys" -}}
{{- $known := splitList " " (include .keys .root) -}}
{{- range $key, $value := .parameters -}}
{{- if not (or (has $key $known) (and (hasPrefix "csi.storage.k8s.io/" $key) (ne $key "csi.storage.k8s.io/fstype"))) -}}
{{- fail (printf "%s.%s: hostloop has no such parameter; use one of: %s" $.at $key (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Fails if two classes have one name, or two are the default.
Argument: dict "at" the name of the list "classes" list
*/}}
{{- define "hostloop.checkList" -}}
{{- $names := list -}}
{{- $default := "" -}}
{{- range $i, $class := .classes -}}
{{- include "hostloop.checkName" (dict "at" (printf "%s[%d].name" $.at $i) "value" $class.name) -}}
{{- if has $class.name $names -}}
{{- fail (printf "%s[%d].name: there is another class %q; each name can be used once" $.at $i $class.name) -}}
{{- end -}}
{{- $names = append $names $class.name -}}
{{- $marked := $class.default -}}
{{- range $key, $value := $class.annotations -}}
{{- if and (hasSuffix "kubernetes.io/is-default-class" $key) (eq $value "true") -}}{{- $marked = true -}}{{- end -}}
{{- end -}}
{{- if $marked -}}
{{- if $default -}}
{{- fail (printf "%s[%d].default: %q is the default already; only one class can be it" $.at $i $default) -}}
{{- end -}}
{{- $default = $class.name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails unless a parameter has one of these values. Argument: dict "at" path "parameters" "key" "values" list */}}
{{- define "hostloop.checkValue" -}}
{{- if hasKey .parameters .key -}}
{{- $value := toString (get .parameters .key) -}}
{{- if not (has $value .values) -}}
{{- fail (printf "%s.%s: %q is not a value of it; use %s" .at .key $value (join " or " .values)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails unless the times among the parameters are some. Argument: dict "at" path "parameters" */}}
{{- define "hostloop.checkTimes" -}}
{{- range $key := list "freezeTimeout" "standbyInterval" -}}
{{- if hasKey $.parameters $key -}}
{{- $value := toString (get $.parameters $key) -}}
{{- if not (regexMatch "^[0-9]+(ms|s|m|h)$" $value) -}}
{{- fail (printf "%s.%s: %q is not a time; write 30s or 1m" $.at $key $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "hostloop.checkClasses" -}}
{{- $v := .Values -}}
{{- $pools := list "default" -}}
{{- range $v.node.pools -}}{{- $pools = append $pools .name -}}{{- end -}}
{{- include "hostloop.checkList" (dict "at" "storageClasses" "classes" $v.storageClasses) -}}
{{- range $i, $class := $v.storageClasses -}}
{{- $at := printf "storageClasses[%d]" $i -}}
{{- $parameters := default dict $class.parameters -}}
{{- $path := printf "%s.parameters" $at -}}
{{- if hasKey $parameters "csi.storage.k8s.io/fstype" -}}
{{- fail (printf "%s: csi.storage.k8s.io/fstype is written by the chart; set %s.fsType" $path $at) -}}
{{- end -}}
{{- include "hostloop.checkKeys" (dict "root" $ "at" $path "parameters" $parameters "keys" "hostloop.keys.storageClass") -}}
{{- range $key, $values := dict "backend" (list "loop" "directory") "provisioning" (list "thin" "thick")
    "enforcement" (list "required" "none") "standby" (list "0" "1") -}}
{{- include "hostloop.checkValue" (dict "at" $path "parameters" $parameters "key" $key "values" $values) -}}
{{- end -}}
{{- $standby := "" -}}
{{- if eq (toString (dig "standby" "0" $parameters)) "1" -}}{{- $standby = "standby" -}}
{{- else if eq (toString (dig "standbyByClaim" "false" $parameters)) "true" -}}{{- $standby = "standbyByClaim" -}}{{- end -}}
{{- if and (hasKey $parameters "standbyInterval") (not $standby) -}}
{{- fail (printf "%s.standbyInterval: without standby: \"1\" there is no copy to keep; leave it out" $path) -}}
{{- end -}}
{{- include "hostloop.checkTimes" (dict "at" $path "parameters" $parameters) -}}
{{- range $key := list "directIO" "discard" "sharedOnNode" "crossNodeCopy" "freeze" "standbyByClaim" -}}
{{- include "hostloop.checkValue" (dict "at" $path "parameters" $parameters "key" $key "values" (list "true" "false")) -}}
{{- end -}}
{{- $pool := toString (dig "pool" "default" $parameters) -}}
{{- if not (has $pool $pools) -}}
{{- fail (printf "%s.pool: there is no pool %q in node.pools; use one of: %s" $path $pool (join ", " $pools)) -}}
{{- end -}}
{{- $thick := eq (toString (dig "provisioning" "thin" $parameters)) "thick" -}}
{{- if eq (toString (dig "backend" "loop" $parameters)) "directory" -}}
{{- if $thick -}}
{{- fail (printf "%s.provisioning: a directory cannot be thick; leave it out, or set backend: loop" $path) -}}
{{- end -}}
{{- range $key := list "directIO" "discard" "mkfsOptions" -}}
{{- if hasKey $parameters $key -}}
{{- fail (printf "%s.%s: it is for loop volumes; leave it out, or set backend: loop" $path $key) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $parameters "inodes" -}}
{{- $inodes := toString (get $parameters "inodes") -}}
{{- if not (and (regexMatch "^[0-9]{1,18}$" $inodes) (ge (int64 $inodes) 16)) -}}
{{- fail (printf "%s.inodes: %q is not a number of at least 16" $path $inodes) -}}
{{- end -}}
{{- end -}}
{{- if $class.fsType -}}
{{- fail (printf "%s.fsType: a directory has the filesystem of its pool; leave it out, or set backend: loop" $at) -}}
{{- end -}}
{{- else -}}
{{- range $key := list "enforcement" "inodes" -}}
{{- if hasKey $parameters $key -}}
{{- fail (printf "%s.%s: it is for directories; leave it out, or set backend: directory" $path $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $thick (eq (toString (dig "discard" "" $parameters)) "true") -}}
{{- fail (printf "%s.discard: a thick volume keeps its blocks; leave it out, or set provisioning: thin" $path) -}}
{{- end -}}
{{- if $standby -}}
{{- if not $v.move.enabled -}}
{{- fail (printf "%s.%s: without move.enabled nothing keeps a copy; set move.enabled: true, or leave it out" $path $standby) -}}
{{- end -}}
{{- if eq (toString (dig "crossNodeCopy" "true" $parameters)) "false" -}}
{{- fail (printf "%s.crossNodeCopy: a copy that stands by is on another node; leave one of them out" $path) -}}
{{- end -}}
{{- end -}}
{{- if and $class.allowVolumeExpansion (eq $v.mode "distributed") -}}
{{- fail (printf "%s.allowVolumeExpansion: volumes do not grow in mode distributed; leave it out" $at) -}}
{{- end -}}
{{- end -}}
{{- range $list := list "volumeSnapshotClasses" "volumeGroupSnapshotClasses" "volumeAttributesClasses" -}}
{{- $classes := index $v $list -}}
{{- include "hostloop.checkList" (dict "at" $list "classes" $classes) -}}
{{- range $i, $class := $classes -}}
{{- $keys := eq $list "volumeAttributesClasses" | ternary "hostloop.keys.attributesClass" "hostloop.keys.snapshotClass" -}}
{{- include "hostloop.checkKeys" (dict "root" $ "at" (printf "%s[%d].parameters" $list $i) "parameters" $class.parameters "keys" $keys) -}}
{{- $at := printf "%s[%d].parameters" $list $i -}}
{{- $parameters := default dict $class.parameters -}}
{{- include "hostloop.checkTimes" (dict "at" $at "parameters" $parameters) -}}
{{- range $key := list "freeze" "directIO" "discard" -}}
{{- include "hostloop.checkValue" (dict "at" $at "parameters" $parameters "key" $key "values" (list "true" "false")) -}}
{{- end -}}
{{- include "hostloop.checkValue" (dict "at" $at "parameters" $parameters "key" "provisioning" "values" (list "thin" "thick")) -}}
{{- if and (eq (toString (dig "provisioning" "" $parameters)) "thick") (eq (toString (dig "discard" "" $parameters)) "true") -}}
{{- fail (printf "%s.discard: a thick volume keeps its blocks; leave it out, or set provisioning: thin" $at) -}}
{{- end -}}
{{- include "hostloop.checkValue" (dict "at" $at "parameters" $parameters "key" "enforcement" "values" (list "required" "none")) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails for values that contradict each other, or that the driver refuses. Argument: $ */}}
{{- define "hostloop.check" -}}
{{- $v := .Values -}}
{{- if and $v.move.enabled (ne $v.mode "cluster") -}}
{{- fail (printf "move.enabled: volumes move in mode cluster only, and mode is %s; set mode: cluster, or leave move.enabled out" $v.mode) -}}
{{- end -}}
{{- range $name := list "healthMonitor" "snapshotMetadata" -}}
{{- if and (index $v.sidecars $name).enabled (ne $v.mode "cluster") -}}
{{- fail (printf "sidecars.%s.enabled: it runs in mode cluster only, and mode is %s; leave it out" $name $v.mode) -}}
{{- end -}}
{{- end -}}
{{- include "hostloop.checkReserve" (dict "at" "node.reserve" "value" $v.node.reserve) -}}
{{- include "hostloop.checkOvercommit" (dict "at" "node.overcommit" "value" $v.node.overcommit) -}}
{{- if ne (toString $v.node.maxVolumeSize) "0" -}}
{{- with $v.node.maxVolumeSize -}}
{{- include "hostloop.checkSize" (dict "at" "node.maxVolumeSize" "value" . "more" ", or leave it empty for no limit but the pool") -}}
{{- end -}}
{{- end -}}
{{- if regexMatch "^[a-z]+://" (dig "imageRegistry" "" (default dict $v.global)) -}}
{{- fail (printf "global.imageRegistry: %q is an address; write registry.example.com or registry.example.com/path" $v.global.imageRegistry) -}}
{{- end -}}
{{- include "hostloop.checkSize" (dict "at" "node.inline.maxSize" "value" $v.node.inline.maxSize) -}}
{{- include "hostloop.checkSize" (dict "at" "test.size" "value" $v.test.size) -}}
{{- if ne (toString $v.node.streamRate) "0" -}}
{{- include "hostloop.checkSize" (dict "at" "node.streamRate" "value" $v.node.streamRate "more" ", or \"0\" for no limit") -}}
{{- end -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$" $v.driverName) -}}
{{- fail (printf "driverName: %q is not the name of a driver; write a domain name such as hostloop.csi.dev" $v.driverName) -}}
{{- end -}}
{{- if not (regexMatch "^(((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])([.]|$)){4}|[0-9a-fA-F:]*:[0-9a-fA-F:.]*)$" $v.listenAddress) -}}
{{- fail (printf "listenAddress: %q is not an address; write 0.0.0.0 or \"::\"" $v.listenAddress) -}}
{{- end -}}
{{- with $v.node.quotaIds -}}
{{- $ends := splitList "-" . -}}
{{- if not (and (regexMatch "^[0-9]{1,10}-[0-9]{1,10}$" .) (le (int64 (first $ends)) (int64 (last $ends))) (ge (int64 (first $ends)) 1)) -}}
{{- fail (printf "node.quotaIds: %q is not a range; write \"5000-6000\"" .) -}}
{{- end -}}
{{- end -}}
{{- $ports := dict -}}
{{- range $at, $port := dict "health.port" $v.health.port "metrics.port" $v.metrics.port "peer.port" $v.peer.port -}}
{{- $other := get $ports (toString (int $port)) -}}
{{- if $other -}}{{- fail (printf "%s: %s has %v as well; each needs a port of its own" $at $other $port) -}}{{- end -}}
{{- $_ := set $ports (toString (int $port)) $at -}}
{{- end -}}
{{- if and (not $v.metrics.enabled) (or $v.metrics.service $v.metrics.podMonitor.enabled) -}}
{{- fail "metrics.enabled: metrics.service and metrics.podMonitor need it; set metrics.enabled: true, or leave them out" -}}
{{- end -}}
{{- include "hostloop.checkPath" (dict "at" "node.kubeletDir" "value" $v.node.kubeletDir) -}}
{{- include "hostloop.checkPath" (dict "at" "node.dataDir" "value" $v.node.dataDir) -}}
{{- range $at, $value := dict "tls.certManager.duration" $v.tls.certManager.duration
    "tls.certManager.renewBefore" $v.tls.certManager.renewBefore
    "metrics.podMonitor.interval" $v.metrics.podMonitor.interval
    "sidecars.timeout" $v.sidecars.timeout
    "sidecars.provisioner.capacityPollInterval" $v.sidecars.provisioner.capacityPollInterval -}}
{{- include "hostloop.checkDuration" (dict "at" $at "value" $value) -}}
{{- end -}}
{{- include "hostloop.checkDigest" (dict "at" "image" "image" $v.image) -}}
{{- range $key, $sidecar := $v.sidecars -}}
{{- if kindIs "map" $sidecar -}}
{{- with $sidecar.image -}}
{{- include "hostloop.checkDigest" (dict "at" (printf "sidecars.%s.image" $key) "image" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "hostloop.checkPools" . -}}
{{- include "hostloop.checkClasses" . -}}
{{- end -}}
