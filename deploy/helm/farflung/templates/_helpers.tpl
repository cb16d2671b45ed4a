{{- define "farflung.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "farflung.labels" -}}
app.kubernetes.io/name: farflung
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "farflung.secret" -}}
{{- .Values.existingSecret | default (printf "%s-link" (include "farflung.name" .)) -}}
{{- end -}}

{{- define "farflung.security" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "farflung.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}
