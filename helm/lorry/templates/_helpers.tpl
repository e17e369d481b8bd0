{{- define "lorry.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/*
A StatefulSet's pods have its name and a revision's hash, eleven characters, in one label of 63, and no pod is ever made where that
is too long. What a release can have decides: a name that ends in -orchestrator, or in -engine and the number of a LeaderWorkerSet's
group; one that ends in -store; or a Deployment alone. Other names than before would be other volumes: a release that worked keeps its.
*/}}
{{- define "lorry.fullname" -}}
{{- $max := 50 -}}
{{- if .Values.store.enabled -}}{{- $max = 46 -}}{{- end -}}
{{- if or .Values.orchestrator.enabled (gt (int .Values.engine.nodes) 1) -}}{{- $max = 39 -}}{{- end -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc $max | trimSuffix "-" -}}
{{- else if contains (include "lorry.name" .) .Release.Name -}}
{{- .Release.Name | trunc $max | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "lorry.name" .) | trunc $max | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What never changes over the life of a release. Takes (dict "root" $ "component" "store"). */}}
{{- define "lorry.selectorLabels" -}}
app.kubernetes.io/name: {{ include "lorry.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "lorry.labels" -}}
{{ include "lorry.selectorLabels" . }}
app.kubernetes.io/part-of: lorry
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Takes (dict "root" $ "image" .Values.store.image). */}}
{{- define "lorry.image" -}}
{{- $name := printf "%s/%s" .root.Values.image.registry .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.root.Values.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The Secret with a token for each role. The chart makes none: a rendering that drew random tokens would change each time. */}}
{{- define "lorry.authSecret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-tokens" (include "lorry.fullname" .)) -}}
{{- end -}}

{{- define "lorry.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "lorry.fullname" .)) -}}
{{- else -}}
{{- required "tls.enabled needs tls.existingSecret, or tls.certManager.enabled" .Values.tls.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* The name by which clients check a proxy's certificate: they dial the address of a pod, which is in no certificate. */}}
{{- define "lorry.proxyTlsName" -}}
{{- .Values.proxy.tlsName | default (printf "%s-proxy.%s.svc" (include "lorry.fullname" .) .Release.Namespace) -}}
{{- end -}}

{{- define "lorry.fleet" -}}
{{- .Values.fleet | default .Release.Name -}}
{{- end -}}

{{/* Whom policies admit to the gRPC of every program. */}}
{{- define "lorry.ownPods" -}}
- podSelector:
    matchLabels: {app.kubernetes.io/instance: {{ .Release.Name }}, app.kubernetes.io/part-of: lorry}
# Of this fleet in whatever namespace and release: engines' proxies, and the pod of `helm test`.
- namespaceSelector: {}
  podSelector:
    matchLabels: {lorry.dev/fleet: {{ include "lorry.fleet" . }}}
{{- end -}}

{{- define "lorry.storeAddress" -}}
{{- if .Values.store.enabled -}}
{{ include "lorry.fullname" . }}-store.{{ .Release.Namespace }}.svc:{{ .Values.store.ports.grpc }}
{{- else -}}
{{ required "store.enabled=false needs store.address, the host:port of the store to use" .Values.store.address }}
{{- end -}}
{{- end -}}

{{- define "lorry.orchestratorAddress" -}}
{{- if .Values.orchestrator.enabled -}}
{{ include "lorry.fullname" . }}-orchestrator.{{ .Release.Namespace }}.svc:{{ .Values.orchestrator.ports.grpc }}
{{- else -}}
{{ required "orchestrator.enabled=false needs orchestrator.address, the host:port of the orchestrator to use" .Values.orchestrator.address }}
{{- end -}}
{{- end -}}

{{- define "lorry.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "lorry.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/*
Flags that say who may speak to a program and how it shows itself to others, and the mounts and volumes behind them. Takes
(dict "root" $ "as" "engine"): the role whose token the program shows.
*/}}
{{- define "lorry.credentialArgs" -}}
{{- with .root.Values -}}
{{- if .auth.enabled }}
- --auth-token-file=/etc/lorry/auth/tokens
- --token-file=/etc/lorry/auth/{{ $.as }}
{{- end }}
{{- if .tls.enabled }}
- --tls-cert=/etc/lorry/tls/tls.crt
- --tls-key=/etc/lorry/tls/tls.key
- --tls-ca=/etc/lorry/tls/ca.crt
{{- if .tls.clientCertificates }}
- --tls-client-ca=/etc/lorry/tls/ca.crt
{{- else if not .auth.enabled }}
{{- fail "tls.clientCertificates=false needs auth.enabled: without either, everybody would be an operator" }}
{{- end }}
{{- else }}
- --insecure-listen-anywhere
{{- end }}
{{- end }}
{{- end -}}

{{- define "lorry.credentialMounts" -}}
{{- if .Values.auth.enabled }}
- {name: lorry-auth, mountPath: /etc/lorry/auth, readOnly: true}
{{- end }}
{{- if .Values.tls.enabled }}
- {name: lorry-tls, mountPath: /etc/lorry/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "lorry.credentialVolumes" -}}
{{- if .Values.auth.enabled }}
- name: lorry-auth
  secret: {secretName: {{ include "lorry.authSecret" . }}}
{{- end }}
{{- if .Values.tls.enabled }}
- name: lorry-tls
  secret: {secretName: {{ include "lorry.tlsSecret" . }}}
{{- end }}
{{- end -}}

{{/* Where pods go. Takes (dict "root" $ "component" "store" "values" .Values.store). */}}
{{- define "lorry.placement" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- range $field := list "nodeSelector" "affinity" "tolerations" }}
{{- with get $.values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml . | nindent 4 }}
    {{- if not .labelSelector }}
    labelSelector:
      matchLabels:
        {{- include "lorry.selectorLabels" $ | nindent 8 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Pods are replaced when what they read at their start changes. Takes (dict "root" $ "values" .Values.store). */}}
{{- define "lorry.podAnnotations" -}}
checksum/settings: {{ toJson (list .root.Values.auth .root.Values.tls .root.Values.image .root.Values.rolloutOn) | sha256sum }}
{{- with .values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What the "restricted" Pod Security Standard asks of a container. */}}
{{- define "lorry.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/*
Liveness and readiness at the admin port. Live does not wait for anybody else; ready does. A program that hangs does not end by SIGTERM,
and is killed when the time is over that its probe gives it: without one of its own, the pod's whole grace period, in which proxies drain.
*/}}
{{- define "lorry.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 1
  failureThreshold: 60
  terminationGracePeriodSeconds: 10
livenessProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
  terminationGracePeriodSeconds: 10
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}
