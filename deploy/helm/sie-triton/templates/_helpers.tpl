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
{{ default (include "sie.name" .) .Values.serviceAccount }}
{{- end }}

{{/* Secret with the passwords of NATS' users. */}}
{{- define "sie.natsSecret" -}}
{{ default (printf "%s-generated" (include "sie.name" .)) .Values.nats.existingSecret }}
{{- end }}

{{/* Secret with the config service's admin token. */}}
{{- define "sie.adminSecret" -}}
{{ default (printf "%s-generated" (include "sie.name" .)) (default .Values.gateway.auth.existingSecret .Values.config.existingSecret) }}
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

{{/* What all Pods have: (dict "root" $ "user" 10001). */}}
{{- define "sie.podSecurity" -}}
serviceAccountName: {{ include "sie.serviceAccount" .root }}
automountServiceAccountToken: false
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

{{- define "sie.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
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

{{- define "sie.env" -}}
{{- range $name, $value := . }}
- {name: {{ $name }}, value: {{ $value | quote }}}
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

{{- define "sie.httpProbe" -}}
httpGet: {path: {{ .path | quote }}, port: {{ .port }}}
timeoutSeconds: 5
{{- end }}
