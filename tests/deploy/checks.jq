# What a schema cannot say about manifests. Input: an array of objects; output: a line for each thing that is wrong.

def id: "\(.kind)/\(.metadata.name)";
def pod_owners: .[] | select(.kind == "Deployment" or .kind == "DaemonSet" or .kind == "Pod");
def pod: if .kind == "Pod" then . else .spec.template end;
def containers: pod.spec | (.initContainers // [])[], .containers[];
def subset($labels): to_entries | all(.[]; $labels[.key] == .value);

# The driver on a node is the one container that may be privileged, and it says why in the chart.
def node_driver($owner): $owner.kind == "DaemonSet" and .name == "hostloop";

def security:
  pod_owners as $o
  | ($o | containers) as $c
  | $c.securityContext as $s
  | "\($o | id), container \($c.name)" as $where
  | if $s.readOnlyRootFilesystem != true then "\($where): its root filesystem is writable" else empty end,
    if $c | node_driver($o) then empty
    elif $s.privileged == true or $s.allowPrivilegeEscalation != false or $s.capabilities != {drop: ["ALL"]}
    then "\($where): it has more rights than it needs" else empty end,
    if $o.kind != "DaemonSet" and ($o | pod.spec.securityContext.runAsNonRoot) != true then "\($where): it may be root" else empty end,
    if ($o | pod.spec.securityContext.seccompProfile.type) != "RuntimeDefault" then "\($where): no seccomp profile" else empty end,
    if ($o | pod.spec | .hostNetwork or .hostPID or .hostIPC) then "\($where): it shares a namespace of the node" else empty end;

def containers_complete:
  pod_owners | select(.kind != "Pod") as $o
  | ($o | containers) as $c
  | "\($o | id), container \($c.name)" as $where
  | if ($c.resources.requests.memory // "") == "" then "\($where): no requests" else empty end,
    if $c.terminationMessagePolicy != "FallbackToLogsOnError" then "\($where): its last words are lost" else empty end,
    if $c.image | test(":[^/]+$|@sha256:") | not then "\($where): image \($c.image) has no version" else empty end;

def ports:
  pod_owners as $o
  | [$o | containers | (.ports // [])[]] as $ports
  | if ($ports | map(.containerPort) | unique | length) != ($ports | length) then "\($o | id): a port is used twice" else empty end,
    if ($ports | map(.name) | unique | length) != ($ports | length) then "\($o | id): a port's name is used twice" else empty end,
    ($o | containers | .livenessProbe, .readinessProbe, .startupProbe | select(. != null) | .httpGet.port) as $probed
    | if $ports | any(.name == $probed) then empty else "\($o | id): a probe asks port \($probed), which no container has" end;

def volumes:
  pod_owners as $o
  | [$o | containers | .volumeMounts[].name] as $mounted
  | [$o | pod.spec.volumes[].name] as $there
  | (($mounted - $there)[] | "\($o | id): volume \(.) is mounted, but there is none"),
    (($there - $mounted)[] | "\($o | id): volume \(.) is of no use");

# A selector that selects nothing is silent.
def selectors:
  . as $all
  | [$all | pod_owners | pod | {labels: .metadata.labels, ports: [.spec.containers[] | (.ports // [])[].name]}] as $pods
  | .[]
  | . as $object
  | (if .kind == "Service" then {labels: .spec.selector, ports: [.spec.ports[].targetPort]}
     elif .kind == "NetworkPolicy" then {labels: .spec.podSelector.matchLabels, ports: [(.spec.ingress // [])[].ports[].port]}
     elif .kind == "PodDisruptionBudget" or .kind == "PodMonitor" then {labels: .spec.selector.matchLabels, ports: []}
     else empty end) as $wanted
  | [$pods[] | select(.labels as $l | $wanted.labels | subset($l))] as $selected
  | if $selected == [] then "\(id): it selects no pod" else empty end,
    ($wanted.ports[] as $port | select($selected | any(.ports | index([$port]) != null) | not) | "\($object | id): no pod has port \($port)");

def rbac:
  . as $all
  | (.[] | select(.kind | test("^(Cluster)?RoleBinding$")) | . as $b
     | if $all | any(.kind == $b.roleRef.kind and .metadata.name == $b.roleRef.name and .metadata.namespace == $b.metadata.namespace)
       then empty else "\(id): there is no \(.roleRef.kind)/\(.roleRef.name)" end,
       (.subjects[] as $s | select($all | any(.kind == $s.kind and .metadata.name == $s.name and .metadata.namespace == $s.namespace) | not)
        | "\($b | id): there is no \($s.kind)/\($s.name)")),
    (.[] | select(.kind | test("^(Cluster)?Role$")) | . as $r
     # Some are for people, whom an administrator chooses.
     | if .metadata.name | test("-(move-(user|admin)|inspect|doctor)$") then empty
       elif $all | any(.roleRef.kind == $r.kind and .roleRef.name == $r.metadata.name) then empty else "\(id): nobody has it" end,
       if (.rules // []) == [] then "\(id): it allows nothing" else empty end,
       (.rules[] | select(any(.resources[], .verbs[], .apiGroups[]; . == "*")) | "\($r | id): it allows everything of something"),
       # But for the hook that makes the CA: it may create one, and look at the one that it names.
       (.rules[] | select(.resources | index("secrets"))
        | select(($r.metadata.annotations["helm.sh/hook"] // "") == "" or (.verbs != ["create"] and (.resourceNames // []) != [$r.metadata.name]))
        | "\($r | id): no sidecar needs a secret")),
    (pod_owners | select(.kind != "Pod") as $o | $o.spec.template.spec.serviceAccountName as $name
     | select($all | any(.kind == "ServiceAccount" and .metadata.name == $name) | not) | "\($o | id): there is no ServiceAccount/\($name)");

# A policy without a binding is silent as well. What fails must refuse, and tell who may do it.
def policies:
  . as $all
  | (.[] | select(.kind == "ValidatingAdmissionPolicy") | . as $p
     | if $all | any(.kind == "ValidatingAdmissionPolicyBinding" and .spec.policyName == $p.metadata.name and .spec.validationActions == ["Deny"])
       then empty else "\(id): nothing is refused by it" end,
       if .spec.failurePolicy != "Fail" then "\(id): an error lets everything through" else empty end,
       (.spec.validations[] | select((.message // "") == "") | "\($p | id): a refusal without a message"),
       # The user of the controllers is written out in it.
       ([.spec.matchConditions[].expression | scan("system:serviceaccount:[^:\u0027]+:[^\u0027]+")] as $users
        | [$all[] | select(.kind == "ServiceAccount") | "system:serviceaccount:\(.metadata.namespace):\(.metadata.name)"] as $accounts
        | if any($users[]; . as $u | $accounts | index([$u]) != null) then empty else "\($p | id): it names no ServiceAccount that there is" end)),
    (.[] | select(.kind == "ValidatingAdmissionPolicyBinding") | . as $b
     | if $all | any(.kind == "ValidatingAdmissionPolicy" and .metadata.name == $b.spec.policyName) then empty
       else "\(id): there is no ValidatingAdmissionPolicy/\(.spec.policyName)" end);

# A node that had the controllers' key could permit itself to read everything. With tls.mode=generate it has that of the CA.
def keys:
  [pod_owners | select(.kind == "Deployment") | .spec.template.spec.volumes[] | select(.name == "tls") | .secret.secretName // empty] as $controllers
  | pod_owners | select(.kind == "DaemonSet") as $o
  | $o.spec.template.spec.volumes[] | .secret.secretName // empty
  | select(. as $name | $controllers | index([$name]))
  | "\($o | id): it has the controllers' certificate, of Secret \(.)";

def names:
  (group_by([.kind, .metadata.namespace, .metadata.name])[] | select(length > 1) | "\(.[0] | id) is there twice"),
  (.[] | select((.metadata.labels // {})["app.kubernetes.io/name"] == null) | "\(id) has no labels");

security, containers_complete, ports, volumes, selectors, rbac, policies, keys, names
