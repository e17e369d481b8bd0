{{/* The groups of engines that run on several nodes, and the Service that names their pods. */}}
{{- define "lorry.engineGroups" -}}
{{ include "lorry.fullname" . }}-engine
{{- end -}}

{{/*
The pod of an engine that this chart runs. Takes (dict "root" $ "component" "engine"); "engine-node": on one of its other nodes, which has
no port that anybody asks, and a follower instead of a proxy.
*/}}
{{- define "lorry.engine.pod" -}}
{{- $root := .root -}}
{{- $labels := dict "root" $root "component" .component -}}
{{- $leads := eq .component "engine" -}}
{{- $args := dict "root" $root "engineUrl" (printf "http://127.0.0.1:%v" $root.Values.engine.port) -}}
{{- if gt (int $root.Values.engine.nodes) 1 -}}
{{- $_ := set $args "followers" (include "lorry.engine.followers" $root) -}}
{{- if not $root.Values.orchestrator.enabled -}}
{{/* A group's pods are called the same in each namespace, and releases of several may join one fleet. A member's name has 63 characters. */}}
{{- $_ := set $args "member" (printf "$(LORRY_MEMBER)-%s" (sha256sum $root.Release.Namespace | trunc 8)) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $args "follows" (not $leads) -}}
{{- with $root.Values.engine -}}
metadata:
  labels:
    {{- include "lorry.labels" $labels | nindent 4 }}
    {{- include "lorry.engineProxy.podLabels" $args | nindent 4 }}
  annotations:
    {{- include "lorry.podAnnotations" (dict "root" $root "values" .) | nindent 4 }}
spec:
  serviceAccountName: {{ include "lorry.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .terminationGracePeriodSeconds }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  # The proxy reads a volume with the model (proxy.baseModel.volume) as this group; engines' own images decide whom they run as. Not at each
  # start: that would change the group of every file of a volume that may have millions.
  securityContext: {fsGroup: 65532, fsGroupChangePolicy: OnRootMismatch}
  initContainers:
    {{- include (ternary "lorry.engineProxy.sidecar" "lorry.engineProxy.follower" $leads) $args | nindent 4 }}
  containers:
    - name: engine
      image: {{ required "engine.enabled needs engine.image" .image }}
      {{- with .command }}
      command:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      args:
        {{- toYaml (ternary .args .otherNodesArgs $leads) | nindent 8 }}
      {{- $env := .env }}
      {{- $name := "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION" }}
      {{- if not (contains $name (toJson $env)) }}
      # SGLang's /health generates a token by default, which fails while it is paused: the liveness probe would restart it.
      {{- $env = append $env (dict "name" $name "value" "false") }}
      {{- end }}
      env:
        {{- toYaml $env | nindent 8 }}
      {{- if $leads }}
      ports:
        - {name: engine, containerPort: {{ .port }}}
      # Asked inside the container: an engine that listens on 127.0.0.1 only, as it should, is not there for the kubelet. A restart for a
      # failed probe has its own grace period: the preStop below runs then, too, and would wait for a proxy that goes on.
      {{- $ask := printf "import urllib.request as r; r.urlopen('http://127.0.0.1:%v%s', timeout=8)" .port .healthPath }}
      startupProbe:
        exec: {command: [python3, -c, {{ $ask | quote }}]}
        periodSeconds: 5
        timeoutSeconds: 10
        failureThreshold: {{ div .startupSeconds 5 }}
        terminationGracePeriodSeconds: 30
      livenessProbe:
        exec: {command: [python3, -c, {{ $ask | quote }}]}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 6
        terminationGracePeriodSeconds: 30
      {{- end }}
      {{- include "lorry.engineProxy.engineLifecycle" $args | nindent 6 }}
      resources:
        {{- toYaml .resources | nindent 8 }}
      volumeMounts:
        - {name: shm, mountPath: /dev/shm}
        {{- include "lorry.engineProxy.engineMounts" $args | nindent 8 }}
        {{- with .extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .shmSizeLimit }}}
    {{- include "lorry.engineProxy.volumes" $args | nindent 4 }}
    {{- with .extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with include "lorry.placement" (merge (dict "values" .) $labels) | trim }}{{ . | nindent 2 }}{{- end }}
{{- end -}}
{{- end -}}

{{/* The followers of the leader whose pod is $(LORRY_MEMBER), by the names that its group's pods have. */}}
{{- define "lorry.engine.followers" -}}
{{- $at := printf "%s.%s.svc:%v" (include "lorry.engineGroups" .) .Release.Namespace .Values.proxy.ports.grpc -}}
{{- $addresses := list -}}
{{- range $node := untilStep 1 (int .Values.engine.nodes) 1 -}}
{{- $addresses = append $addresses (printf "$(LORRY_MEMBER)-%d.%s" $node $at) -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end -}}
