{{/* Name of the release's objects, at most 40 characters: names of Pods are labels, and end with more. */}}
{{- define "sie.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "sie.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Labels that choose the Pods of a part: (dict "root" $ "part" "gateway"). */}}
{{- define "sie.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "sie.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "sie.serviceAccount" -}}
{{ default (ternary (include "sie.name" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{/* Secret that secret.yaml makes in the cluster. */}}
{{- define "sie.generatedSecret" -}}
{{ include "sie.name" . }}-generated
{{- end }}

{{/* Secret with the passwords of NATS' users. */}}
{{- define "sie.natsSecret" -}}
{{ default (include "sie.generatedSecret" .) .Values.nats.existingSecret }}
{{- end }}

{{/* Secret with the config service's admin token. */}}
{{- define "sie.adminSecret" -}}
{{ coalesce .Values.config.existingSecret .Values.gateway.auth.existingSecret (include "sie.generatedSecret" .) }}
{{- end }}

{{- define "sie.natsUrl" -}}
{{- if .Values.nats.enabled -}}
nats://{{ include "sie.name" . }}-nats:4222
{{- else -}}
{{ required "nats.url: give the address of NATS, or set nats.enabled" .Values.nats.url }}
{{- end -}}
{{- end }}

{{/* Pools that are enabled, as JSON. */}}
{{- define "sie.pools" -}}
{{- $pools := dict -}}
{{- range $name, $pool := .Values.workers.pools -}}
{{- if ne (dig "enabled" true $pool) false -}}{{- $_ := set $pools $name $pool -}}{{- end -}}
{{- end -}}
{{- $pools | toJson -}}
{{- end }}

{{/*
Metadata of a part's Pods: (dict "root" $ "part" "gateway" "values" .Values.gateway), with "annotations" of the part's
own. No label has the chart's version, so a new chart that changes nothing restarts nothing.
*/}}
{{- define "sie.podMetadata" -}}
labels: {{- merge (include "sie.selector" . | fromYaml) (.values.podLabels | default dict) | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) (.values.podAnnotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Nodes of a part's Pods: (dict "root" $ "part" "gateway" "values" .Values.gateway). */}}
{{- define "sie.placement" -}}
{{- range $field := list "nodeSelector" "tolerations" "affinity" }}
{{- with get $.values $field }}
{{ $field }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
{{- $own := dict "labelSelector" (dict "matchLabels" (include "sie.selector" $ | fromYaml)) }}
topologySpreadConstraints:
  {{- range . }}
  - {{- merge (dict) . $own | toYaml | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* What all Pods have: (dict "root" $ "user" 10001). */}}
{{- define "sie.pod" -}}
serviceAccountName: {{ .serviceAccount | default (include "sie.serviceAccount" .root) }}
automountServiceAccountToken: {{ hasKey . "serviceAccount" }}
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user }}
  runAsGroup: {{ .user }}
  fsGroup: {{ .user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* What all containers have: their part's values. */}}
{{- define "sie.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{- toYaml .resources | nindent 2 }}
{{- with .envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Settings by which a part connects to NATS: (dict "root" $ "user" "gateway"). */}}
{{- define "sie.natsEnv" -}}
- {name: SIE_NATS_URL, value: {{ include "sie.natsUrl" .root | quote }}}
- {name: SIE_NATS_USER, value: {{ .user }}}
- {name: SIE_NATS_PASSWORD, value: "@/run/secrets/sie/nats/password"}
{{- if .root.Values.nats.caSecret }}
- {name: SIE_NATS_TLS_CA, value: /run/secrets/sie/nats-ca/ca.crt}
{{- end }}
{{- with .root.Values.payloadStore }}
{{- if .enabled }}
- {name: SIE_PAYLOAD_STORE_URL, value: {{ required "payloadStore.url: give the address of the store" .url | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Kubernetes makes volumes that every user can write to. Only this Pod reaches them. */}}
{{- define "sie.volumesEnv" -}}
- {name: SIE_TRUSTED_VOLUMES, value: "/var/lib/sie-triton,/tmp,/dev/shm"}
{{- end }}

{{/* Variables by name; a value is a text, or a mapping such as {valueFrom: ...}. */}}
{{- define "sie.env" -}}
{{- range $name, $value := . }}
- {{ merge (dict "name" $name) (kindIs "string" $value | ternary (dict "value" $value) $value) | toJson }}
{{- end }}
{{- end }}

{{/* Half of an amount of memory, such as 1Gi, in bytes; empty if there is none, or its unit is another one. */}}
{{- define "sie.halfBytes" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $text := kindIs "string" . | ternary (toString .) (printf "%d" (int64 .)) -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- if and $number (hasKey $units $unit) -}}
{{- divf (mulf $number (get $units $unit)) 2 | int64 -}}
{{- end -}}
{{- end }}

{{- define "sie.natsMounts" -}}
- {name: nats-password, mountPath: /run/secrets/sie/nats, readOnly: true}
{{- if .Values.nats.caSecret }}
- {name: nats-ca, mountPath: /run/secrets/sie/nats-ca, readOnly: true}
{{- end }}
{{- if .Values.sharedVolume.claimName }}
- {name: shared, mountPath: {{ .Values.sharedVolume.mountPath }}}
{{- end }}
{{- end }}

{{/* Volumes of a part: (dict "root" $ "user" "gateway"). */}}
{{- define "sie.volumes" -}}
- name: nats-password
  secret:
    secretName: {{ include "sie.natsSecret" .root }}
    items: [{key: {{ .user }}, path: password}]
{{- with .root.Values.nats.caSecret }}
- name: nats-ca
  secret:
    secretName: {{ . }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- with .root.Values.sharedVolume.claimName }}
- name: shared
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
- name: tmp
  emptyDir: {}
{{- end }}

{{/* Claim of a StatefulSet for its volume "data": values of persistence. */}}
{{- define "sie.claim" -}}
- metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .size }}}}
{{- end }}

{{- define "sie.serverProbe" -}}
exec: {command: [sh, -c, 'exec curl --fail --silent "http://127.0.0.1:${SIE_CONTROLLER_PORT:-8003}{{ . }}"']}
timeoutSeconds: 5
{{- end }}

{{- define "sie.httpProbe" -}}
httpGet: {path: {{ .path | quote }}, port: {{ .port }}}
timeoutSeconds: 5
{{- end }}
