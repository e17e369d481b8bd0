{{- define "lorry.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "lorry.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "lorry.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "lorry.name" .) | trunc 50 | trimSuffix "-" -}}
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

{{- define "lorry.authSecret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-token" (include "lorry.fullname" .)) -}}
{{- end -}}

{{- define "lorry.storeAddress" -}}
{{ include "lorry.fullname" . }}-store.{{ .Release.Namespace }}.svc:{{ .Values.store.ports.grpc }}
{{- end -}}

{{- define "lorry.orchestratorAddress" -}}
{{ include "lorry.fullname" . }}-orchestrator.{{ .Release.Namespace }}.svc:{{ .Values.orchestrator.ports.grpc }}
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
- --tls-client-ca=/etc/lorry/tls/ca.crt
- --tls-ca=/etc/lorry/tls/ca.crt
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
  secret: {secretName: {{ required "tls.enabled needs tls.existingSecret" .Values.tls.existingSecret }}}
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

{{/* Liveness and readiness at the admin port. Live does not wait for anybody else; ready does. */}}
{{- define "lorry.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}
