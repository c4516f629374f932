{{/*
The condition under which a policy applies: the user is not a controller. Users are authenticated by Kubernetes, so nobody can
write the name of another one.
*/}}
{{- define "hostloop.notTheController" -}}
{{- $own := printf "system:serviceaccount:%s:%s" .Release.Namespace (include "hostloop.apiServiceAccount" .) -}}
- name: not-the-controller
  expression: >-
    !(request.userInfo.username in ['{{ join "', '" (prepend .Values.move.admissionPolicy.controllers $own) }}'])
{{- end -}}

{{/* A policy is nothing without its binding. Argument: dict "root" $ "name" the end of the name of both */}}
{{- define "hostloop.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ include "hostloop.fullname" .root }}-{{ .name }}
  labels: {{- include "hostloop.labels" (dict "root" .root) | nindent 4 }}
spec:
  policyName: {{ include "hostloop.fullname" .root }}-{{ .name }}
  validationActions: [Deny]
{{- end -}}
