{{- define "herder.labels" -}}
app.kubernetes.io/name: herder
app.kubernetes.io/part-of: herder
{{- end -}}

{{- define "herder.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end -}}
{{- end -}}
