{{/*
The engine-proxy beside an engine, in five pieces for the engine's pod. From this chart, or from a chart that has this one as
a dependency, give them (dict "root" $lorry "engineUrl" "http://127.0.0.1:8000"), where $lorry has Chart, Release and Lorry's
Values: `$` here, `.Subcharts.lorry` in the parent. "pool" may name another pool; "member" is another name than the pod's, $(LORRY_MEMBER):
two members of a fleet must not share theirs, as pods of StatefulSets in two namespaces do.

  initContainers:  {{- include "lorry.engineProxy.sidecar" $args | nindent 8 }}
  volumes:         {{- include "lorry.engineProxy.volumes" $args | nindent 8 }}
  the engine's volumeMounts:    {{- include "lorry.engineProxy.engineMounts" $args | nindent 12 }}
  the engine's lifecycle:       {{- include "lorry.engineProxy.engineLifecycle" $args | nindent 12 }}
  the pod template's labels:    {{- include "lorry.engineProxy.podLabels" $args | nindent 8 }}

A native sidecar starts before the engine. When the pod ends the proxy goes first, while the engine still generates: its door closes,
requests in flight end, it says goodbye to the fleet. The engine waits for that, within the pod's terminationGracePeriodSeconds, which has
to be proxy.drainSeconds and a minute and a half.

An engine that runs on several nodes has a pod on each. The sidecar of the first, the leader, takes "followers", the addresses of the
others (host:port, commas between). Theirs have lorry.engineProxy.follower instead, and "follows" true: their engine waits for the leader's
proxy when it is to end. Who leads they know from the annotation and the environment that a LeaderWorkerSet gives its pods.
*/}}
{{- define "lorry.engineProxy.sidecar" -}}
{{- $values := .root.Values -}}
{{- $proxy := $values.proxy -}}
- name: engine-proxy
  image: {{ include "lorry.image" (dict "root" .root "image" $proxy.image) }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  restartPolicy: Always
  args:
    - --engine={{ required "engineUrl: where the sidecar finds its engine" .engineUrl }}
    - --member={{ .member | default "$(LORRY_MEMBER)" }}
    - --pool={{ .pool | default $proxy.pool }}
    - --door-listen={{ $values.listenHost }}:{{ $proxy.ports.door }}
    - --listen={{ $values.listenHost }}:{{ $proxy.ports.grpc }}
    - --admin-listen={{ $values.listenHost }}:{{ $proxy.ports.admin }}
    {{- if $proxy.relays.enabled }}
    - --relay-listen={{ $values.listenHost }}:{{ $proxy.ports.relay }}
    {{- end }}
    - --advertise-host=$(LORRY_POD_IP)
    {{- if $values.tls.enabled }}
    - --tls-name={{ include "lorry.proxyTlsName" .root }}
    {{- end }}
    - --orchestrator={{ include "lorry.orchestratorAddress" .root }}
    - --store={{ include "lorry.storeAddress" .root }}
    {{- with .followers }}
    - --followers={{ . }}
    {{- end }}
    - --data-dir=/data
    - --image-dir=/dev/shm/lorry
    - --drain-grace-ms={{ mul $proxy.drainSeconds 1000 }}
    - --goodbye-wait-ms=60000  # an orchestrator that is evicted at the same time runs on another node by then
    - --image-readers=all  # the engine may run as another user; nobody outside of the pod sees the volume
    {{- if $proxy.baseModel.configMap }}
    - --base-model-config=/etc/lorry/base-model/config.json
    {{- end }}
    {{- with include "lorry.credentialArgs" (dict "root" .root "as" "engine") | trim }}{{ . | nindent 4 }}{{- end }}
    {{- with $proxy.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    # A member keeps its name over restarts of its containers; a new pod is a new member.
    - name: LORRY_MEMBER
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: LORRY_POD_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
    {{- with $proxy.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  lifecycle:
    # Hooks run as soon as the pod is to end. A sidecar is sent its own SIGTERM only once the engine is gone, which is too late for the
    # requests that the engine was answering, and may leave no time for a goodbye.
    preStop:
      exec: {command: [sh, -c, "kill -TERM 1"]}
  ports:
    - {name: door, containerPort: {{ $proxy.ports.door }}}
    - {name: lorry-grpc, containerPort: {{ $proxy.ports.grpc }}}
    - {name: lorry-admin, containerPort: {{ $proxy.ports.admin }}}
    {{- if $proxy.relays.enabled }}
    - {name: lorry-relay, containerPort: {{ $proxy.ports.relay }}}
    {{- end }}
  {{- include "lorry.probes" (dict "port" "lorry-admin") | nindent 2 }}
  securityContext:
    {{- include "lorry.containerSecurity" . | nindent 4 }}
  resources:
    {{- toYaml $proxy.resources | nindent 4 }}
  volumeMounts:
    - {name: lorry-journal, mountPath: /data}
    - {name: lorry-images, mountPath: /dev/shm/lorry}
    {{- with $proxy.baseModel }}
    {{- if .volume }}
    - {name: {{ .volume }}, mountPath: {{ required "proxy.baseModel.mountPath: where the engine mounts its model" .mountPath }}, readOnly: true}
    {{- end }}
    {{- if .configMap }}
    - {name: lorry-base-model, mountPath: /etc/lorry/base-model, readOnly: true}
    {{- end }}
    {{- end }}
    {{- with include "lorry.credentialMounts" .root | trim }}{{ . | nindent 4 }}{{- end }}
    {{- with $proxy.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "lorry.engineProxy.follower" -}}
{{- $values := .root.Values -}}
{{- $proxy := $values.proxy -}}
- name: engine-proxy
  image: {{ include "lorry.image" (dict "root" .root "image" $proxy.image) }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  restartPolicy: Always
  args:
    - --follow
    - --member={{ .member | default "$(LORRY_MEMBER)" }}
    - --listen={{ $values.listenHost }}:{{ $proxy.ports.grpc }}
    - --admin-listen={{ $values.listenHost }}:{{ $proxy.ports.admin }}
    - --store={{ include "lorry.storeAddress" .root }}
    - --image-dir=/dev/shm/lorry
    - --image-readers=all  # as the leader's
    {{- with include "lorry.credentialArgs" (dict "root" .root "as" "engine") | trim }}{{ . | nindent 4 }}{{- end }}
    {{- with $proxy.extraArgs }}
    # It is one program, and knows the flags that only a leader heeds.
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    # The leader's, which is the name of its pod.
    - name: LORRY_MEMBER
      valueFrom: {fieldRef: {fieldPath: "metadata.annotations['leaderworkerset.sigs.k8s.io/leader-name']"}}
    {{- with $proxy.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - {name: lorry-grpc, containerPort: {{ $proxy.ports.grpc }}}
    - {name: lorry-admin, containerPort: {{ $proxy.ports.admin }}}
  {{- include "lorry.probes" (dict "port" "lorry-admin") | nindent 2 }}
  securityContext:
    {{- include "lorry.containerSecurity" . | nindent 4 }}
  resources:
    {{- toYaml $proxy.resources | nindent 4 }}
  volumeMounts:
    - {name: lorry-images, mountPath: /dev/shm/lorry}
    {{- with include "lorry.credentialMounts" .root | trim }}{{ . | nindent 4 }}{{- end }}
    {{- with $proxy.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "lorry.engineProxy.volumes" -}}
# The journal lives as long as the pod, which is as long as the engine process that it speaks of.
- name: lorry-journal
  emptyDir: {sizeLimit: 256Mi}
- name: lorry-images
  emptyDir: {medium: Memory, sizeLimit: {{ .root.Values.proxy.imagesSizeLimit }}}
{{- with .root.Values.proxy.baseModel.configMap }}
- name: lorry-base-model
  configMap: {name: {{ . }}}
{{- end }}
{{- include "lorry.credentialVolumes" .root }}
{{- with .root.Values.proxy.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "lorry.engineProxy.engineMounts" -}}
- {name: lorry-images, mountPath: /dev/shm/lorry, readOnly: true}
{{- end -}}

{{- define "lorry.engineProxy.engineLifecycle" -}}
lifecycle:
  # The engine is sent SIGTERM once its proxy's ports are closed. By python3, which the images of both engines have.
  preStop:
    exec:
      command:
        - python3
        - -c
        - |
          {{- if .follows }}
          import os, socket, time
          lost = None  # since when nothing was heard of the leader
          while lost is None or time.monotonic() < lost + 10:
              try:
                  socket.create_connection((os.environ["LWS_LEADER_ADDRESS"], {{ .root.Values.proxy.ports.admin }}), 5).close()
                  lost = None
              except ConnectionRefusedError:
                  break  # it does not listen any more
              except OSError:  # one name that was not found says nothing; of a leader that is gone none is
                  lost = lost or time.monotonic()
              time.sleep(0.5)
          {{- else }}
          import socket, time
          while socket.socket().connect_ex(("127.0.0.1", {{ .root.Values.proxy.ports.admin }})) == 0:
              time.sleep(0.5)
          {{- end }}
{{- end -}}

{{- define "lorry.engineProxy.podLabels" -}}
lorry.dev/engine-proxy: "true"
lorry.dev/fleet: {{ include "lorry.fleet" .root }}
lorry.dev/release: {{ .root.Release.Name }}
{{- end -}}
