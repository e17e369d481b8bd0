{{/*
A program with a volume: StatefulSet of one replica (SQLite and local files have one writer; the set never runs two) and its
Service. Takes (dict "root" $ "name" "store" "binary" "adapter-store" "values" .Values.store "args" (list …)).
*/}}
{{- define "lorry.program" -}}
{{- $full := printf "%s-%s" (include "lorry.fullname" .root) .name -}}
{{- $labels := dict "root" .root "component" .name -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ $full }}
  labels:
    {{- include "lorry.labels" $labels | nindent 4 }}
spec:
  # Headless: gRPC reaches the pod itself, and finds it again when it moves.
  clusterIP: None
  # There is one pod, and nobody to go to in its place: without its store the orchestrator is not ready, and yet the one whom operators ask
  # what is wrong, and to whom proxies that start again say that they are there.
  publishNotReadyAddresses: true
  selector:
    {{- include "lorry.selectorLabels" $labels | nindent 4 }}
  ports:
    {{- range $name, $port := .values.ports }}
    - {name: {{ $name }}, port: {{ $port }}, targetPort: {{ $name }}{{ if eq $name "grpc" }}, appProtocol: grpc{{ end }}}
    {{- end }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $full }}
  labels:
    {{- include "lorry.labels" $labels | nindent 4 }}
spec:
  replicas: 1
  serviceName: {{ $full }}
  # Or a pod that never became ready would stay, as what is ordered waits for it, when an upgrade corrects what it was given.
  podManagementPolicy: Parallel
  # Pods below the partition stay as they are: the only one is number 0.
  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: {{ if .values.hold }}1{{ else }}0{{ end }}}}
  persistentVolumeClaimRetentionPolicy:
    whenDeleted: {{ ternary "Retain" "Delete" .values.persistence.keepOnDelete }}
    whenScaled: Retain
  selector:
    matchLabels:
      {{- include "lorry.selectorLabels" $labels | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "lorry.labels" $labels | nindent 8 }}
      annotations:
        {{- include "lorry.podAnnotations" . | nindent 8 }}
    spec:
      serviceAccountName: {{ include "lorry.serviceAccount" .root }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        fsGroup: 65532
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: {{ .binary }}
          image: {{ include "lorry.image" (dict "root" .root "image" .values.image) }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args:
            - --listen={{ .root.Values.listenHost }}:{{ .values.ports.grpc }}
            - --admin-listen={{ .root.Values.listenHost }}:{{ .values.ports.admin }}
            - --data-dir=/data
            {{- range .args }}
            - {{ . }}
            {{- end }}
            {{- with include "lorry.credentialArgs" (dict "root" .root "as" "operator") | trim }}{{ . | nindent 12 }}{{- end }}
            {{- with .values.extraArgs }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- with .values.extraEnv }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            {{- range $name, $port := .values.ports }}
            - {name: {{ $name }}, containerPort: {{ $port }}}
            {{- end }}
          {{- include "lorry.probes" (dict "port" "admin") | nindent 10 }}
          securityContext:
            {{- include "lorry.containerSecurity" . | nindent 12 }}
          resources:
            {{- toYaml .values.resources | nindent 12 }}
          volumeMounts:
            - {name: data, mountPath: /data}
            {{- with include "lorry.credentialMounts" .root | trim }}{{ . | nindent 12 }}{{- end }}
            {{- with .values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      {{- if or .values.extraVolumes (include "lorry.credentialVolumes" .root | trim) }}
      volumes:
        {{- with include "lorry.credentialVolumes" .root | trim }}{{ . | nindent 8 }}{{- end }}
        {{- with .values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- with include "lorry.placement" (merge (dict "values" .values) $labels) | trim }}{{ . | nindent 6 }}{{- end }}
  volumeClaimTemplates:
    - metadata:
        name: data
        labels:
          {{- include "lorry.selectorLabels" $labels | nindent 10 }}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .values.persistence.storageClass }}
        storageClassName: {{ . }}
        {{- end }}
        resources: {requests: {storage: {{ .values.persistence.size }}}}
{{- with .values.podDisruptionBudget }}
{{- if .enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $full }}
  labels:
    {{- include "lorry.labels" $labels | nindent 4 }}
spec:
  maxUnavailable: {{ .maxUnavailable }}
  selector:
    matchLabels:
      {{- include "lorry.selectorLabels" $labels | nindent 6 }}
{{- end }}
{{- end }}
{{- end -}}
